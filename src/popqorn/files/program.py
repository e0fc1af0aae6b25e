"""Programs of torch.export (`.pt2`). torch unpickles parts of such files: what could execute code is refused first."""

import ast
import json
import operator
import os
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

MOST_BYTES = 2**33
MOST_TIMES = 100  # that a part may be larger than it is in the file
PARTS = re.compile(
    r"^[^/]+/(data/weights/.+|data/constants/(tensor_\d+|.+\.json)|data/sample_inputs/.+\.pt|models/.+\.json|extra/.+|"
    r"archive_format|archive_version|version|byteorder|\.data/.+|\.format_version|\.storage_alignment)$"
)
FUNCTIONS = frozenset(
    "Symbol Integer Rational Add Mul Pow Max Min FloorDiv CleanDiv Mod PythonMod Eq Ne Le Lt Ge Gt And Or Not".split()  # noqa: SIM905
)
SYMBOL = re.compile(r"^[a-z]{1,4}\d*$")
HARMLESS = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.unaryop, ast.cmpop, ast.keyword, ast.Load),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow),  # to sympy, ^ is a power as well
)
MOST_TEXT = 2_000  # characters of a formula
MOST_POWER = 64  # that all exponents of a formula multiply to


def load_program(path: Path) -> nn.Module:
    """The program as a module, in which the inputs keep the shapes it was exported for."""
    _check_archive(path)
    try:
        with warnings.catch_warnings(), _no_pickles():
            warnings.simplefilter("ignore")
            program = torch.export.load(path)
    except Exception as error:
        raise ValueError(
            f"path: {str(path)!r} cannot be loaded by torch.export ({_first_line(error)}); export it again"
        ) from error
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem and not _is_operator(node.target):
            # arithmetic of open sizes, as others are refused by torch: numbers could grow without end
            raise ValueError(
                f"path: {str(path)!r} calls {node.target}, which is no operator of torch; export it for one sample, without "
                "dynamic_shapes, so that no size is left to be computed"
            )
    _check_inputs(program, path)
    _check_mode(program, path)
    module = program.module()
    assert isinstance(module, nn.Module)
    return module


def _check_inputs(program: torch.export.ExportedProgram, path: Path) -> None:
    """One tensor goes in, and it must be possible to pass a single sample."""
    names = program.graph_signature.user_inputs
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    shapes = [tuple(value.shape) for value in values]
    if len(shapes) != 1:
        raise ValueError(f"path: {str(path)!r} takes {len(shapes)} inputs; export a module that takes one tensor, [batch, ...]")
    if not values[0].dtype.is_floating_point:
        raise TypeError(
            f"path: {str(path)!r} takes {values[0].dtype}, such as token ids, which cannot move by a little; a .pt2 program must "
            "take the words' vectors: export the part behind the embedding, or pass the module itself"
        )
    batch = shapes[0][0] if shapes[0] else 0
    if isinstance(batch, int) and batch != 1:
        raise ValueError(
            f"path: {str(path)!r} was exported for exactly {batch} samples (inputs of shape {shapes[0]}); export it with one, or "
            'with dynamic_shapes=({0: torch.export.Dim("batch")},)'
        )


def _check_mode(program: torch.export.ExportedProgram, path: Path) -> None:
    """Refuse a program in which training mode is fixed."""
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            continue
        given = {**dict(zip([argument.name for argument in schema.arguments], node.args, strict=False)), **node.kwargs}
        trains = given.get("train") is True or given.get("training") is True
        if trains and given.get("dropout") != 0.0:  # a recurrent layer without dropout is the same in both modes
            raise ValueError(
                f"path: {str(path)!r} was exported in training mode ({node.target}); call module.eval() before "
                "torch.export.export"
            )


def _check_archive(path: Path) -> None:
    """Refuse what torch would unpickle or evaluate, and what unpacks to more than it says."""
    try:
        with zipfile.ZipFile(path) as archive:
            if min((part.header_offset for part in archive.infolist()), default=0) > 0:
                raise zipfile.BadZipFile("it is cut off: what is found at its end is an archive inside of it")
            for part in archive.infolist():
                if part.file_size > MOST_TIMES * max(part.compress_size, 1000) or part.file_size > MOST_BYTES:
                    raise ValueError(f"its part {part.filename} unpacks to {part.file_size:,} bytes")
                if not PARTS.match(part.filename):
                    raise ValueError(f"its part {part.filename} may hold code")
            for part in archive.infolist():
                if part.filename.endswith(".json"):
                    _check_description(part.filename, json.loads(archive.read(part)))
                elif part.filename.endswith(".pt"):
                    with archive.open(part) as stream:
                        torch.load(stream, weights_only=True)
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"path: {str(path)!r} is no program of torch.export, or a damaged or truncated one; export it again"
        ) from error
    except Exception as error:
        reason = _first_line(error)
        raise ValueError(f"path: {str(path)!r} is refused: {reason}; export it again with torch.export.save") from error


def _check_description(name: str, value: Any) -> None:
    for key, inner in _items(value):
        if key == "use_pickle" and inner:
            raise ValueError(f"{name} has a pickled part")
        if key in ("expr_str", "as_expr") and isinstance(inner, str):
            _check_expression(name, inner)


def _check_expression(name: str, text: str) -> None:
    """Sizes that are left open are formulas in sympy, which evaluates them: nothing but short arithmetic of symbols may be in
    them, and no number that grows beyond what is written.
    """
    refusal = ValueError(f"{name} holds the expression {text[:40]!r}")
    if len(text) > MOST_TEXT:
        raise refusal
    power = 1
    texts: set[ast.AST] = set()  # names of symbols: elsewhere, a text times a number would be a long text
    for part in ast.walk(ast.parse(text, mode="eval")):
        called = isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in FUNCTIONS
        named = isinstance(part, ast.Name) and (part.id in FUNCTIONS or part.id in ("oo", "int_oo") or SYMBOL.match(part.id))
        number = isinstance(part, ast.Constant) and isinstance(part.value, int | float)
        if not (isinstance(part, HARMLESS) or called or named or number or part in texts):
            raise refusal
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "Symbol":
            texts.update(each for each in part.args if isinstance(each, ast.Constant) and SYMBOL.match(str(each.value)))
        if (exponent := _exponent(part)) is not None:
            power *= max(1, exponent)
            if power > MOST_POWER:
                raise refusal


def _exponent(part: ast.AST) -> int | None:
    """The size of the exponent of a power, beyond all bounds if it is no number that is written out; None for what is none."""
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Pow):
        exponent: ast.AST = part.right
    elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "Pow":
        if len(part.args) != 2 or part.keywords:
            return MOST_POWER + 1
        exponent = part.args[1]
    else:
        return None
    while isinstance(exponent, ast.UnaryOp | ast.Call):  # -2, Integer(2)
        if isinstance(exponent, ast.Call) and (len(exponent.args) != 1 or ast.unparse(exponent.func) != "Integer"):
            break
        exponent = exponent.operand if isinstance(exponent, ast.UnaryOp) else exponent.args[0]
    return abs(exponent.value) if isinstance(exponent, ast.Constant) and isinstance(exponent.value, int) else MOST_POWER + 1


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _items(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _items(inner)


def _is_operator(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload | torch._ops.HigherOrderOperator)


@contextmanager
def _no_pickles() -> Iterator[None]:
    """While this lasts, torch unpickles tensors and nothing else."""
    key = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(key)
    os.environ[key] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[key]
        else:
            os.environ[key] = before


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
