"""Models in files: what is written is read again, and no file does harm."""

import io
import json
import pickle
import struct
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import popqorn
from popqorn.files.program import _check_expression

FEATURES, CLASSES = 3, 4


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(FEATURES, 5, batch_first=True)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Trap:
    """What a pickle may do: here, leave a mark."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def classifiers() -> dict[str, popqorn.SequenceClassifier]:
    several = nn.Sequential(nn.Linear(5, 6), nn.GELU(), nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, CLASSES, bias=False)))
    both = nn.Sequential(nn.LayerNorm(8), nn.Hardtanh(-0.5, 0.5), nn.Linear(8, CLASSES), nn.LogSoftmax(-1))
    states = torch.randn(2, 3), torch.randn(2, 5)
    return {
        "relu rnn": popqorn.SequenceClassifier(nn.RNN(FEATURES, 5, nonlinearity="relu"), several, "mean"),
        "lstm": popqorn.SequenceClassifier(
            nn.LSTM(FEATURES, 5, 2, proj_size=3, batch_first=True), nn.Linear(3, CLASSES), "max", states
        ),
        "gru": popqorn.SequenceClassifier(nn.GRU(FEATURES, 4, 2, bidirectional=True, bias=False), both, "final"),
        "steps": popqorn.SequenceClassifier(nn.RNN(FEATURES, 4), nn.Linear(4, CLASSES), None),
    }


@pytest.mark.parametrize("kind", ["relu rnn", "lstm", "gru", "steps"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_saved_is_loaded(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = classifiers()[kind].to(dtype).eval()
    popqorn.save(model, tmp_path / "model.safetensors")
    again = popqorn.load(tmp_path / "model.safetensors")
    assert isinstance(again, popqorn.SequenceClassifier)
    assert not again.training
    inputs = torch.randn(3, 4, FEATURES, dtype=dtype)
    assert torch.equal(again(inputs), model(inputs))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert str(again) == str(model)


def test_programs_are_read(tmp_path: Path) -> None:
    model = Plain().eval()
    inputs = torch.randn(2, 4, FEATURES)
    expected = popqorn.certify(model, inputs).radius
    batches = {"open": (inputs, {0: torch.export.Dim("batch")}), "one": (inputs[:1], None)}
    for name, (example, open_sizes) in batches.items():
        program = torch.export.export(model, (example,), dynamic_shapes=None if open_sizes is None else (open_sizes,))
        torch.export.save(program, tmp_path / f"{name}.pt2")
        loaded = popqorn.load(tmp_path / f"{name}.pt2")
        torch.testing.assert_close(popqorn.certify(loaded, inputs).radius, expected, rtol=1e-9, atol=0)


def test_only_what_can_be_written_is(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(TypeError, match=r"model is a Plain; .*\.pt2"):
        popqorn.save(Plain(), path)
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        popqorn.save(classifiers()["steps"], tmp_path / "model.pt")
    odd = popqorn.SequenceClassifier(nn.RNN(FEATURES, 4), nn.PReLU())
    with pytest.raises(TypeError, match="its head holds a PReLU"):
        popqorn.save(odd, path)
    tied = popqorn.SequenceClassifier(nn.utils.parametrizations.weight_norm(nn.RNN(FEATURES, 4), "weight_hh_l0"), nn.Linear(4, 2))
    with pytest.raises(TypeError, match="its rnn is a Parametrized"):
        popqorn.save(tied, path)
    assert not path.exists()


# ---- bad files ---------------------------------------------------------------------------------------------------------------


def described(**changes: Any) -> dict[str, str]:
    rnn = {
        "kind": "RNN",
        "input_size": 2,
        "hidden_size": 3,
        "num_layers": 1,
        "bias": True,
        "batch_first": False,
        "bidirectional": False,
        "proj_size": 0,
        "nonlinearity": "tanh",
    }
    head = [{"kind": "Linear", "in_features": 3, "out_features": 2, "bias": True}]
    about: dict[str, Any] = {"format": 1, "rnn": rnn, "head": head, "pooling": "last", **changes}
    about["rnn"] = {**rnn, **changes.get("rnn", {})}
    return {"popqorn": json.dumps(about)}


def safetensors_with(metadata: dict[str, str] | None) -> Callable[[Path], None]:
    model = popqorn.SequenceClassifier(nn.RNN(2, 3), nn.Linear(3, 2))
    return lambda path: save_file(model.state_dict(), path, metadata=metadata)


def header(claimed: int, text: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(struct.pack("<Q", claimed) + text) and None


def zipped(**parts: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in parts.items():
                archive.writestr(name.replace("__", "/"), content)

    return write


def program_with(change: Callable[[dict[str, bytes]], None]) -> Callable[[Path], None]:
    """A program of torch.export with some of its parts exchanged."""

    def write(path: Path) -> None:
        plain = path.with_name("plain.pt2")
        program = torch.export.export(Plain().eval(), (torch.zeros(1, 4, FEATURES),))
        torch.export.save(program, plain)
        with zipfile.ZipFile(plain) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        change(parts)
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, content)

    return write


def pickled(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def pickle_weights(parts: dict[str, bytes]) -> None:
    (name,) = (name for name in parts if name.endswith("weights_config.json"))
    about = json.loads(parts[name])
    next(iter(about["config"].values()))["use_pickle"] = True
    parts[name] = json.dumps(about).encode()


def pickle_example(parts: dict[str, bytes]) -> None:
    (name,) = (name for name in parts if "sample_inputs" in name)
    parts[name] = pickled(Trap(Path("mark")))


def add_library(parts: dict[str, bytes]) -> None:
    parts["plain/data/aotinductor/model/wrapper.so"] = b"\x7fELF"


def evaluate(text: str) -> Callable[[Path], None]:
    def change(parts: dict[str, bytes]) -> None:
        (name,) = (name for name in parts if name.endswith("models/model.json"))
        about = json.loads(parts[name])
        about["range_constraints"] = {"s0": {"expr_str": text}}
        parts[name] = json.dumps(about).encode()

    return program_with(change)


def call_something_else(parts: dict[str, bytes]) -> None:
    (name,) = (name for name in parts if name.endswith("models/model.json"))
    parts[name] = parts[name].replace(b"torch.ops.aten.linear.default", b"torch.nn.functional.linear")


# Formulas that sympy would compute with for hours, or to the end of the memory.
ENDLESS = {
    "powers": "9**9**9**9",
    "powers by name": "Pow(Integer(9), Pow(Integer(9), Integer(9)))",
    "a power of a power": "Pow(Pow(Pow(Pow(Integer(9), 60), 60), 60), 60)",
    "powers of powers": "((((9**60)**60)**60)**60)**60",
    "powers by another sign": "9^9^9^9",
    "a power by an argument's name": "Pow(Integer(9), e=9**9)",
    "a negative power": "9**-(9**9)",
    "a shift": "1 << 10000000000",
    "a text many times over": "'s' * 10000000000",
    "bytes many times over": "b's' * 10000000000",
    "a long sum": "+".join(["s0"] * 100_000),
}


def cut(path: Path) -> None:
    program_with(lambda parts: None)(path)
    path.write_bytes(path.with_name("plain.pt2").read_bytes()[:-200])


def in_training_mode(path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).train()
    torch.export.save(torch.export.export(module, (torch.zeros(1, 4),)), path)


def of_any_size(path: Path) -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(2 * x.shape[0], 2).reshape(x.shape[0], 4)

    program = torch.export.export(Doubled(), (torch.zeros(2, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, path)


HUGE = json.dumps({"w": {"dtype": "F64", "shape": [10**6, 10**6], "data_offsets": [0, 8 * 10**12]}}).encode()
BAD: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "empty": ("a.safetensors", lambda path: path.write_bytes(b""), "is empty; download it again"),
    "git-lfs pointer": (
        "a.safetensors",
        lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
        "pointer of git-lfs.*git lfs pull",
    ),
    "text": ("a.safetensors", lambda path: path.write_text("hello, this is no model at all"), "no safetensors file"),
    "truncated": ("a.safetensors", header(1000, b'{"w":'), "no safetensors file, or a damaged one"),
    "huge header": ("a.safetensors", header(2**62, b"{}"), "no safetensors file, or a damaged one"),
    "huge claimed shapes": ("a.safetensors", header(len(HUGE), HUGE), "no safetensors file, or a damaged one"),
    "weights alone": ("a.safetensors", safetensors_with(None), "holds weights without an architecture; build your module"),
    "another version": ("a.safetensors", safetensors_with(described(format=7)), "format 7.*reads 1; write it again"),
    "unknown cell": ("a.safetensors", safetensors_with(described(rnn={"kind": "os.system"})), "describes no model"),
    "huge architecture": ("a.safetensors", safetensors_with(described(rnn={"hidden_size": 10**9})), "hidden_size is 1000000000"),
    "other sizes": ("a.safetensors", safetensors_with(described(rnn={"hidden_size": 50_000})), "asks for"),
    "many layers": (
        "a.safetensors",
        safetensors_with(described(rnn={"num_layers": 10**6 - 1})),
        "num_layers is 999999, but it holds the weights of 1",
    ),
    "unknown head": (
        "a.safetensors",
        safetensors_with(described(head=[{"kind": "Module"}])),
        "describes no model .*its head holds",
    ),
    "pickle": ("a.pt", lambda path: path.write_bytes(pickle.dumps(Trap(Path("mark")))), "is a pickle.*weights_only=True"),
    "pickle in disguise": (
        "a.safetensors",
        lambda path: path.write_bytes(pickle.dumps(Trap(Path("mark")))),
        "no safetensors file, or a damaged one",
    ),
    "torch pickle as program": ("a.pt2", lambda path: path.write_bytes(pickled(Trap(Path("mark")))), "may hold code"),
    "no archive": ("a.pt2", lambda path: path.write_bytes(b"PK\x03\x04 no, not really"), "no program of torch.export"),
    "zip bomb": ("a.pt2", zipped(a__byteorder=b"0" * 50_000_000), "unpacks to 50,000,000 bytes"),
    "pickled weights": ("a.pt2", program_with(pickle_weights), "has a pickled part"),
    "pickled example": ("a.pt2", program_with(pickle_example), "is refused"),
    "library": ("a.pt2", program_with(add_library), "may hold code"),
    "evaluated text": ("a.pt2", evaluate("__import__('pathlib').Path('mark').touch()"), "holds the expression"),
    **{f"formula: {name}": ("a.pt2", evaluate(text), "holds the expression") for name, text in ENDLESS.items()},
    "no operator": ("a.pt2", program_with(call_something_else), "is not an allowed operator type"),
    "arithmetic of sizes": ("a.pt2", of_any_size, "calls <built-in function mul>, .* export it for one sample"),
    "cut off": ("a.pt2", cut, "or a damaged or truncated one; export it again"),
    "training mode": ("a.pt2", in_training_mode, r"exported in training mode \(aten.dropout.default\); call module.eval\(\)"),
    "unknown kind": ("a.h5", lambda path: path.write_bytes(b"x"), r"of no kind that can be read; pass a \.onnx"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file, write, message = BAD[name]
    write(tmp_path / file)
    with pytest.raises(ValueError, match=message):
        popqorn.load(tmp_path / file)
    assert not (tmp_path / "mark").exists(), "the file has executed code"


@pytest.mark.parametrize(
    "text", ["s0", "2*s0 + 1", "Add(Symbol('s0', positive=True), Integer(-1))", "s0**2", "Pow(s0, Integer(-1))"]
)
def test_formulas_of_sizes_are_read(text: str) -> None:
    _check_expression("model.json", text)


def test_files_that_are_not_there() -> None:
    with pytest.raises(ValueError, match=r"path: 'nowhere.onnx' does not exist"):
        popqorn.load("nowhere.onnx")
    with pytest.raises(ValueError, match="is a folder"):
        popqorn.load(Path(__file__).parent)
    with pytest.raises(ValueError, match="path is 7; pass the name of a file"):
        popqorn.load(7)


def test_programs_of_token_ids_are_refused(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2)).eval()
    torch.export.save(torch.export.export(module, (torch.zeros(1, 3, dtype=torch.long),)), tmp_path / "text.pt2")
    with pytest.raises(TypeError, match=r"takes torch.int64, such as token ids, .* must take the words' vectors"):
        popqorn.load(tmp_path / "text.pt2")


def test_folders_that_are_not_there_are_told(tmp_path: Path) -> None:
    model = classifiers()["steps"]
    with pytest.raises(ValueError, match=r"there is no folder '.*nowhere'; make it first"):
        popqorn.save(model, tmp_path / "nowhere" / "model.safetensors")
    with pytest.raises(ValueError, match="path is None; pass the name of a file"):
        popqorn.save(model, None)


def test_options_of_onnx_files_are_refused_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    popqorn.save(classifiers()["steps"], path)
    with pytest.raises(ValueError, match=r"frames and batch_axis given, but model\.safetensors is no ONNX file"):
        popqorn.load(path, frames=3, batch_axis=1)


def test_huge_claims_take_no_memory_and_no_time(tmp_path: Path) -> None:
    """In a process of its own, with little memory to spare."""
    names = ["huge header", "huge claimed shapes", "huge architecture", "other sizes", "many layers", "zip bomb"]
    names += [name for name in BAD if name.startswith("formula")]
    for number, name in enumerate(names):
        file, write, _ = BAD[name]
        (tmp_path / str(number)).mkdir()
        write(tmp_path / str(number) / file)
    script = f"""
        import resource, sys, time
        from pathlib import Path
        import popqorn, safetensors, torch
        from torch import export
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for path in sorted(Path({str(tmp_path)!r}).glob("*/a.*")):
            started = time.perf_counter()
            try:
                popqorn.load(path)
                sys.exit(f"{{path}} was loaded")
            except ValueError:
                took = time.perf_counter() - started
                more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used
                assert took < 1 and more < 500_000, (path, took, more)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=120)
