"""The results of the public functions: what was proven, what it means, and how it was reached."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from popqorn._typing import Bool, Float
from popqorn.result import Result
from popqorn.status import Status


@dataclass(frozen=True, eq=False)
class Certificate(Result):
    """Certified radii of a batch: inside `radius[b]` nothing the region allows breaks what must hold for sample `b`.

    - `radius`: the largest size proven (eps; a share of a `Box`; a number of `Words`), to within the tolerance of the search; 0
      where nothing was proven.
    - `status`: per sample, what that radius means; `status[b].remedy` says what to do about it.
    - `margins`: the margins proven at the radius, such as `logit[label] - logit[class]` at `[batch, classes]`; inf where none
      was asked for. At radius 0 they are those of the input itself; NaN if its search was stopped before it began.
    - `target_radius`: the radius of each margin alone, in the shape of `margins` (inf where there is none), if `per_target`
      was asked for.
    - `step_radius`: `[batch, steps]`, the radius of each step's decision alone, if `per_step` was asked for.
    - `labels`, `targets`: the decisions that were certified, and against which class; None for other specs, and `targets` for
      all classes.
    - `refuted`, `counterexamples`: the least size at which splitting found an input that breaks what must hold (inf: none), and
      that input, checked by the model itself; None for other methods. Where the two sides meet, the status is `EXACT`.
    - `difference`: how far the model's own outputs are from those that were bounded; by rounding, unless the status says so.
    - `evaluations`: how many bounds each sample's search took.
    - `settings`: everything that decides the numbers: region, spec, method, tolerance, dtype, hashes of weights and inputs.
    """

    radius: Float[Tensor, " batch"]
    status: tuple[Status, ...]
    margins: Float[Tensor, "batch ..."]
    evaluations: Tensor
    labels: Tensor | None
    targets: Tensor | None
    target_radius: Tensor | None
    step_radius: Tensor | None
    refuted: Tensor | None
    counterexamples: Tensor | None
    difference: Float[Tensor, " batch"]


@dataclass(frozen=True, eq=False)
class Verification(Result):
    """What is proven at one size of the region.

    - `certified`: per sample, whether everything that must hold was proven; `status` says what it means where not.
    - `margins`: proven lower bounds of the margins, such as `logit[label] - logit[class]` at `[batch, classes]`; inf where
      none was asked for; NaN for samples that were not done when the user stopped the call.
    - `eps`: the size they were proven at; `labels`, `targets`, `refuted`, `counterexamples`, `difference`: as in `Certificate`.
      A sample with a counterexample inside `eps` is `BROKEN`.
    """

    certified: Bool[Tensor, " batch"]
    status: tuple[Status, ...]
    margins: Float[Tensor, "batch ..."]
    eps: Float[Tensor, " batch"]
    refuted: Tensor | None
    counterexamples: Tensor | None
    labels: Tensor | None
    targets: Tensor | None
    difference: Float[Tensor, " batch"]


@dataclass(frozen=True, eq=False)
class Sensitivity(Result):
    """The certified radius of every frame when it alone may move: small values mark the frames that decide; inf where it cannot.

    `radius` and `status` are `[batch, frames]`; frames that were not done, or that a shorter sequence lacks, have radius NaN,
    and its row of `status` is shorter. `words` are what the frames stand for, if the model reads text. If it was given time to
    split, `refuted` has the least sizes at which a counterexample was found, and `counterexamples` what that frame then is.
    """

    radius: Float[Tensor, "batch frames"]
    status: tuple[tuple[Status, ...], ...]
    refuted: Tensor | None
    counterexamples: Tensor | None
    words: tuple[tuple[str, ...], ...] | None
    labels: Tensor | None
    targets: Tensor | None
    difference: Float[Tensor, " batch"]


@dataclass(frozen=True, eq=False)
class Bounds(Result):
    """`lower <= output <= upper` for every allowed input (the paper's gamma); both `[batch, *output]`.

    Samples that were not done when the user stopped the call have the status `STOPPED`, and infinite bounds; so do those whose
    outputs the model itself computes otherwise (`DIFFERS`; `difference` says by how much).

    >>> lower, upper = popqorn.bounds(model, inputs, 0.01)
    """

    lower: Float[Tensor, "batch ..."]
    upper: Float[Tensor, "batch ..."]
    status: tuple[Status, ...]
    difference: Float[Tensor, " batch"]

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.lower, self.upper))


@dataclass(frozen=True, eq=False)
class Curve(Result):
    """Certified accuracy over sizes: `certified[i]` is the share of all samples for which the claim is proven at `eps[i]`.

    `attacked[i]`, if asked for, is the share that no attack broke at `eps[i]`: the truth lies between the two. `accuracy` is the
    share right without any perturbation. `proven` and `unbroken` have the samples one by one, `[batch, sizes]`; `status` says
    whether a sample is proven at some size (certified), at all (unbounded) or at none.
    """

    eps: Float[Tensor, " sizes"]
    certified: Float[Tensor, " sizes"]
    attacked: Tensor | None
    accuracy: float
    proven: Bool[Tensor, "batch sizes"]
    unbroken: Tensor | None
    status: tuple[Status, ...]

    def __str__(self) -> str:
        """The table: one line per size."""
        heading = f"{'eps':>10} {'certified':>10}" + (f" {'attacked':>10}" if self.attacked is not None else "")
        lines = [heading]
        for place, eps in enumerate(self.eps.tolist()):
            numbers = [self.certified, *([] if self.attacked is None else [self.attacked])]
            lines.append(f"{eps:10.5g}" + "".join(f" {100 * float(column[place]):8.1f} %" for column in numbers))
        return "\n".join(lines)
