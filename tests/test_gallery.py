"""The gallery: what is read from a module is what it computes, what is proven of it is true, and it is left as it was."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.utils import prune
from torch.nn.utils import rnn as packing

import gallery_text
import popqorn
from gallery import GALLERY, Exhibit
from gallery_recurrent import CellLoop, HandGru, HandLstm, LastStep
from popqorn import Status
from popqorn.readers.calls import Call
from popqorn.readers.models import read_model
from popqorn.readers.network import Reading
from popqorn.sequences import Sequences

SIZES = (0.02, 0.2)
POINTS = 150  # per sample and size
ENDINGS = {
    "softmax at the end": "softmax",
    "log-softmax at the end": "log_softmax",
    "probabilities, squeezed": "softmax",
    "tagger": "log_softmax",
    "text: language model with tied weights": "log_softmax",
}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that several calls of a test read is traced by the first of them: that is most of their time."""
    reader = importlib.import_module("popqorn.readers.exported")
    exported, kept = reader.exported, {}

    def once(call: Call) -> ExportedProgram:
        key = call.module, call.example(1).shape
        if key not in kept:
            kept[key] = exported(call)
        program: ExportedProgram = kept[key]
        return program

    monkeypatch.setattr(reader, "exported", once)


def read(module: nn.Module, inputs: Tensor, *, decides: bool) -> list[tuple[Sequences, Reading]]:
    network = read_model(module)
    return [(group, network.reading(group, decides=decides)) for group in network.sequences(inputs, None, torch.float64)]


@torch.no_grad()
def outputs_of(module: nn.Module, inputs: Tensor, reading: Reading) -> Tensor:
    """The module's first output, flattened; at the vectors of words it is the reading that knows how to ask it."""
    if any(isinstance(part, nn.Embedding) for part in module.modules()) and inputs.dim() == 3:
        return reading.own(inputs)
    found = module.eval()(inputs)
    while not isinstance(found, Tensor):
        found = next(iter(found.values())) if isinstance(found, dict) else found[0]
    return found.reshape(len(inputs), -1)


def around(group: Sequences, size: float, count: int) -> Tensor:
    """Points of the ball around every sample, some of them corners: `[group * count, *sample]`."""
    values = group.values.repeat_interleave(count, 0)
    moved = torch.rand_like(values) * 2 - 1
    moved[::3] = moved[::3].sign()
    return (values + size * moved).reshape(len(values), *group.sample)


def descended(reading: Reading, group: Sequences, size: float, steps: int = 8) -> Tensor:
    """Points of the ball where every output is as small, and as large, as gradients make it: `[group * 2 outputs, *sample]`."""
    sides = torch.cat([torch.eye(reading.tape.outputs), -torch.eye(reading.tape.outputs)]).double()
    center = group.values.repeat_interleave(len(sides), 0)
    aims = sides.repeat(len(group.values), 1)
    points = center
    for step in range(steps):
        points = points.detach().requires_grad_()
        (slope,) = torch.autograd.grad((reading.tape(points) * aims).sum(), points)
        points = points.detach() - 2 * size * (1 - step / steps) * slope.sign()
        points = torch.maximum(torch.minimum(points, center + size), center - size)
    return points.reshape(len(points), *group.sample)


def state_of(module: nn.Module) -> list[Any]:
    """Everything about a module that a call could change."""
    parts = []
    for part in module.modules():
        hooks = {name: list(each) for name, each in vars(part).items() if name.endswith("_hooks")}
        known = [(id(each), each.requires_grad, each.clone()) for each in (*part.parameters(False), *part.buffers(False))]
        flat = [id(each) for each in vars(part).get("_flat_weights", ()) if isinstance(each, nn.Parameter)]
        own = set(vars(part)) if not isinstance(part, torch.jit.ScriptModule) else None
        parts.append((type(part), getattr(part, "training", None), hooks, known, flat, own, vars(part).get("forward")))
    functions = packing.pack_padded_sequence, packing.pad_packed_sequence, gallery_text.pack_padded_sequence
    return [*parts, functions, nn.LSTM.forward, nn.GRU.forward]


def same(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor):
        return torch.equal(before, after)
    if isinstance(before, list | tuple):
        return len(before) == len(after) and all(map(same, before, after))
    return bool(before == after)


@pytest.mark.parametrize("name", GALLERY)
def test_the_tape_is_the_module_and_bounds_hold(name: str) -> None:
    exhibit = GALLERY[name]
    module, inputs = exhibit.module(), exhibit.inputs()
    for part in module.children():
        part.train()
    before = state_of(module)
    sizes = torch.tensor(SIZES, dtype=torch.float64).repeat_interleave(len(inputs))
    found = popqorn.bounds(module, inputs.repeat(len(SIZES), *[1] * (inputs.dim() - 1)), sizes)
    assert same(before, state_of(module)), "a module is left as it was"
    assert set(found.status) == {Status.CERTIFIED}
    assert (found.upper > found.lower).any()
    assert found.lower[: len(inputs)].isfinite().all()
    for group, reading in read(module, inputs, decides=False):
        given = reading.tape(group.values), reading.at_inputs if exhibit.words else outputs_of(module, inputs, reading)
        assert (given[0] - given[1]).abs().max() < 1e-10
        for number, size in enumerate(SIZES):
            places = group.samples + number * len(inputs)
            lower, upper = (side.flatten(1)[places].unsqueeze(1) for side in (found.lower, found.upper))
            for points in (around(group, size, POINTS), descended(reading, group, size)):
                values = outputs_of(module, points, reading)
                read_as = reading.tape(points.reshape(-1, *group.values.shape[1:]))
                assert (read_as - values).abs().max() < 1e-10
                values = values.unflatten(0, (len(places), -1))
                assert (values >= lower - 1e-12).all()
                assert (values <= upper + 1e-12).all()


@pytest.mark.parametrize("name", [name for name in GALLERY if name in ENDINGS])
def test_a_final_softmax_is_left_off_decisions(name: str) -> None:
    module, inputs = GALLERY[name].module(), GALLERY[name].inputs()
    for group, reading in read(module, inputs, decides=True):
        assert reading.left_off == ENDINGS[name]
        values = group.values + torch.randn_like(group.values)
        own = reading.own(values)
        assert (reading.tape(values) - own).abs().max() > 1e-3
        assert (reading.finished(reading.tape(values)) - own).abs().max() < 1e-10
    assert popqorn.verify(module, inputs, 1e-3).settings["left_off"] == ENDINGS[name]


@pytest.mark.parametrize("name", [name for name, exhibit in GALLERY.items() if exhibit.decides][::2])
def test_no_attack_is_below_the_certified_radius(name: str) -> None:
    exhibit: Exhibit = GALLERY[name]
    module, inputs = exhibit.module(), exhibit.inputs()[:1]
    certificate = popqorn.certify(module, inputs, tolerance=0.3)
    assert set(certificate.status) == {Status.CERTIFIED}
    attack = popqorn.attack(module, inputs, method="fgsm")
    assert set(attack.status) <= {Status.BROKEN, Status.UNBROKEN}
    assert (attack.radius >= certificate.radius).all()


# ---- ways to hand a module over --------------------------------------------------------------------------------------------


class WithHead(nn.GRU):
    """A layer of torch's with a head of its own."""

    def __init__(self) -> None:
        super().__init__(3, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(super().forward(x)[0][:, -1])


class Options(nn.Module):
    """Arguments that need no value keep their own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor, max_len: int = 3, lengths: Tensor | None = None) -> dict[str, Tensor]:
        assert lengths is not None
        return {"logits": self.fc(x[:, :max_len].sum(1) / lengths.unsqueeze(1)), "input": x}


def pruned() -> nn.Module:
    module = LastStep(nn.LSTM)
    prune.l1_unstructured(module.rnn, "weight_hh_l0", 0.3)
    return prune.l1_unstructured(module.fc, "weight", 0.3) and module


def hooked() -> nn.Module:
    module = LastStep(nn.GRU)
    module.fc.register_forward_hook(lambda part, given, output: 2 * output + 1)
    return module


def compiled_in_place() -> nn.Module:
    module = LastStep(nn.GRU)
    module.compile(backend="eager")
    return module


def compiled_in_part() -> nn.Module:
    module = LastStep(nn.GRU)
    module.fc = torch.compile(module.fc, backend="eager")
    return module


WAYS: dict[str, Callable[[], nn.Module]] = {
    "as it is": HandLstm,
    "traced": lambda: torch.jit.trace(HandLstm(), torch.randn(1, 4, 3)),
    "frozen": lambda: torch.jit.freeze(torch.jit.script(CellLoop().eval())),
    "scripted in part": lambda: nn.Sequential(torch.jit.script(nn.Linear(3, 3)), nn.Flatten(), nn.Linear(12, 3)),
    "compiled in place": compiled_in_place,
    "compiled in part": compiled_in_part,
    "pruned": pruned,
    "hooked": hooked,
    "subclass of a layer": WithHead,
    "options": Options,
    "half precision": lambda: LastStep(nn.GRU).half(),
}


@pytest.mark.parametrize("name", WAYS)
def test_modules_of_single_precision_are_read_however_they_are_handed_over(name: str) -> None:
    found = popqorn.verify(WAYS[name](), torch.randn(2, 4, 3), 1e-6)
    assert set(found.status) == {Status.CERTIFIED}


# ---- plain networks ----------------------------------------------------------------------------------------------------------


def copied(rnn: nn.RNNBase, weights: list[Tensor]) -> nn.RNNBase:
    """A recurrent layer with weights of others, in torch's order."""
    with torch.no_grad():
        for parameter, weight in zip(rnn.parameters(), weights, strict=True):
            parameter.copy_(weight)
    return rnn


def as_rnn(module: nn.Module) -> nn.RNNBase:
    """torch's layer that does the same as the module's recurrent part."""
    if isinstance(module, LastStep):
        return module.rnn
    if isinstance(module, CellLoop):
        return copied(nn.LSTM(3, 5).double(), list(module.cell.parameters()))
    if isinstance(module, HandLstm):
        hand = module.i2h, module.h2h
        return copied(nn.LSTM(3, 5).double(), [*(each.weight for each in hand), *(each.bias for each in hand)])
    assert isinstance(module, HandGru)
    return copied(nn.GRU(3, 5).double(), [module.w.T, module.u.T, module.b, torch.zeros_like(module.b)])


PLAIN: dict[str, Callable[[], nn.Module]] = {
    "RNN": lambda: LastStep(nn.RNN),
    "RNN with ReLU": lambda: LastStep(nn.RNN, nonlinearity="relu"),
    "LSTM": lambda: LastStep(nn.LSTM),
    "GRU": lambda: LastStep(nn.GRU),
    "LSTMCell loop": CellLoop,
    "LSTM by hand": HandLstm,
    "GRU by hand": lambda: HandGru(reset_first=False),
}


@pytest.mark.parametrize(("name", "norm"), [*((name, float("inf")) for name in PLAIN), ("GRU by hand", 2.0)])
def test_a_plain_network_has_the_radii_of_a_sequence_classifier(name: str, norm: float) -> None:
    module = Exhibit(PLAIN[name]).module()
    inputs = torch.randn(2, 4, 3, dtype=torch.float64)
    classifier = popqorn.SequenceClassifier(as_rnn(module), module.fc)
    assert (classifier(inputs) - module(inputs)).abs().max() < 1e-12
    expected = popqorn.certify(classifier, inputs, norm=norm).radius
    found = popqorn.certify(module, inputs, norm=norm).radius
    assert (expected > 0).all()
    assert ((found - expected).abs() <= 1e-9 * expected).all()
