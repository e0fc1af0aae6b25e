"""Our own files: a `SequenceClassifier` as one safetensors file, its architecture in the header."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from popqorn.readers.classifier import SequenceClassifier

FORMAT = 1
KEY = "popqorn"
_RNN = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "bidirectional", "proj_size")
# Modules of heads: what their constructors take, by the names of their attributes.
_HEADS: dict[str, tuple[str, ...]] = {
    "Linear": ("in_features", "out_features"),
    "ReLU": (),
    "LeakyReLU": ("negative_slope",),
    "Tanh": (),
    "Sigmoid": (),
    "ELU": ("alpha",),
    "SiLU": (),
    "GELU": ("approximate",),
    "Softplus": ("beta", "threshold"),
    "Hardtanh": ("min_val", "max_val"),
    "Hardswish": (),
    "Mish": (),
    "Softsign": (),
    "Dropout": ("p",),
    "Identity": (),
    "Flatten": ("start_dim", "end_dim"),
    "BatchNorm1d": ("num_features", "eps"),
    "LayerNorm": ("normalized_shape", "eps"),
    "Softmax": ("dim",),
    "LogSoftmax": ("dim",),
}


def save_own(model: nn.Module, path: Path) -> None:
    """Write a model; other modules than a `SequenceClassifier` have formats of their own that `load` reads."""
    from safetensors.torch import save_file

    if path.suffix.lower() != ".safetensors":
        raise ValueError(f"path is {str(path)!r}; its name must end in .safetensors")
    if not path.parent.is_dir():
        raise ValueError(f"path is {str(path)!r}, but there is no folder {str(path.parent)!r}; make it first")
    if type(model) is not SequenceClassifier:
        raise TypeError(
            f"model is a {type(model).__name__}; popqorn.save writes a SequenceClassifier. popqorn.load also reads what "
            "torch.export.save (.pt2) and torch.onnx.export (.onnx) write: use one of those"
        )
    about = {"format": FORMAT, "rnn": _described_rnn(model.rnn), "head": _described(model.head), "pooling": model.pooling}
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in model.state_dict().items()}
    unfinished = path.with_name(path.name + ".part")
    save_file(tensors, unfinished, metadata={KEY: json.dumps(about)})
    unfinished.replace(path)


def load_own(path: Path) -> SequenceClassifier:
    """Read a model; shapes in the file are compared with those of the architecture before anything is built."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            model = _blank(metadata, shapes, path)
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in shapes}
    except (SafetensorError, OSError, MemoryError) as error:
        raise ValueError(f"path: {str(path)!r} is no safetensors file, or a damaged one ({error}); write it again") from error
    model.load_state_dict(tensors, assign=True)
    like = next(iter(tensors.values()))
    for name, state in model.named_buffers():
        if state.is_meta:  # zeros, which are not written
            setattr(model, name, torch.zeros(state.shape, dtype=like.dtype))
    return model.eval()


def _blank(metadata: dict[str, str], shapes: dict[str, tuple[int, ...]], path: Path) -> SequenceClassifier:
    """The architecture without memory for its weights, of the same shapes as those in the file."""
    if KEY not in metadata:
        raise ValueError(
            f"path: {str(path)!r} holds weights without an architecture; build your module, load them into it and pass it, or "
            "write the file with popqorn.save"
        )
    try:
        about = json.loads(metadata[KEY])
        version = about["format"]
        if version != FORMAT:
            raise ValueError(f"it is of format {version}, this version of popqorn reads {FORMAT}; write it again")
        with torch.device("meta"):
            rnn = _rebuilt_rnn(about["rnn"], sum(name.startswith("rnn.weight_ih_l") for name in shapes))
            names = ("initial_hidden", "initial_cell")
            states = tuple(torch.empty(shapes[name]) for name in names if name in shapes)
            initial = None if not states else states[0] if len(states) == 1 else (states[0], states[1])
            model = SequenceClassifier(rnn, _rebuilt(about["head"]), about["pooling"], initial)
    except (KeyError, TypeError, ValueError, RuntimeError, json.JSONDecodeError) as error:
        raise ValueError(f"path: {str(path)!r} describes no model ({error}); write it with popqorn.save") from error
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if wanted != shapes:
        odd = sorted(name for name in {*wanted, *shapes} if wanted.get(name) != shapes.get(name))[0]
        raise ValueError(
            f"path: {str(path)!r}: {odd} has shape {shapes.get(odd)}, but its architecture asks for {wanted.get(odd)}; "
            "write it with popqorn.save"
        )
    return model


def _described_rnn(rnn: nn.RNNBase) -> dict[str, Any]:
    kind = type(rnn).__name__
    if type(rnn) not in (nn.RNN, nn.LSTM, nn.GRU):
        raise TypeError(f"model: its rnn is a {kind}, parametrised or of a class of its own; torch.export.save the model as .pt2")
    about = {name: getattr(rnn, name) for name in _RNN}
    return {"kind": kind, **about, **({"nonlinearity": rnn.nonlinearity} if isinstance(rnn, nn.RNN) else {})}


def _rebuilt_rnn(about: dict[str, Any], stored: int) -> nn.RNNBase:
    """The layers, of which the weights of `stored` (of either direction) are there: building takes time for every one of them."""
    kinds = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}
    options = {name: about[name] for name in _RNN}
    for name in ("input_size", "hidden_size", "num_layers"):
        if not isinstance(options[name], int) or not 0 < options[name] < 10**6:
            raise ValueError(f"{name} is {options[name]!r}")
    if options["num_layers"] * (2 if options["bidirectional"] else 1) != stored:
        raise ValueError(f"num_layers is {options['num_layers']}, but it holds the weights of {stored}")
    if about["kind"] != "LSTM":
        options.pop("proj_size")
    more = {"nonlinearity": about["nonlinearity"]} if about["kind"] == "RNN" else {}
    rnn = kinds[about["kind"]](**options, **more)
    assert isinstance(rnn, nn.RNNBase)
    return rnn


def _described(head: nn.Module) -> list[dict[str, Any]]:
    """The modules of a head, in order; a `Sequential` inside another is a list of its own."""
    kind = type(head).__name__
    if type(head) is nn.Sequential:
        return [{"kind": "Sequential", "modules": [_described(module)[0] for module in head]}]
    if kind not in _HEADS or type(head) is not getattr(nn, kind):
        raise TypeError(f"model: its head holds a {kind}, which popqorn.save does not know; torch.export.save the model as .pt2")
    about = {name: getattr(head, name) for name in _HEADS[kind]}
    if "normalized_shape" in about:
        about["normalized_shape"] = list(about["normalized_shape"])
    if hasattr(head, "bias"):
        about["bias"] = head.bias is not None
    return [{"kind": kind, **about}]


def _rebuilt(about: list[dict[str, Any]]) -> nn.Module:
    (one,) = about
    options = dict(one)
    kind = options.pop("kind")
    if kind == "Sequential":
        return nn.Sequential(*(_rebuilt([module]) for module in options["modules"]))
    if kind not in _HEADS or not set(options) <= {*_HEADS[kind], "bias"}:
        raise ValueError(f"its head holds {one!r}")
    if kind == "BatchNorm1d":
        options.pop("bias", None)
    found = getattr(nn, kind)(**options)
    assert isinstance(found, nn.Module)
    return found
