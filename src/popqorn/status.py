"""What the result for a sample means, and what to do about it."""

from enum import StrEnum


class Status(StrEnum):
    """What a sample's result means; `remedy` says what to do next."""

    CERTIFIED = "certified"
    EXACT = "exact: an attack succeeds just beyond"
    MISCLASSIFIED = "misclassified"
    VIOLATED = "violated by the input itself"
    NOT_CERTIFIED = "not certified at any size tried"
    UNBOUNDED = "certified at every size tried"
    OUT_OF_EVALUATIONS = "certified, but the search ran out of evaluations"
    BROKEN = "broken by an attack"
    UNBROKEN = "no attack found"
    ESTIMATED = "estimated"
    STOPPED = "stopped before it was done"
    DIFFERS = "the model itself computes something else"

    @property
    def remedy(self) -> str:
        """What to do next."""
        return _REMEDIES[self]


_REMEDIES = {
    Status.CERTIFIED: "nothing: the result is a proof",
    Status.EXACT: "nothing: the result is a proof, and no larger one exists, as the counterexample shows",
    Status.MISCLASSIFIED: "the model decides otherwise than labelled; leave labels out to certify decisions as they are",
    Status.VIOLATED: "the property is false for the input as it is; check its rows and offset, or the model",
    Status.NOT_CERTIFIED: "nothing is proven, and nothing refuted: popqorn.attack may show that it can be broken, "
    "a smaller region (fewer frames, fewer neighbours, a smaller eps) may be proven",
    Status.UNBOUNDED: "nothing: the radius is proven, and no size was found at which the proof fails",
    Status.OUT_OF_EVALUATIONS: "the radius is proven, but may be larger; raise tolerance",
    Status.BROKEN: "the adversarial input shows it: train for robustness, or see how much is certified",
    Status.UNBROKEN: "nothing is proven by that: try method='best', or more restarts; popqorn.certify says what is proven",
    Status.ESTIMATED: "nothing is proven by that: popqorn.certify says what is proven, popqorn.attack what is refuted",
    Status.DIFFERS: "what was read from the model is not what it computes (difference says by how much): remove forward hooks "
    "and changes of forward, or bring it to float32 or float64",
    Status.STOPPED: "it was not done when the call was stopped: what stands is valid, call again for the samples left",
}
