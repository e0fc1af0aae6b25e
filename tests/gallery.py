"""The gallery: modules as people write them, with inputs each takes. A new exhibit is one line of the table below."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import gallery_layers as layers
import gallery_recurrent as recurrent
import gallery_text as text

SEQUENCES = (2, 4, 3)


@dataclass(frozen=True)
class Exhibit:
    """A module and the shape of its inputs; `words` of the vocabulary if these are tokens. `decides` between classes or not.

    `wrap` is what is done to the finished module: compiling it, say.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = SEQUENCES
    words: int = 0
    decides: bool = True
    wrap: Callable[[nn.Module], nn.Module] = lambda module: module

    def module(self) -> nn.Module:
        """In double precision, trained for a while, so to speak: statistics are no longer 0 and 1, weights matter."""
        torch.manual_seed(1)
        module = self.make().double()
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name.endswith(("running_mean", "running_var")):
                    buffer.add_(torch.rand_like(buffer) / 2)
            for parameter in module.parameters():
                parameter.mul_(1.5)
        return self.wrap(module)

    def inputs(self) -> Tensor:
        generator = torch.Generator().manual_seed(2)
        if self.words:
            return torch.randint(self.words, self.shape, generator=generator)
        return torch.randn(self.shape, generator=generator, dtype=torch.float64)


def _text(make: Callable[[], nn.Module]) -> Exhibit:
    return Exhibit(make, (2, 3), words=text.WORDS)


def _values(make: Callable[[], nn.Module], *shape: int) -> Exhibit:
    return Exhibit(make, shape or SEQUENCES, decides=False)


def _ending(end: nn.Module) -> nn.Module:
    """A network whose last layer changes no decision."""
    return nn.Sequential(recurrent.LastStep(nn.GRU), end)


def _gru() -> nn.Module:
    return recurrent.LastStep(nn.GRU)


GALLERY: dict[str, Exhibit] = {
    "ECG: convolution, two-layer bidirectional GRU, mean, batch norm": Exhibit(recurrent.EcgNet, (2, 3, 3)),
    "RNN, last step": Exhibit(lambda: recurrent.LastStep(nn.RNN)),
    "RNN with ReLU, last step": Exhibit(lambda: recurrent.LastStep(nn.RNN, nonlinearity="relu")),
    "LSTM, last step": Exhibit(lambda: recurrent.LastStep(nn.LSTM)),
    "GRU, last step": Exhibit(_gru),
    "two-layer LSTM, time first, initial states": Exhibit(recurrent.ZeroStates),
    "nn.Sequential with RMS norm": Exhibit(recurrent.sequential),
    "probabilities, squeezed": Exhibit(recurrent.Probabilities),
    "GRU with a learned initial state": Exhibit(recurrent.LearnedState),
    "LSTM with projection, no biases": Exhibit(recurrent.Projected),
    "text: packed bidirectional LSTM, max over time": _text(text.TextClassifier),
    "text: packed two-layer bidirectional GRU, final states": _text(text.SentimentFinal),
    "text: masked mean, dictionary of outputs": _text(text.MaskedMean),
    "text: last word by lengths and masks": _text(text.LastWord),
    "text: language model with tied weights": _text(text.LanguageModel),
    "LSTMCell loop": Exhibit(recurrent.CellLoop),
    "stacked GRUCells, outputs assigned": Exhibit(recurrent.StackedCells, (2, 3, 3)),
    "RNNCells from both ends, outputs in lists": Exhibit(recurrent.BothWays),
    "LSTM by hand": Exhibit(recurrent.HandLstm),
    "GRU by hand": Exhibit(lambda: recurrent.HandGru(reset_first=False)),
    "GRU by hand, reset first": Exhibit(lambda: recurrent.HandGru(reset_first=True)),
    "minimal gated unit": Exhibit(recurrent.MinimalGatedUnit),
    "coupled LSTM with layer norm inside": Exhibit(recurrent.CoupledLstm),
    "reservoir under no_grad": Exhibit(recurrent.LeakyReservoir),
    "tagger": Exhibit(recurrent.Tagger, (2, 3, 3)),
    "LSTM autoencoder": _values(recurrent.Autoencoder),
    "sequence to sequence": _values(recurrent.Seq2Seq),
    "regression, squeezed": _values(recurrent.Forecast),
    "GRU with additive attention": Exhibit(layers.AdditiveAttention),
    "LSTM with dot-product attention": Exhibit(layers.DotAttention),
    "LSTM with multi-head attention": Exhibit(layers.SelfAttention, (2, 3, 3)),
    "causal attention by hand": Exhibit(layers.CausalAttention, (2, 3, 3)),
    "transformer encoder": Exhibit(layers.Transformer, (2, 2, 3)),
    "residual LSTM with layer norm": Exhibit(layers.ResidualLstm, (2, 3, 3)),
    "things between two bidirectional layers": Exhibit(layers.Between),
    "CNN-LSTM over images": Exhibit(layers.CnnLstm, (2, 3, 1, 4, 4)),
    "convolutional LSTM over images": Exhibit(layers.ConvLstm, (2, 2, 1, 3, 3)),
    "quasi-recurrent, bilinear": Exhibit(layers.QuasiRecurrent),
    "temporal convolutions with weight norm": Exhibit(layers.Tcn, (2, 5, 3)),
    "gated convolutions": Exhibit(layers.GatedConv),
    "CNN with pooling and batch norm": Exhibit(layers.ConvNet, (2, 1, 6, 6)),
    "depthwise separable CNN": Exhibit(layers.Separable, (2, 2, 4, 4)),
    "speech: logarithm of energies": Exhibit(layers.Speech),
    "up- and downsampling": _values(layers.Upsampler),
    "MLP": Exhibit(layers.Mlp, (2, 6)),
    "many activations": Exhibit(layers.Activations, (2, 6)),
    "highway over windows": Exhibit(layers.Highway),
    "reparametrised weights": Exhibit(layers.Reparametrised),
    "softmax at the end": Exhibit(lambda: _ending(nn.Softmax(dim=-1))),
    "log-softmax at the end": Exhibit(lambda: _ending(nn.LogSoftmax(dim=1))),
    "compiled": Exhibit(_gru, wrap=lambda module: torch.compile(module, backend="eager")),
    "data parallel": Exhibit(_gru, wrap=nn.DataParallel),
    "scripted": Exhibit(recurrent.CellLoop, wrap=torch.jit.script),
    "scripted CNN": Exhibit(layers.ConvNet, (2, 1, 6, 6), wrap=torch.jit.script),
}
