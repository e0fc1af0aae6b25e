"""What can be read."""

from popqorn.readers import operators


def supported_operations() -> dict[str, list[str]]:
    """The operations that networks may be made of: torch's operators (`"torch"`) and those of ONNX files (`"onnx"`), by name.

    Beside them, everything that follows from weights alone is computed, whatever it is made of.

    >>> "lstm" in supported_operations()["torch"]
    True
    """
    from popqorn.readers.onnx.operators import names

    return {"torch": operators.names(), "onnx": names()}
