"""The body of a request with a file: a form with the JSON and the file (RFC 7578)."""

import secrets

from bot.frozen_dataclass import frozen_dataclass

_ESCAPES = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})


@frozen_dataclass
class Upload:
    """A file that is sent with a message."""

    name: str
    content: bytes
    content_type: str


def to_form(payload: bytes, file: Upload) -> tuple[str, bytes]:
    """Return the content type and the content of a form; `payload` is JSON."""
    boundary = secrets.token_hex(16)
    parts = (
        (b'name="payload_json"', b"application/json", payload),
        (
            f'name="files[0]"; filename="{file.name.translate(_ESCAPES)}"'.encode(),
            file.content_type.encode(),
            file.content,
        ),
    )
    line = f"--{boundary}".encode()
    form = b"".join(
        b"%b\r\nContent-Disposition: form-data; %b\r\nContent-Type: %b\r\n\r\n%b\r\n"
        % (line, names, content_type, content)
        for names, content_type, content in parts
    )
    return f"multipart/form-data; boundary={boundary}", b"%b%b--\r\n" % (form, line)
