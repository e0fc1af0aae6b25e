"""Layers point one way: a later stage may import an earlier one, never the reverse."""

import ast
from pathlib import Path

import popqorn

SOURCE = Path(popqorn.__file__).parent
# First to last. A module belongs to the longest prefix that fits; modules of one stage may import each other.
STAGES = [
    ("_typing", "_version", "memory"),
    ("activations",),
    ("program",),
    ("models",),
    ("region", "spec"),
    ("relax.relaxation",),
    ("relax.lines", "relax.planes"),
    ("relax.envelope",),
    ("relax.weak",),
    ("relax.methods",),
    ("bounds.interval", "bounds.backward"),
    ("bounds.concretise",),
    ("bounds.relaxed", "bounds.first_order"),
    ("search",),
    ("certificate",),
    ("checks",),
    ("problem",),
    ("api",),
    ("attacks.balls",),
    ("attacks.objective",),
    ("attacks.methods",),
    ("attacks.run",),
    ("attacks.words",),
    ("estimate",),
    ("comparison",),
    ("",),  # popqorn itself: the public names
    ("bundled", "experiments"),
    ("experiments.tracking", "experiments.store", "experiments.data"),
    ("experiments.training", "experiments.setup", "experiments.work"),
    ("experiments.networks",),
    ("experiments.frames",),
    ("experiments.mnist", "experiments.strokes", "experiments.words", "experiments.signals"),
    ("experiments.relaxations",),
    ("experiments.registry",),
    ("report",),
    ("report.svg", "report.paper"),
    ("report.page", "report.figures"),
    ("report.frames",),
    ("report.mnist", "report.relaxations", "report.strokes", "report.words", "report.signals"),
    ("report.registry",),
    ("cli",),
]
ORDER = {name: stage for stage, names in enumerate(STAGES) for name in names}


def stage_of(module: str) -> int:
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in ORDER:
            return ORDER[prefix]
    raise AssertionError(f"{module} has no stage; add it to STAGES where it belongs")


def module_name(path: Path) -> str:
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "popqorn":
            base = node.module.removeprefix("popqorn").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                is_module = (SOURCE / (inner.replace(".", "/") + ".py")).exists() or (SOURCE / inner.replace(".", "/")).is_dir()
                found.add(inner if is_module else base)
        elif isinstance(node, ast.Import):
            found.update(alias.name.removeprefix("popqorn").removeprefix(".") for alias in node.names if "popqorn" in alias.name)
    return found


def test_no_import_goes_backwards() -> None:
    checked = 0
    for path in SOURCE.rglob("*.py"):
        importer = module_name(path)
        if importer in ("relax", "bounds", "models", "attacks", "report"):
            continue
        for imported in imports_of(path):
            checked += 1
            assert stage_of(imported) <= stage_of(importer), f"popqorn.{importer} imports the later popqorn.{imported}"
    assert checked > 40


def test_the_core_needs_torch_and_numpy_only() -> None:
    optional = {"typer", "rich", "matplotlib", "safetensors", "scipy", "jinja2", "jaxtyping", "beartype"}
    for path in SOURCE.rglob("*.py"):
        if path.name in ("__init__.py", "_typing.py") or stage_of(module_name(path)) > ORDER["api"]:
            continue
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & optional, f"{path.name} imports an extra"
