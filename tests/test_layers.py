"""Layers point one way: a later stage may import an earlier one, never the reverse; inside a stage there are no cycles."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import popqorn

SOURCE = Path(popqorn.__file__).parent
# First to last: folders, and files that stand alone.
STAGES = (
    ("_typing", "_version", "arithmetic", "reading", "sequences", "status", "progress", "result"),
    ("relax",),
    ("tape",),
    ("regions",),
    ("readers",),
    ("files", "specs"),
    ("bounds",),
    ("task", "found", "tighten", "search"),
    ("attacks", "certificate", "branches", "splitting", "radii"),
    ("api", "curve", "clever", "bracket", "cost"),
    ("training", "given", "runs", "plot"),
    ("__init__", "bundled", "experiments"),
    ("report",),
    ("cli", "commands", "working"),
)
ORDER = {name: stage for stage, names in enumerate(STAGES) for name in names}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def stage_of(module: str) -> int:
    top = module.split(".")[0]
    assert top in ORDER, f"popqorn.{module} has no stage; add it to STAGES where it belongs"
    return ORDER[top]


def imports_of(path: Path) -> set[str]:
    """The project's own modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update(_module(f"{node.module}.{alias.name}") or _module(node.module) for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(_module(alias.name) for alias in node.names)
    return {name for name in found if name is not None}


def _module(dotted: str) -> str | None:
    """`popqorn.bounds` as `bounds.__init__`; None for what is no module of ours."""
    path = SOURCE.parent / Path(*dotted.split("."))
    if not path.is_relative_to(SOURCE):
        return None
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((module_name(file) for file in files if file.exists()), None)


IMPORTS = {module_name(path): imports_of(path) for path in SOURCE.rglob("*.py")}


def test_no_import_goes_backwards() -> None:
    checked = 0
    for importer, imported in IMPORTS.items():
        for name in imported:
            checked += 1
            assert stage_of(name) <= stage_of(importer), f"popqorn.{importer} imports the later popqorn.{name}"
    assert checked > 100


def test_no_imports_go_round() -> None:
    TopologicalSorter(IMPORTS).prepare()  # raises CycleError, which names the cycle


def test_there_are_about_ten_stages() -> None:
    assert len(STAGES) <= 14
    assert {name.split(".")[0] for name in IMPORTS} == set(ORDER)


def test_the_core_needs_torch_and_numpy_only() -> None:
    optional = {
        "typer",
        "rich",
        "matplotlib",
        "safetensors",
        "scipy",
        "jinja2",
        "jaxtyping",
        "beartype",
        "onnx",
        "onnxruntime",
        "ray",
        "pyarrow",
    }
    for path in SOURCE.rglob("*.py"):
        if path.name in ("__init__.py", "_typing.py") or stage_of(module_name(path)) > ORDER["api"]:
            continue
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & optional, f"{path.name} imports an extra"
