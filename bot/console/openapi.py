"""Describe the API in OpenAPI 3.1, from the same route table that registers its handlers."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from bot import __version__
from bot.chat.access import Scope
from bot.console.app import protected
from bot.console.routes import (
    ConsoleRequest,
    Route,
    RouteGroup,
    route,
)

_NUMBERS = ("number", "other")
"""The parts of paths that are numbers."""
_REFERENCE = "#/components/schemas/{model}"


class ApiError(BaseModel):
    """Why a request was refused."""

    error: str


class ApiDescription(RouteGroup):
    """Serves the OpenAPI document of some routes and of itself."""

    def __init__(self, groups: Sequence[RouteGroup]) -> None:
        self._routes = [one for group in (*groups, self) for one in group.routes if one.is_api]

    @route("GET /api/v1/openapi.json", Scope.READ, "This document.")
    async def _send(self, _: ConsoleRequest) -> web.StreamResponse:
        return protected(web.json_response(describe_api(self._routes)), "")


def describe_api(routes: Sequence[Route]) -> Mapping[str, Any]:
    """Return the OpenAPI document of these routes."""
    inputs = {one for route in routes for one in (route.body, route.query) if one is not None}
    outputs = {route.answer for route in routes if route.answer is not None} | {ApiError}
    pairs: list[Any] = [(model, "validation") for model in inputs]
    pairs += [(model, "serialization") for model in outputs]
    pairs.sort(key=lambda pair: str(pair[0].__name__))
    references, definitions = models_json_schema(pairs, ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for one in routes:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(
            one, references, definitions["$defs"]
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Troupe", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    route: Route, references: Mapping[Any, Any], definitions: Mapping[str, Any]
) -> Mapping[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()} {route.path}",
        "parameters": [*_path_parameters(route), *_query_parameters(route, definitions)],
        "responses": _responses(route, references),
    }
    if route.scope is not None:
        operation["security"] = [{"token": []}]
        operation["description"] = f"Needs the scope `{route.scope}`."
    if route.body is not None:
        content = {"application/json": {"schema": references[route.body, "validation"]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    number = {"type": "integer", "minimum": 0}
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": number if name in _NUMBERS else {"type": "string"},
        }
        for name in names
    ]


def _query_parameters(route: Route, definitions: Mapping[str, Any]) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    schema = definitions[route.query.__name__]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": field,
        }
        for name, field in schema["properties"].items()
    ]


def _responses(route: Route, references: Mapping[Any, Any]) -> Mapping[str, Any]:
    answer = {} if route.answer is None else references[route.answer, "serialization"]
    statuses = {
        401: "There is no such token.",
        403: "The token lacks the scope, or the request comes from another site.",
        503: "The database failed.",
        **({404: "There is no such thing."} if "{" in route.path else {}),
        **({422: "A value is wrong."} if route.body or route.query else {}),
        **(
            {413: "The body is too large.", 415: "The body is not of this type."}
            if route.body
            else {}
        ),
        **route.errors,
    }
    error = {"application/json": {"schema": references[ApiError, "serialization"]}}
    return {
        "200": {
            "description": "What was asked for.",
            "content": {"application/json": {"schema": answer}},
        },
        "400": {  # by the server itself, before any handler
            "description": "The request is malformed, or its line or a header is too long.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **{
            str(status): {"description": text, "content": error}
            for status, text in sorted(statuses.items())
        },
    }
