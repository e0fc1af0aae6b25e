"""Training with the bound in mind: networks that can be certified (docs/training.md)."""

from popqorn.training.loss import certified_loss
from popqorn.training.ramp import ramp
from popqorn.training.robustify import Epoch, Robustified, robustify

__all__ = ["Epoch", "Robustified", "certified_loss", "ramp", "robustify"]
