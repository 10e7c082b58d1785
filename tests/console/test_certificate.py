"""HTTPS with a certificate that is renewed while the server runs."""

import asyncio
import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bot.console.server import ServedCertificate, serve_http
from bot.errors import SettingsError
from bot.settings import ConsoleSettings


def make_pair(name: str) -> tuple[bytes, bytes]:
    """Return a certificate of this name and its key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    return certificate.public_bytes(pem), key.private_bytes(pem, form, plain)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    for file, content in zip(files, make_pair("first"), strict=True):
        file.write_bytes(content)
    return files


async def served_name(context: ssl.SSLContext) -> str:
    """Return the name in the certificate that a new connection is shown."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", ssl=context)
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with server:
        host, port = server.sockets[0].getsockname()
        _, writer = await asyncio.open_connection(host, port, ssl=trusting)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
    [name] = x509.load_der_x509_certificate(shown).subject
    return str(name.value)


async def test_renewed_certificate_is_shown_once_its_key_fits(files: tuple[Path, Path]) -> None:
    served = ServedCertificate(*files)
    certificate, key = make_pair("second")
    await asyncio.to_thread(files[0].write_bytes, certificate)
    served.read_changed_files()
    assert await served_name(served.context) == "first", "the key is still that of the first"
    await asyncio.to_thread(files[1].write_bytes, key)
    served.read_changed_files()
    assert await served_name(served.context) == "second"


async def test_server_follows_its_certificate_and_refuses_a_wrong_one(
    files: tuple[Path, Path],
) -> None:
    settings = ConsoleSettings(port=0, tls_certificate=files[0], tls_key=files[1])
    async with serve_http(settings, []) as address:
        assert address.startswith("https://")
    await asyncio.to_thread(files[1].write_bytes, make_pair("other")[1])
    with pytest.raises(SettingsError, match="TROUPE_CONSOLE__TLS_CERTIFICATE"):
        async with serve_http(settings, []):
            pass
