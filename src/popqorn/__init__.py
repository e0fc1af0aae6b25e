"""POPQORN: certified robustness of recurrent networks.

>>> import popqorn
>>> model = popqorn.SequenceClassifier(rnn, head)  # your nn.RNN / nn.LSTM / nn.GRU and nn.Linear
>>> popqorn.certify(model, inputs, region=popqorn.Ball(2, clip=(0, 1))).radius
"""

from popqorn import plot, training
from popqorn._version import __version__
from popqorn.api import bounds, certify, sensitivity, verify
from popqorn.attacks.run import AttackResult, attack
from popqorn.bracket import Bracket, bracket
from popqorn.certificate import Bounds, Certificate, Curve, Sensitivity, Verification
from popqorn.clever import CleverResult, clever
from popqorn.cost import Cost, estimate_cost
from popqorn.curve import curve
from popqorn.files.load import load, save
from popqorn.readers.classifier import SequenceClassifier
from popqorn.readers.supported import supported_operations
from popqorn.readers.taught import register_activation
from popqorn.readers.text import TextClassifier
from popqorn.regions.ball import Ball
from popqorn.regions.box import Box
from popqorn.regions.words import Words
from popqorn.relax.activations import Activation, Concave, Convex, PiecewiseLinear, Sigmoidal, Smooth
from popqorn.runs.plan import Plan
from popqorn.runs.run import Run, run
from popqorn.specs.decision import Decision
from popqorn.specs.property import Property
from popqorn.specs.tolerance import Tolerance
from popqorn.status import Status

__all__ = [
    "Activation",
    "AttackResult",
    "Ball",
    "Bounds",
    "Box",
    "Bracket",
    "Certificate",
    "CleverResult",
    "Concave",
    "Convex",
    "Cost",
    "Curve",
    "Decision",
    "PiecewiseLinear",
    "Plan",
    "Property",
    "Run",
    "Sensitivity",
    "SequenceClassifier",
    "Sigmoidal",
    "Smooth",
    "Status",
    "TextClassifier",
    "Tolerance",
    "Verification",
    "Words",
    "__version__",
    "attack",
    "bounds",
    "bracket",
    "certify",
    "clever",
    "curve",
    "estimate_cost",
    "load",
    "plot",
    "register_activation",
    "run",
    "save",
    "sensitivity",
    "supported_operations",
    "training",
    "verify",
]
