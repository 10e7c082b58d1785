"""Describe the API in OpenAPI 3.1, using the route table that registers its handlers."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from typing import Any

from aiohttp import web
from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from bot import __version__
from bot.chat.access import ApiScope
from bot.console.routes import Route, RouteGroup, add_security_headers, is_integer_type, route

_SCHEMA_REFERENCE = "#/components/schemas/{model}"
_STATUS_TEXTS: Mapping[int, str] = {
    401: "The API token is missing or not valid.",
    403: "The token lacks the required scope, or the request comes from another site.",
    404: "The requested object does not exist.",
    409: "The object has changed in the meantime, or the information is not available.",
    413: "The body is too large.",
    415: "The type of the body is not supported.",
    422: "A value in the request is not valid.",
    502: "The model did not answer.",
    503: "The database failed.",
}
"""The HTTP statuses, other than 200, that any route may return, with descriptions."""
_SCHEMA_CONFIG = ConfigDict(
    use_attribute_docstrings=True, json_schema_serialization_defaults_required=True
)
_Schemas = Mapping[Any, Any]


class ApiError(TypedDict):
    """Why a request was refused."""

    error: str


class ApiDescription(RouteGroup):
    def __init__(self, groups: Sequence[RouteGroup]) -> None:
        self._routes = [one for group in (*groups, self) for one in group.routes if one.is_api]

    @route("GET /api/v1/openapi.json", ApiScope.READ)
    async def send(self) -> web.Response:
        """Get this document."""
        document = await asyncio.to_thread(lambda: self._document)
        return add_security_headers(web.json_response(document))

    @cached_property
    def _document(self) -> Mapping[str, Any]:
        return describe_api(self._routes)  # reads the source for docstrings: takes a second


def describe_api(routes: Sequence[Route]) -> Mapping[str, Any]:
    result_types = {one.result_type for one in routes if one.result_type is not None} | {ApiError}
    models = {one.model for one in routes if one.model is not None}
    adapter_inputs: list[Any] = [(one, "validation", TypeAdapter(one)) for one in models]
    adapter_inputs += [(one, "serialization", _make_result_adapter(one)) for one in result_types]
    adapter_inputs.sort(key=lambda one: str(one[0]))
    schemas, definitions = TypeAdapter.json_schemas(adapter_inputs, ref_template=_SCHEMA_REFERENCE)
    components = definitions["$defs"]
    paths: dict[str, dict[str, Any]] = {}
    for one in routes:
        operation = _describe_operation(one, schemas, components)
        paths.setdefault(one.path, {})[one.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Troupe", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _make_result_adapter(result_type: Any) -> TypeAdapter[Any]:
    if result_type is ApiError:
        return TypeAdapter(result_type)
    if isinstance(result_type, type) and is_dataclass(result_type):
        return TypeAdapter(with_config(_SCHEMA_CONFIG)(result_type))
    return TypeAdapter(result_type, config=_SCHEMA_CONFIG)


def _describe_operation(route: Route, schemas: _Schemas, components: _Schemas) -> Mapping[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()} {route.path}",
        "parameters": [*_describe_path(route), *_describe_query(route, schemas, components)],
        "responses": _describe_responses(route, schemas),
    }
    if route.scope is not None:
        operation["security"] = [{"token": []}]
        other_scope_text = f" or `{route.other_scope}`" if route.other_scope else ""
        operation["description"] = f"Needs the scope `{route.scope}`{other_scope_text}."
    if route.body_model is not None:
        content = {"application/json": {"schema": schemas[route.body_model, "validation"]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _describe_path(route: Route) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    number = {"type": "integer", "minimum": 0}
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": number if is_integer_type(route.parameters.get(name)) else {"type": "string"},
        }
        for name in names
    ]


def _describe_query(route: Route, schemas: _Schemas, components: _Schemas) -> list[dict[str, Any]]:
    if route.query_model is None:
        return []
    schema = components[schemas[route.query_model, "validation"]["$ref"].rpartition("/")[2]]
    required_names = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required_names, "schema": field}
        for name, field in schema["properties"].items()
    ]


def _describe_responses(route: Route, schemas: _Schemas) -> Mapping[str, Any]:
    result_schema = {} if route.result_type is None else schemas[route.result_type, "serialization"]
    json_body = {"application/json": {"schema": schemas[ApiError, "serialization"]}}
    refusals = {
        str(one): {"description": text, "content": json_body} for one, text in _STATUS_TEXTS.items()
    }
    return {
        "200": {
            "description": "The request succeeded.",
            "content": {"application/json": {"schema": result_schema}},
        },
        "400": {  # sent by the server itself, before any handler runs
            "description": "The request is malformed, or its request line or a header is too long.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **refusals,
    }
