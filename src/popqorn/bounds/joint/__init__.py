"""Joint second-order bounds: `method="tight"` (docs/theory.md, Joint bounds).

The operands of all nonlinearities move together, `delta = J d + Phi eps`: a linear image of the inputs' displacement `d`, and of
the errors `eps` that every nonlinearity adds to its tangent. `linear.py` has `J` and `Phi`, `forms.py` the quadratic form that a
walk through tangents leaves, `transfer.py` the price of the errors in it, `spectrum.py` a guess of its greatest value, and
`elimination.py` the proof of that guess; `bounds.py` puts them together, node by node.
"""
