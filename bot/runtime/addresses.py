"""Check and take apart the addresses of HTTP services that an operator sets."""

import ipaddress
from typing import Annotated, TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import AfterValidator


def is_http_address(address: str) -> bool:
    """Tell whether this is the address of an HTTP service."""
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises if it is no number
    except ValueError:
        return False
    has_host = parts.scheme in {"http", "https"} and bool(parts.hostname)
    return has_host and not any(char.isspace() for char in address)


def check_http_address(address: str) -> str:
    """Return an address if it is one of an HTTP service.

    Raises:
        ValueError: it is not; the text says what one looks like.
    """
    if not is_http_address(address):
        raise ValueError("should be an address such as http://127.0.0.1:8080/v1")
    if _is_link_local(urlsplit(address).hostname or ""):
        raise ValueError("is an address such as that of a cloud's metadata service, with its keys")
    return address


def _is_link_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_link_local
    except ValueError:
        return False


def is_near_address(address: str) -> bool:
    """Tell whether an address names this machine or one in the same network."""
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".lan", ".localhost"))


HttpAddress: TypeAlias = Annotated[str, AfterValidator(check_http_address)]


def split_credentials(address: str) -> tuple[str, str]:
    """Return an address without the name and the password in it, and those as name:password."""
    parts = urlsplit(address)
    credentials, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=host)), unquote(credentials)
