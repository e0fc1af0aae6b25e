"""Recurrent modules as people write them."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

FEATURES, HIDDEN, CLASSES = 3, 5, 3


class EcgNet(nn.Module):
    """A convolution in front, two bidirectional layers, mean over time, batch norm in the head."""

    def __init__(self, leads: int = FEATURES, hidden: int = 3) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(leads, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(inplace=True))
        self.gru = nn.GRU(4, hidden, num_layers=2, batch_first=True, bidirectional=True, dropout=0.3)
        self.head = nn.Sequential(nn.BatchNorm1d(2 * hidden), nn.Dropout(0.5), nn.Linear(2 * hidden, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x.permute(0, 2, 1)).permute(0, 2, 1)
        out, _ = self.gru(x)
        return self.head(out.mean(dim=1))


class LastStep(nn.Module):
    """The first network of every tutorial."""

    def __init__(self, cell: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.rnn = cell(FEATURES, HIDDEN, batch_first=True, **options)
        self.fc = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.fc(out[:, -1, :])


class ZeroStates(nn.Module):
    """Initial states made by hand, the sequence first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.hidden = 2, 4
        self.lstm = nn.LSTM(FEATURES, self.hidden, self.layers)
        self.fc = nn.Linear(self.hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h0 = torch.zeros(self.layers, x.size(0), self.hidden, dtype=x.dtype).to(x.device)
        c0 = x.new_zeros(self.layers, x.size(0), self.hidden)
        _, (h_n, _) = self.lstm(x.transpose(0, 1), (h0, c0))
        return self.fc(F.dropout(h_n[-1], p=0.5, training=self.training))


class Last(nn.Module):
    def forward(self, outputs: tuple[Tensor, Tensor]) -> Tensor:
        return outputs[0][:, -1]


def sequential() -> nn.Module:
    """No class of one's own but the one that takes the last step."""
    return nn.Sequential(
        nn.Linear(FEATURES, 4),
        nn.Tanh(),
        nn.GRU(4, HIDDEN, batch_first=True),
        Last(),
        nn.RMSNorm(HIDDEN),
        nn.Dropout(0.1),
        nn.Linear(HIDDEN, CLASSES),
    )


class Probabilities(nn.Module):
    """Squeezed in every direction."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(FEATURES, HIDDEN, batch_first=True)
        self.fc = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.fc(self.rnn(x)[0][:, -1:]).squeeze(), dim=-1)


class LearnedState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h0 = nn.Parameter(torch.randn(1, 1, HIDDEN))
        self.gru = nn.GRU(FEATURES, HIDDEN, batch_first=True)
        self.fc = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        _, h = self.gru(x, self.h0.expand(-1, len(x), -1).contiguous())
        return self.fc(h.squeeze(0))


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, 6, proj_size=3, bias=False)
        self.fc = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.lstm(torch.einsum("btf->tbf", x))
        return self.fc(output[-1])


# ---- cells in loops --------------------------------------------------------------------------------------------------------


class CellLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(FEATURES, HIDDEN)
        self.fc = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.size(0), self.cell.hidden_size, dtype=x.dtype, device=x.device)
        c = torch.zeros_like(h)
        for t in range(x.size(1)):
            h, c = self.cell(x[:, t], (h, c))
        return self.fc(h)


class StackedCells(nn.Module):
    """Outputs assigned into a tensor of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.GRUCell(FEATURES, 4), nn.GRUCell(4, 4)])
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, _ = x.shape
        states = [x.new_zeros(batch, 4) for _ in self.cells]
        out = torch.zeros(batch, steps, 4).to(x)
        for t in range(steps):
            below = x[:, t, :]
            for k, cell in enumerate(self.cells):
                states[k] = below = cell(below, states[k])
            out[:, t] = below
        return self.fc(out.mean(1))


class BothWays(nn.Module):
    """Two cells, one from each end, time first; outputs in lists."""

    def __init__(self) -> None:
        super().__init__()
        self.fwd = nn.RNNCell(FEATURES, 4)
        self.bwd = nn.RNNCell(FEATURES, 4, nonlinearity="relu")
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        forwards, backwards = [], []
        h = b = None
        for step, back in zip(x.unbind(1), x.flip(1).unbind(1), strict=True):
            h, b = self.fwd(step, h), self.bwd(back, b)
            forwards.append(h)
            backwards.insert(0, b)
        both = torch.cat([torch.stack(forwards), torch.stack(backwards)], dim=2)
        return self.fc(both.amax(dim=0))


# ---- written by hand -------------------------------------------------------------------------------------------------------


class HandLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.i2h = nn.Linear(FEATURES, 4 * HIDDEN)
        self.h2h = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.fc = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[0], HIDDEN, dtype=x.dtype)
        for frame in x.unbind(dim=1):
            i, f, g, o = (self.i2h(frame) + self.h2h(h)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.fc(h)


class HandGru(nn.Module):
    """With parameters of its own, matrix products and `1 - z`."""

    def __init__(self, reset_first: bool) -> None:
        super().__init__()
        self.reset_first = reset_first
        self.w = nn.Parameter(torch.randn(FEATURES, 3 * HIDDEN) / 2)
        self.u = nn.Parameter(torch.randn(HIDDEN, 3 * HIDDEN) / 2)
        self.b = nn.Parameter(torch.randn(3 * HIDDEN) / 2)
        self.fc = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros((x.shape[0], HIDDEN))
        wx = x @ self.w + self.b
        ur, uz, un = torch.split(self.u, HIDDEN, dim=1)
        for t in range(x.shape[1]):
            xr, xz, xn = wx[:, t].split(HIDDEN, -1)
            z = torch.sigmoid(xz + h @ uz)
            r = (xr + torch.mm(h, ur)).sigmoid()
            n = torch.tanh(xn + ((r * h).matmul(un) if self.reset_first else r * (h @ un)))
            h = (1 - z) * n + z * h
        return self.fc(h)


class MinimalGatedUnit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(FEATURES + HIDDEN, HIDDEN)
        self.new = nn.Linear(FEATURES + HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)
        self.register_buffer("start", torch.zeros(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        h = self.start.repeat(x.size(0), 1)
        for xt in torch.unbind(x, 1):
            f = F.sigmoid(self.gate(torch.hstack([xt, h])))
            h = h + f * (F.tanh(self.new(torch.cat([xt, f * h], dim=-1))) - h)
        return self.head(h)


class CoupledLstm(nn.Module):
    """One gate forgets what it lets in; layer norm inside the cell."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Linear(FEATURES, 3 * 4, bias=False)
        self.h = nn.Linear(4, 3 * 4)
        self.norm = nn.LayerNorm(4)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h, c = (torch.zeros(x.size(0), 4).type_as(x) for _ in range(2))
        for t in range(x.size(1)):
            f, g, o = (self.x(x.select(1, t)) + self.h(h)).view(-1, 3, 4).unbind(1)
            f = f.sigmoid()
            c = torch.lerp(g.tanh(), c, f)
            h = o.sigmoid() * self.norm(c).tanh()
        return self.fc(h)


class LeakyReservoir(nn.Module):
    """A fixed random network; only the readout is trained."""

    def __init__(self, leak: float = 0.4) -> None:
        super().__init__()
        self.leak = leak
        self.register_buffer("win", torch.randn(6, FEATURES))
        self.register_buffer("wres", torch.randn(6, 6) / 3)
        self.readout = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = torch.zeros(len(x), 6, dtype=x.dtype)
            for t in range(x.shape[1]):
                fresh = (F.linear(x[:, t], self.win) + F.linear(h, self.wres)).tanh_()
                h = h.mul(1 - self.leak).add_(fresh, alpha=self.leak)
        return self.readout(h)


# ---- outputs at every step, encoders and decoders --------------------------------------------------------------------------


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, 4, bidirectional=True, batch_first=True)
        self.hidden2tag = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        batch_size, seq_len, _ = x.size()
        lstm_out, _ = self.lstm(x)
        tags = self.hidden2tag(lstm_out.reshape(-1, lstm_out.size(-1)))
        return F.log_softmax(tags, dim=1).view(batch_size, seq_len, -1)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(FEATURES, 4, batch_first=True)
        self.decoder = nn.LSTM(4, 4, batch_first=True)
        self.output_layer = nn.Linear(4, FEATURES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        _, (hidden, _) = self.encoder(x)
        repeated = hidden[-1].unsqueeze(1).repeat(1, x.size(1), 1)
        decoded, _ = self.decoder(repeated)
        return self.output_layer(decoded), hidden[-1]


class Seq2Seq(nn.Module):
    """The decoder sees the context at every step, and what it said before."""

    def __init__(self, horizon: int = 3) -> None:
        super().__init__()
        self.horizon = horizon
        self.encoder = nn.GRU(FEATURES, 4, batch_first=True)
        self.decoder = nn.GRUCell(4 + 1, 4)
        self.readout = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        _, h = self.encoder(x)
        context = h[-1]
        state, y = context, x[:, -1, :1]
        predictions = []
        for _ in range(self.horizon):
            state = self.decoder(torch.cat([y, context], dim=1), state)
            y = self.readout(state)
            predictions.append(y)
        return torch.stack(predictions, dim=1).squeeze(-1)


class Forecast(nn.Module):
    """One number; normalised inside by stored statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(FEATURES))
        self.register_buffer("std", torch.rand(FEATURES) + 0.5)
        self.lstm = nn.LSTM(FEATURES, 4, 2, batch_first=True)
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) / self.std
        _, (h, _) = self.lstm(x)
        return self.linear(h[-1]).squeeze() * self.std[0] + self.mean[0]
