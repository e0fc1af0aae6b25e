"""POPQORN: certified robustness of recurrent networks.

>>> import popqorn
>>> model = popqorn.SequenceClassifier(rnn, head)  # your nn.RNN / nn.LSTM / nn.GRU and nn.Linear
>>> popqorn.certify(model, inputs, norm=2).radius
"""

from popqorn._version import __version__
from popqorn.activations import Activation, PiecewiseLinear, Sigmoidal, Smooth
from popqorn.api import LogitBounds, Verification, bounds, certify, sensitivity, verify
from popqorn.attacks.run import AttackResult, attack
from popqorn.attacks.words import SubstitutionResult, substitute
from popqorn.certificate import Certificate, Status
from popqorn.comparison import Bracket, bracket
from popqorn.estimate import CleverResult, clever
from popqorn.models.classifier import SequenceClassifier, register_activation

__all__ = [
    "Activation",
    "AttackResult",
    "Bracket",
    "Certificate",
    "CleverResult",
    "LogitBounds",
    "PiecewiseLinear",
    "SequenceClassifier",
    "Sigmoidal",
    "Smooth",
    "Status",
    "SubstitutionResult",
    "Verification",
    "__version__",
    "attack",
    "bounds",
    "bracket",
    "certify",
    "clever",
    "register_activation",
    "sensitivity",
    "substitute",
    "verify",
]
