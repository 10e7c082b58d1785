"""Validate and split service addresses that an operator configures."""

import ipaddress
import re
from typing import Annotated, TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import AfterValidator


def is_http_address(address: str) -> bool:
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises if it is no number
    except ValueError:
        return False
    has_host = parts.scheme in {"http", "https"} and bool(parts.hostname)
    return has_host and not any(char.isspace() for char in address)


def check_http_address(address: str) -> str:
    """Return an address if it is a valid http(s) URL; raises `ValueError`."""
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
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".lan", ".localhost"))


HttpAddress: TypeAlias = Annotated[str, AfterValidator(check_http_address)]


def split_credentials(address: str) -> tuple[str, str]:
    """Split an address into one without credentials, and the credentials as name:password."""
    parts = urlsplit(address)
    credentials, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=host)), unquote(credentials)


def require_encoded_login(address: str, *, may_have_at: bool = False) -> None:
    """Raise `ValueError`, without the address, if its password has an unescaped @, /, ? or #.

    Otherwise, the rest of the password would be parsed as the host and appear in errors. With
    `may_have_at`, the parser treats the last `@` as the end of the login.
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
