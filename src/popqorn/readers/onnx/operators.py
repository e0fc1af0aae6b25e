"""ONNX's operators: all that can be read, by name."""

from popqorn.readers.onnx import arithmetic, layers, recurrence, sequences
from popqorn.readers.onnx.folding import SHAPES
from popqorn.readers.onnx.table import MOVES, RULES

CONTROL = frozenset(["If", "Loop", "Scan"])
SIZES = frozenset(["Shape", "Size"])
SEQUENCES = frozenset(name for name in RULES if "Sequence" in name)
NAMES = frozenset([*RULES, *MOVES, *SHAPES, *CONTROL, *SIZES])

__all__ = ["CONTROL", "NAMES", "SEQUENCES", "SIZES", "arithmetic", "layers", "names", "recurrence", "sequences"]


def names() -> list[str]:
    """All of ONNX's operators that can be read; those of shapes and masks only where they do not depend on the inputs."""
    return sorted(NAMES)
