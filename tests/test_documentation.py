"""What the guide, the README and the docstrings show runs as it stands."""

import doctest
import importlib
import inspect
import pkgutil
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import popqorn
from popqorn.cli import app
from popqorn.relax import activations

ROOT = Path(__file__).resolve().parents[1]


def small(features: int) -> popqorn.SequenceClassifier:
    """In place of the large networks that the pages speak of."""
    torch.manual_seed(0)
    model = popqorn.SequenceClassifier(nn.RNN(features, 4, batch_first=True), nn.Linear(4, 3)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


def names(features: int = 5) -> dict[str, Any]:
    """Everything that examples take for given."""
    model, inputs = small(features), torch.rand(2, 3, features)
    words = nn.Sequential(nn.Embedding(1, 2), nn.Flatten(), nn.Linear(12, 2))
    glove, tokens = torch.rand(9, features), torch.randint(9, (2, 3))
    return {
        "__name__": "example",
        "torch": torch,
        "nn": nn,
        "popqorn": popqorn,
        "certify": popqorn.certify,
        "vocabulary": ["<unk>", "what", "is"],
        "network": nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(12, 2)),
        "activations": activations,
        "model": model,
        "rnn": model.rnn,
        "head": model.head,
        "my_lstm": nn.LSTM(features, 4),
        "my_linear_head": nn.Linear(4, 3),
        "my_module": nn.Sequential(nn.Flatten(), nn.Linear(3 * features, 3)),
        "my_text_classifier": popqorn.TextClassifier(str.split, ["<unk>"], words),
        **dict.fromkeys(("inputs", "digits", "images", "recordings", "readings"), inputs),
        "strokes": inputs[:1, :1],
        "labels": model(inputs).argmax(-1),
        "lower": inputs - 0.1,
        "upper": inputs + 0.1,
        "drift": 0.1,
        "batches": [(inputs, model(inputs).argmax(-1))],
        "steps": 40,
        "optimiser": torch.optim.Adam(model.parameters()),
        "glove": glove,
        "tokens": tokens,
        "synonyms": {word: [(word + 1) % 9] for word in range(9)},
    }


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md", "docs/training.md", "docs/runs.md"])
def test_pages_run_from_top_to_bottom(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("popqorn.attacks.pgd.ROUNDS", 2)
    monkeypatch.setattr("popqorn.attacks.cw.STEPS", 10)
    given = names()
    if page == "README.md":  # files are read in test_onnx.py and test_files.py
        monkeypatch.setattr(popqorn, "load", lambda path: given["model"])
    blocks = re.findall(r"```(python|sh|toml)\n(.*?)```", (ROOT / page).read_text(), flags=re.S)
    assert blocks
    for language, block in blocks:
        if language == "python":
            exec(compile(block, page, "exec"), given)
            given["model"] = small(5)
        elif language == "toml":
            Path("run.toml").write_text(block)
        else:
            for line in block.splitlines():
                _, *words = shlex.split(line, comments=True)
                result = CliRunner().invoke(app, words)
                assert result.exit_code == 0, result.output


def test_the_reference_has_every_public_name_and_each_is_explained() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.rst"))
    named = set(re.findall(r":: popqorn\.(\w+)", pages))
    assert set(popqorn.__all__) - named == {"__version__"}
    for name in named & set(popqorn.__all__):
        thing = getattr(popqorn, name)
        assert inspect.getdoc(thing), name
        methods = vars(thing).items() if inspect.isclass(thing) else ()
        for method, value in methods:
            value = getattr(value, "fget", None) or getattr(value, "__func__", value)
            assert method.startswith("_") or not callable(value) or inspect.getdoc(value), f"{name}.{method}"


def documented() -> list[tuple[str, str]]:
    found = []
    for info in pkgutil.walk_packages(popqorn.__path__, "popqorn."):
        module = importlib.import_module(info.name)
        things = [("", module), *((name, thing) for name, thing in vars(module).items() if not isinstance(thing, ModuleType))]
        found += [
            (f"{info.name} {name}".strip(), thing.__doc__)
            for name, thing in things
            if getattr(thing, "__module__", info.name) == info.name and isinstance(thing.__doc__, str) and ">>>" in thing.__doc__
        ]
    return [("popqorn", popqorn.__doc__ or ""), *found]


def test_there_are_examples() -> None:
    assert len(documented()) > 15


@pytest.mark.parametrize(("where", "text"), documented(), ids=lambda value: value if len(value) < 60 else "")
def test_examples_in_docstrings_run(where: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(where.split()[0])
    given = {**vars(module), **names()}
    for example in doctest.DocTestParser().get_examples(text):
        source = example.source.rstrip("\n")
        if not example.want:
            exec(compile(source, where, "exec"), given)
        else:
            assert repr(eval(compile(source, where, "eval"), given)) == example.want.strip()
