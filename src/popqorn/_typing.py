"""Shapes in types: `Float[Tensor, "batch frames"]`.

jaxtyping is a development dependency. Where it is absent the annotations below fall back to the bare array type, so that the
installed package needs torch and numpy only; the test run installs it and checks every annotated call with beartype.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _Unchecked:
            def __getitem__(self, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Int = _Unchecked()

__all__ = ["Bool", "Float", "Int"]
