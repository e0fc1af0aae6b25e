"""The run-time type checker of the test run: beartype, with Python's own rule that an int will do for a float."""

from collections.abc import Callable
from functools import wraps
from inspect import isclass, isfunction
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def jaxtyped(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """In place of jaxtyping's decorator, which the import hook puts on every function, and which is slow.

    A function inside another is made anew at every call of that, and to prepare its checks takes far longer than what it does:
    it stays as it is where nothing is checked. A function without shapes needs no more than beartype.
    """

    def decorated(thing: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable and "<locals>" in getattr(thing, "__qualname__", ""):
            return thing
        if not isfunction(thing) or any(map(_shaped, thing.__annotations__.values())):
            return _jaxtyped(thing, typechecker=typechecker)
        checked = check(thing)

        @wraps(thing)
        def call(*arguments: Any, **options: Any) -> Any:
            return (thing if jaxtyping.config.jaxtyping_disable else checked)(*arguments, **options)

        return call

    return decorated


def _shaped(annotation: Any) -> bool:
    """Whether an annotation has a shape in it, or, being a string, may have one."""
    if isinstance(annotation, str):
        return True
    return (isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray)) or any(map(_shaped, get_args(annotation)))
