"""Name the tools of a server as models call them."""

import re

_MAX_CHARS = 64  # OpenAI and Anthropic reject longer names of functions
_OTHER = re.compile(r"[^a-zA-Z0-9_-]")


def offered_name(server: str, tool: str) -> str | None:
    """Return `server_tool` with the signs that providers take; None if it is too long."""
    name = _OTHER.sub("_", f"{server}_{tool}")
    return name if tool and len(name) <= _MAX_CHARS else None
