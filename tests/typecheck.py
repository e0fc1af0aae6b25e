"""The run-time type checker of the test run: beartype, with Python's own rule that an int will do for a float."""

from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def jaxtyped(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """In place of jaxtyping's decorator, which the import hook puts on every function: a function inside another is made anew at
    every call of that, and to prepare its checks takes far longer than what it does; so not where nothing is checked.
    """

    def decorated(thing: Any) -> Any:
        inside = "<locals>" in getattr(thing, "__qualname__", "")
        return thing if inside and jaxtyping.config.jaxtyping_disable else _jaxtyped(thing, typechecker=typechecker)

    return decorated
