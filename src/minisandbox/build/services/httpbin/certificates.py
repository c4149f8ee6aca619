"""Make an authority and a certificate of httpbin.org: ``ca.pem``, ``certificate.pem``, ``key.pem``.

The keys are made of a text that everybody can read, and all is signed deterministically, so that
the same bytes come out everywhere. They protect nothing, and need not: the only one who trusts the
authority is a sandbox that is asked to, and in its network there is nobody else.
"""

from __future__ import annotations

import datetime
import hashlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

NAMES = ("httpbin.org", "www.httpbin.org", "eu.httpbin.org")
#: Long ago and far ahead: tests are also run with the clock at another time.
BEGIN = datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)  # noqa: UP017 - runs on 3.9
END = datetime.datetime(2099, 1, 1, tzinfo=datetime.timezone.utc)  # noqa: UP017
AUTHORITY = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "minisandbox test authority")])


def key(purpose: str) -> ec.EllipticCurvePrivateKey:
    """A key for a purpose, the same each time."""
    number = int.from_bytes(hashlib.sha256(f"minisandbox {purpose}".encode()).digest(), "big")
    return ec.derive_private_key(number, ec.SECP256R1())


def certificate(subject: x509.Name, purpose: str, extension: x509.ExtensionType) -> bytes:
    """A certificate of the authority, in PEM."""
    public = key(purpose).public_key()
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(AUTHORITY)
        .public_key(public)
        .serial_number(int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "big"))
        .not_valid_before(BEGIN)
        .not_valid_after(END)
        .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        .sign(key("authority"), hashes.SHA256(), ecdsa_deterministic=True)
    )
    return signed.public_bytes(serialization.Encoding.PEM)


def write(name: str, content: bytes) -> None:
    """One file of the service's folder."""
    with open(name, "wb") as file:
        file.write(content)


if __name__ == "__main__":
    site = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAMES[0])])
    names = x509.SubjectAlternativeName([x509.DNSName(name) for name in NAMES])
    basic = x509.BasicConstraints(ca=True, path_length=0)
    write("ca.pem", certificate(AUTHORITY, "authority", basic))
    write("certificate.pem", certificate(site, "site", names))
    write(
        "key.pem",
        key("site").private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
