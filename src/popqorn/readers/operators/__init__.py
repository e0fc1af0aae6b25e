"""torch's operators: what each does to symbols."""

from popqorn.readers.operators import arithmetic, matrices, normalisation, pooling, recurrence, reductions
from popqorn.readers.operators.table import apply, name_of, names

__all__ = ["apply", "arithmetic", "matrices", "name_of", "names", "normalisation", "pooling", "recurrence", "reductions"]
