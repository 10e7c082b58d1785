"""Validate and split the URLs of services that an operator configures."""

import ipaddress
import re
from typing import Annotated, TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import AfterValidator


def is_http_address(address: str) -> bool:
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises ValueError unless the port is a number
    except ValueError:
        return False
    has_host = parts.scheme in {"http", "https"} and bool(parts.hostname)
    return has_host and not any(char.isspace() for char in address)


def validate_http_address(address: str) -> str:
    """Return the address; raises `ValueError` if it is not a valid http(s) URL."""
    if not is_http_address(address):
        raise ValueError("should be a URL such as http://127.0.0.1:8080/v1")
    if _is_link_local(urlsplit(address).hostname or ""):
        raise ValueError("is a link-local address, where clouds serve metadata and credentials")
    return address


def _is_link_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_link_local
    except ValueError:
        return False


def is_local_network_address(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".lan", ".localhost"))


HttpAddress: TypeAlias = Annotated[str, AfterValidator(validate_http_address)]


def split_credentials(address: str) -> tuple[str, str]:
    """Return a URL without its credentials, and the credentials as "name:password"."""
    parts = urlsplit(address)
    credentials, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=host)), unquote(credentials)


def require_escaped_password(address: str, *, may_contain_at_sign: bool = False) -> None:
    """Raise `ValueError`, without quoting the URL, if the password has unescaped @, /, ? or #."""
    text_after_scheme = address.partition("://")[2]
    authority = re.split("[/?#]", text_after_scheme, maxsplit=1)[0]
    path, _, query = text_after_scheme[len(authority) :].partition("?")
    ends_with_port = re.search(r":\d*$", authority) or ":" not in authority
    query_has_parameters = re.match(r"[\w-]+=", query) and ("@" in authority or ends_with_port)
    if (
        (authority.count("@") > 1 and not may_contain_at_sign)
        or "@" in path
        or ("@" in query and not query_has_parameters)
    ):
        raise ValueError(
            "the password contains a character that must be escaped: write @ as %40, / as %2F,"
            " ? as %3F, # as %23 and % as %25"
        )
