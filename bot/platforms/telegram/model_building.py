"""Import aiogram without building its models; each builds itself when it is first used.

aiogram has pydantic build the validators of its 440 types while it is imported; those of its 180
methods follow. Each holds copies of what it refers to: a hundred megabytes, and three quarters of
the CPU of the import. The service uses some twenty of them.

Importing this module is enough; it must come before any other import of aiogram.
"""

from functools import cache
from typing import Any

from pydantic import BaseModel

_build = BaseModel.__dict__["model_rebuild"]
_names: dict[str, Any] = {}
"""aiogram's types by name: what the annotations of its models refer to."""


def _note_names(_: type[BaseModel], *, _types_namespace: dict[str, Any]) -> None:
    _names.update(_types_namespace)


BaseModel.model_rebuild = classmethod(_note_names)  # type: ignore[method-assign, assignment]
try:
    from aiogram import methods, types
finally:
    BaseModel.model_rebuild = _build  # type: ignore[method-assign]

for _module in (types, methods):
    for _name in _module.__all__:
        _model = getattr(_module, _name)
        is_model = isinstance(_model, type) and issubclass(_model, BaseModel)
        if is_model and not _model.__pydantic_complete__:
            _model.__pydantic_parent_namespace__ = _names


@cache
def build_response_type(returning: Any) -> type[methods.Response[Any]]:
    """Build the response type of a method once; pydantic alone would not find its names."""
    made: type[methods.Response[Any]] = methods.Response[returning]
    made.__pydantic_parent_namespace__ = _names
    made.model_rebuild()
    return made
