"""Check and take apart the addresses of HTTP services that an operator sets."""

import ipaddress
import re
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


def require_encoded_login(address: str, *, may_have_at: bool = False) -> None:
    """Check that no character of a password ends the login of an address of a server too soon.

    Else the rest of the password would be taken for the host, and stand in errors.

    Args:
        address: of a database or a Redis.
        may_have_at: whether its reader takes the last `@` for the end of the login.

    Raises:
        ValueError: one does; the text has nothing of the address.
    """
    rest = address.partition("://")[2]
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    behind, _, query = rest[len(authority) :].partition("?")
    is_port = re.search(r":\d*$", authority) or ":" not in authority
    has_parameters = re.match(r"[\w-]+=", query) and ("@" in authority or is_port)
    if (
        (authority.count("@") > 1 and not may_have_at)
        or "@" in behind
        or ("@" in query and not has_parameters)
    ):
        raise ValueError(
            "a character of the password ends it too soon: write @ as %40, / as %2F, ? as %3F,"
            " # as %23 and % as %25"
        )
