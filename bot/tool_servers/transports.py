"""An HTTP transport for MCP servers that limits the size of responses."""

import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus

import httpx2
import mcp_types
from typing_extensions import override

LOGIN_REFUSED_REASON = "it refuses the token"
MAX_RESPONSE_BYTES = 1024 * 1024
"""The maximum size of a response; an event stream is reopened after that many bytes."""

NOT_REACHED_CODE = -32098
"""The error code of a request that did not reach the server."""
NOT_ANSWERED_CODE = -32097
"""The error code of a request that the server may have received but did not answer."""


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """Limits response sizes; turns failures into error responses, so the session continues."""

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        try:
            response = await super().handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            reason = str(error) or "no answer"
            return _error_response(NOT_REACHED_CODE, f"it cannot be reached ({reason})")
        except httpx2.HTTPError as error:
            return _error_response(NOT_ANSWERED_CODE, f"no response ({str(error) or 'no answer'})")
        problem = None
        if response.has_redirect_location and not _is_same_server(response, request.url):
            # the address is not shown, because it may contain a secret
            problem = f"it redirects to another address ({response.status_code})"
        elif response.headers.get("content-encoding", "identity") != "identity":
            problem = "it sent a compressed response, which was not requested"
        elif response.status_code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            problem = f"{LOGIN_REFUSED_REASON} ({response.status_code})"
        if problem is not None:
            await response.aclose()
            return _error_response(mcp_types.INTERNAL_ERROR, problem)
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 # for mypy
        response.stream = _BoundedStream(response.stream)
        return response


def _error_response(code: int, reason: str) -> httpx2.Response:
    error = {"code": code, "message": reason}
    return httpx2.Response(502, json={"jsonrpc": "2.0", "id": None, "error": error})


def _is_same_server(response: httpx2.Response, url: httpx2.URL) -> bool:
    try:
        target = url.join(response.headers["location"])
    except httpx2.InvalidURL:
        return False
    return (target.scheme, target.host, target.port) == (url.scheme, url.host, url.port)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        received_bytes = 0
        with contextlib.suppress(httpx2.HTTPError):  # the request ends without a response
            async for chunk in self._stream:
                received_bytes += len(chunk)
                if received_bytes > MAX_RESPONSE_BYTES:
                    return
                yield chunk

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()
