"""How `eps` grows while a network is trained."""


def ramp(step: float, first: float, last: float, eps: float) -> float:
    """0 up to the `first` step, `eps` from the `last` on, and a straight line in between. Steps may be batches or epochs.

    >>> [popqorn.training.ramp(epoch, 1, 5, 0.02) for epoch in (0, 2, 3, 9)]
    [0.0, 0.005, 0.01, 0.02]
    """
    if not last >= first:
        raise ValueError(f"last is {last:g}, before first, {first:g}; pass ramp(step, first, last, eps)")
    if step <= first:
        return eps if last == first and step == last else 0.0
    return eps if step >= last else eps * (step - first) / (last - first)
