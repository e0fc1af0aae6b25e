"""Which reader takes a model."""

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from popqorn.readers.classifier import ClassifierNetwork, SequenceClassifier
from popqorn.readers.exported import ModuleNetwork
from popqorn.readers.heads import is_known
from popqorn.readers.network import Network

Model = nn.Module | Network
"""What the public functions take: any module, or what `popqorn.load` and `popqorn.TextClassifier` give."""


def read_model(model: object) -> Network:
    """The model as given, if it can be read; every refusal says what to do."""
    while True:
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner  # compiled
        else:
            break
    network = _network(model)
    network.check()
    return network


def _network(model: object) -> Network:
    kind = type(model).__name__
    if isinstance(model, Network):
        return model
    if isinstance(model, nn.RNNBase) and type(model).forward in (nn.RNN.forward, nn.LSTM.forward, nn.GRU.forward):
        raise TypeError(
            f"model is a {kind} without a head; add it: popqorn.SequenceClassifier(rnn, nn.Linear(rnn.hidden_size, classes))"
        )
    if isinstance(model, SequenceClassifier) and type(model).forward is SequenceClassifier.forward and is_known(model.head):
        return ClassifierNetwork(model)
    if isinstance(model, nn.Module):
        return ModuleNetwork(model)
    raise TypeError(f"model is a {kind}; pass an nn.Module, a popqorn.SequenceClassifier or what popqorn.load returns")
