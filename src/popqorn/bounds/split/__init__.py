"""Bounds over many small cells of few moving features: `method="split"` (docs/theory.md, Splitting).

`cells.py` cuts the allowed inputs up, `forms.py` bounds the rows of the output over groups of neighbouring cells.
"""
