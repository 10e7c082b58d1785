"""Certificates for the test servers."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificate(name: str) -> tuple[bytes, bytes]:
    """Return a self-signed certificate for 127.0.0.1 and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    number = x509.random_serial_number()
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), number, now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    return certificate.public_bytes(pem), key.private_bytes(pem, form, plain)
