"""The package index that this machine's pip is configured for, and its certificates.

What installers in a sandbox need of it comes as variables and binds.
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from minisandbox.pipconfig import pip_settings
from minisandbox.sandbox import Bind

DEFAULT_INDEX = "https://pypi.org/simple"

#: Where the certificates of the host appear inside.
_CERTIFICATES = "/run/minisandbox/certificates.pem"
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


@dataclass(frozen=True)
class IndexSettings:
    """Environment variables and binds that make pip and uv inside use the host's index."""

    url: str
    variables: Mapping[str, str]
    binds: tuple[Bind, ...]


#: Variables by which people name a certificate bundle, pip's own first.
_CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


def index_url() -> str:
    """The address of the index."""
    return pip_settings().get("index-url", "").strip() or DEFAULT_INDEX


def index_urls() -> tuple[str, ...]:
    """The addresses of the index and of the further ones, first the one that wins.

    Folders of this host are left out: they are not there on the next machine, nor inside.
    """
    further = pip_settings().get("extra-index-url", "").split()
    return (index_url(), *(url for url in further if url.startswith(("http://", "https://"))))


def without_credentials(url: str) -> str:
    """``url`` as it may be shown and kept."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def certificates() -> Path | None:
    """A bundle that was configured, else the system's; ``None`` leaves clients to their own."""
    named = (
        *(os.environ.get(name) for name in _CA_VARIABLES),
        pip_settings().get("cert"),
        ssl.get_default_verify_paths().cafile,
        "/etc/ssl/certs/ca-certificates.crt",  # Debian's interpreters name a folder only
    )
    return next((Path(name).resolve() for name in named if name and Path(name).is_file()), None)


@functools.cache
def index_settings() -> IndexSettings:
    """What makes pip and uv in a sandbox use this machine's index."""
    url, *further = index_urls()
    extra = " ".join(further)
    variables = {"PIP_INDEX_URL": url, "UV_DEFAULT_INDEX": url, "PIP_DEFAULT_TIMEOUT": "60"}
    if extra:
        variables |= {"PIP_EXTRA_INDEX_URL": extra, "UV_INDEX": extra}
    for name in _PROXIES:
        for spelling in (name, name.upper()):
            if spelling in os.environ:
                variables[spelling] = os.environ[spelling]
    binds: tuple[Bind, ...] = ()
    bundle = certificates()
    if bundle is not None:
        binds = (Bind(source=bundle, target=_CERTIFICATES),)
        for name in (*_CA_VARIABLES, "GIT_SSL_CAINFO"):
            variables[name] = _CERTIFICATES
    return IndexSettings(url, variables, binds)
