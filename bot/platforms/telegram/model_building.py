"""Import aiogram without building its pydantic models; each is built when it is first used.

On import, aiogram builds validators for its 440 types and 180 methods, which takes a hundred
megabytes and three quarters of the import's CPU time. The service uses about twenty of them.

Import this module before any other import of aiogram; nothing else is needed.
"""

from functools import cache
from typing import Any

from pydantic import BaseModel

_original_model_rebuild = BaseModel.__dict__["model_rebuild"]
_types_by_name: dict[str, Any] = {}
"""aiogram's types by name, to resolve the annotations of its models."""


def _record_type_names(_: type[BaseModel], *, _types_namespace: dict[str, Any]) -> None:
    _types_by_name.update(_types_namespace)


BaseModel.model_rebuild = classmethod(_record_type_names)  # type: ignore[method-assign, assignment]
try:
    from aiogram import methods, types
finally:
    BaseModel.model_rebuild = _original_model_rebuild  # type: ignore[method-assign]

for _module in (types, methods):
    for _name in _module.__all__:
        _model = getattr(_module, _name)
        is_model = isinstance(_model, type) and issubclass(_model, BaseModel)
        if is_model and not _model.__pydantic_complete__:
            _model.__pydantic_parent_namespace__ = _types_by_name


@cache
def build_response_type(result_type: Any) -> type[methods.Response[Any]]:
    """Return the response model for a method's result type; build the model at the first call."""
    response_type: type[methods.Response[Any]] = methods.Response[result_type]
    response_type.__pydantic_parent_namespace__ = _types_by_name
    response_type.model_rebuild()
    return response_type
