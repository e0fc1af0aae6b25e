"""Modules as people write them: attention, convolutions, normalisation, reparametrised and wrapped layers."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrize, spectral_norm, weight_norm
from torch.nn.utils.parametrizations import spectral_norm as new_spectral_norm
from torch.nn.utils.parametrizations import weight_norm as new_weight_norm

FEATURES, HIDDEN, CLASSES = 3, 4, 3


# ---- attention -------------------------------------------------------------------------------------------------------------


class AdditiveAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(FEATURES, HIDDEN, batch_first=True, bidirectional=True)
        self.attn = nn.Linear(2 * HIDDEN, 4)
        self.v = nn.Linear(4, 1, bias=False)
        self.fc = nn.Linear(2 * HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out, _ = self.gru(x)
        weights = torch.softmax(self.v(torch.tanh(self.attn(out))), dim=1)
        context = torch.sum(weights * out, dim=1)
        return self.fc(context), weights.squeeze(-1)


class DotAttention(nn.Module):
    """The last state asks all outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, HIDDEN)
        self.fc = nn.Linear(2 * HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out, (h, _) = self.lstm(x.permute(1, 0, 2))
        out = out.permute(1, 0, 2)
        query = h[-1].unsqueeze(2)
        scores = torch.bmm(out, query).squeeze(2) / math.sqrt(out.size(-1))
        attended = torch.bmm(F.softmax(scores, dim=-1).unsqueeze(1), out).squeeze(1)
        return self.fc(torch.cat([attended, query.squeeze(2)], dim=-1))


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, 4, batch_first=True)
        self.attention = nn.MultiheadAttention(4, num_heads=2, batch_first=True)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(x)
        attended, _ = self.attention(out, out, out, need_weights=False)
        return self.fc(attended.mean(dim=1))


class CausalAttention(nn.Module):
    """A mask over later positions, heads by reshaping."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Linear(FEATURES, 4)
        self.qkv = nn.Linear(4, 12)
        self.out = nn.Linear(4, CLASSES)
        self.register_buffer("positions", torch.randn(16, 4) / 2)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        x = self.embed(x) + self.positions[:t]
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        scores = (q @ k.transpose(-2, -1) / k.size(-1) ** 0.5).masked_fill(mask, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.out(F.relu(x + mixed)[:, -1])


class Transformer(nn.Module):
    """torch's own encoder layer, with learned positions and a token of its own in front."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Embedding(8, 4)
        self.encoder = nn.TransformerEncoderLayer(4, nhead=1, dim_feedforward=6, batch_first=True, norm_first=True)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), self.embed(x)], dim=1)
        x = x + self.positions(torch.arange(x.size(1), device=x.device))
        return self.fc(self.encoder(x)[:, 0])


class ResidualLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(FEATURES, HIDDEN)
        self.layers = nn.ModuleList(nn.LSTM(HIDDEN, HIDDEN, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))
        self.fc = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(x)
        for lstm, norm in zip(self.layers, self.norms, strict=True):
            x = norm(x + lstm(x)[0])
        return self.fc(x[:, -1])


class Between(nn.Module):
    """Something else between the layers, and two kinds of cells."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(FEATURES, 3, bidirectional=True, batch_first=True)
        self.act = nn.PReLU()
        self.down = nn.AvgPool1d(2)
        self.second = nn.GRU(6, 3, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x)[0])
        x = self.down(x.transpose(1, 2)).transpose(1, 2)
        x, _ = self.second(x)
        return self.fc(torch.cat([x[:, -1], x.min(dim=1).values], dim=1))


# ---- convolutions ----------------------------------------------------------------------------------------------------------


class CnnLstm(nn.Module):
    """Images of a video, one by one through a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2), nn.Flatten())
        self.lstm = nn.LSTM(2 * 2 * 2, HIDDEN, batch_first=True)
        self.fc = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        batch_size, timesteps, c, h, w = x.size()
        features = self.cnn(x.view(batch_size * timesteps, c, h, w))
        out, _ = self.lstm(features.view(batch_size, timesteps, -1))
        return self.fc(out[:, -1, :])


class Chomp(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : -self.size].contiguous()


class Tcn(nn.Module):
    """Dilated causal convolutions with weight norm and residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        self.skips = nn.ModuleList()
        for level, (before, after) in enumerate(((FEATURES, 4), (4, 4))):
            reach = 2**level
            conv = weight_norm(nn.Conv1d(before, after, 2, padding=reach, dilation=reach))
            self.blocks.append(nn.Sequential(conv, Chomp(reach), nn.ReLU(), nn.Dropout(0.2)))
            self.skips.append(nn.Conv1d(before, after, 1) if before != after else nn.Identity())
        self.linear = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2)
        for block, skip in zip(self.blocks, self.skips, strict=True):
            y = F.relu(block(y) + skip(y))
        return self.linear(y[:, :, -1])


class GatedConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(FEATURES, 8, 3)
        self.gate = nn.Conv1d(4, 8, 1)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x.transpose(1, 2), (2, 0))
        x = F.glu(self.conv(x), dim=1)
        a, b = self.gate(x).chunk(2, dim=1)
        x = torch.tanh(a) * torch.sigmoid(b) + x
        return self.fc(F.adaptive_avg_pool1d(x, 1).squeeze(-1))


class ConvNet(nn.Module):
    """Images; maxima, means and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1, bias=False),
            nn.BatchNorm2d(3),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.LeakyReLU(0.1, inplace=True),
            nn.AdaptiveAvgPool2d((1, 1)),
        )
        self.classifier = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.classifier(x.view(x.size(0), -1))


class Separable(nn.Module):
    """Depthwise and pointwise, with squeeze and excitation, ReLU6 and hard-swish."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(2, 2, 3, padding="same", groups=2)
        self.pointwise = nn.Conv2d(2, 4, 1)
        self.squeeze = nn.Linear(4, 4)
        self.fc = nn.Linear(4 * 2 * 2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.pointwise(F.relu6(self.depthwise(x))))
        x = x * F.hardsigmoid(self.squeeze(x.mean((2, 3))))[..., None, None]
        return self.fc(torch.flatten(F.avg_pool2d(x, 2), 1))


class ConvLstm(nn.Module):
    """An LSTM whose states are images."""

    def __init__(self, channels: int = 2) -> None:
        super().__init__()
        self.channels = channels
        self.conv = nn.Conv2d(1 + channels, 4 * channels, 3, padding=1)
        self.fc = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _, height, width = x.shape
        h = torch.zeros(b, self.channels, height, width, dtype=x.dtype)
        c = torch.zeros_like(h)
        for k in range(t):
            gates = self.conv(torch.cat((x[:, k], h), dim=1))
            i, f, o, g = torch.split(gates, self.channels, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.fc(h.mean(dim=[2, 3]))


class QuasiRecurrent(nn.Module):
    """Gates by convolution, states by a running sum; two views of it compared by a bilinear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(FEATURES, 8, 2)
        self.compare = nn.Bilinear(4, 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z, f = self.conv(F.pad(x.transpose(1, 2), [1, 0])).chunk(2, 1)
        states = torch.cumsum(torch.tanh(z) * torch.sigmoid(f), dim=2)
        return self.compare(states[..., -1], torch.logsumexp(states, dim=-1))


class Speech(nn.Module):
    """The logarithm of energies in bands, spliced frames, then a recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.bank = nn.Parameter(torch.rand(FEATURES, 4), requires_grad=False)
        self.norm = nn.GroupNorm(1, 8)
        self.gru = nn.GRU(8, HIDDEN, batch_first=True)
        self.fc = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        energy = torch.log(x.pow(2) @ self.bank + 1e-2)
        delta = energy[:, 1:] - energy[:, :-1]
        spliced = torch.cat([energy[:, 1:], delta], dim=2)
        spliced = self.norm(spliced.transpose(1, 2)).transpose(1, 2)
        return self.fc(self.gru(spliced)[1][0])


class Upsampler(nn.Module):
    """A small U: down, up by a transposed convolution, and joined; every sample is a value."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv1d(FEATURES, 4, 2, stride=2)
        self.norm = nn.InstanceNorm1d(4, affine=True)
        self.up = nn.ConvTranspose1d(4, 3, 2, stride=2)
        self.last = nn.Conv1d(3 + FEATURES, 1, 3, padding=1, padding_mode="replicate")

    def forward(self, x: Tensor) -> Tensor:
        x = x.mT
        y = F.elu(self.norm(self.down(x)))
        y = F.silu(self.up(y))
        return self.last(torch.cat((x, y), 1))[:, 0]


# ---- no recurrence ---------------------------------------------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 8)
        self.fc2 = nn.Linear(8, 8)
        self.fc3 = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.size(0), -1)
        x = F.relu(self.fc1(x), inplace=True)
        x = F.dropout(x, 0.2, self.training)
        return self.fc3(F.relu_(self.fc2(x)))


class Activations(nn.Module):
    """One after the other, with a slope for every channel."""

    def __init__(self) -> None:
        super().__init__()
        kinds = (nn.GELU(), nn.Mish(), nn.SELU(), nn.Softplus(), nn.PReLU(4), nn.Hardsigmoid(), nn.Hardtanh(), nn.Softsign())
        kinds = (*kinds, nn.CELU(0.7), nn.LogSigmoid(), nn.Tanhshrink(), nn.GELU("tanh"))
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(6, 4), kind) for kind in kinds)
        with torch.no_grad():
            self.parts[4][1].weight.copy_(torch.tensor([0.1, -0.2, 0.5, 1.5]))
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        total = 0
        for part in self.parts:
            total = total + part(x)
        return self.fc(total / len(self.parts))


class Highway(nn.Module):
    """Windows of the sequence side by side, mixed by gates; cast to and fro."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2 * FEATURES, 4)
        self.gate = nn.Linear(4, 4)
        self.change = nn.Linear(4, 4)
        self.fc = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        windows = x.unfold(1, 2, 1).permute(0, 1, 3, 2).flatten(2)
        y = self.embed(windows.to(self.embed.weight.dtype)).type_as(x)
        t = torch.sigmoid(self.gate(y))
        y = t * F.relu(self.change(y)) + (1.0 - t) * y
        return self.fc(F.normalize(y.sum(dim=1) + 2, dim=-1))


# ---- reparametrised --------------------------------------------------------------------------------------------------------


class Positive(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return F.softplus(weight)


class Reparametrised(nn.Module):
    """Weight norm of both styles, spectral norm of both styles, and a parametrisation of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = new_weight_norm(nn.LSTM(FEATURES, HIDDEN, batch_first=True), "weight_hh_l0")
        self.fc1 = weight_norm(nn.Linear(HIDDEN, 4))
        self.fc2 = new_spectral_norm(nn.Linear(4, 4))
        self.fc3 = spectral_norm(nn.Linear(4, 4))
        self.fc4 = nn.Linear(4, CLASSES)
        parametrize.register_parametrization(self.fc4, "weight", Positive())

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.lstm(x)
        return self.fc4(torch.tanh(self.fc3(torch.tanh(self.fc2(torch.relu(self.fc1(h[-1])))))))
