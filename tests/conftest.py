"""Shared by all tests: shapes are checked, runs are repeatable, data that is absent is reported."""

import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # small tensors; the test run itself is spread over processes, and starts some of its own

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

import typecheck

# Every shape annotation of the package can be checked from here on; must precede the first import of popqorn.
jaxtyping.jaxtyped = typecheck.jaxtyped
install_import_hook("popqorn", "typecheck.check")

torch.set_num_threads(1)
settings.register_profile("popqorn", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=True)
settings.load_profile("popqorn")


def _folder(path: Path, what: str, variable: str) -> Path:
    if not path.is_dir():
        pytest.skip(f"needs {what}, looked for in {path}; set {variable} to its folder")
    return path


@pytest.fixture(scope="session")
def data() -> Path:
    import public  # of benchmarks/; here, as it imports popqorn

    return _folder(public.DATA, "the public data sets and models", "POPQORN_DATA")


@pytest.fixture(scope="session")
def reference() -> Path:
    import public

    return _folder(public.REFERENCE, "radii of other programs", "POPQORN_REFERENCE")


_CHECKED: set[object] = set()


@pytest.fixture(autouse=True)
def _shapes_checked(request: pytest.FixtureRequest) -> None:
    """In modules marked `shapes`, which between them call everything, every call of the first case of every test is checked; all
    else runs at full speed.
    """
    test, marked = request.function, request.node.get_closest_marker("shapes") is not None
    jaxtyping.config.update("jaxtyping_disable", not marked or test in _CHECKED)
    _CHECKED.add(test)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
