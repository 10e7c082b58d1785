"""Build aiogram's models when they are first used, not all of them at import.

aiogram asks pydantic, while it is imported, to build the validators of its 440 types; those of its
180 methods follow. Each holds copies of what it refers to: a hundred megabytes, and four fifths of
the CPU of the import. The service uses some twenty of them. A model that is not built yet builds
itself at its first use, if pydantic finds the names in its annotations.
"""

from typing import Any

from pydantic import BaseModel

_LIBRARY = "aiogram"
_build = BaseModel.__dict__["model_rebuild"].__func__
_names: dict[str, Any] = {}
"""aiogram's types by name: what the annotations of its models refer to."""


def defer_model_building() -> None:
    """Let the import of aiogram leave its models unbuilt; other models are built as ever."""
    BaseModel.model_rebuild = classmethod(_rebuild)  # type: ignore[method-assign, assignment]


def _rebuild(
    cls: type[BaseModel],
    *,
    force: bool = False,
    raise_errors: bool = True,
    _parent_namespace_depth: int = 2,
    _types_namespace: dict[str, Any] | None = None,
) -> bool | None:
    if cls.__module__.partition(".")[0] == _LIBRARY:
        if _types_namespace is not None:  # the import of aiogram, which names all its types
            _names.update(_types_namespace)
            return None
        _types_namespace = _names
    built: bool | None = _build(
        cls,
        force=force,
        raise_errors=raise_errors,
        _parent_namespace_depth=_parent_namespace_depth + 1,  # this frame is one more
        _types_namespace=_types_namespace,
    )
    return built
