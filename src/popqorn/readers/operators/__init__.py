"""torch's operators: what each does to symbols."""

from popqorn.readers.operators import arithmetic, matrices, normalisation, pooling, recurrence, reductions
from popqorn.readers.operators.table import NO_INDEX, apply, name_of, names

__all__ = [
    "NO_INDEX",
    "apply",
    "arithmetic",
    "matrices",
    "name_of",
    "names",
    "normalisation",
    "pooling",
    "recurrence",
    "reductions",
]
