"""The package index that this machine's pip is configured for, as settings for installers in a
sandbox.
"""

from __future__ import annotations

import configparser
import functools
import os
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


@functools.cache
def index_settings() -> IndexSettings:
    """Read once a process: ``PIP_*`` variables first, then pip's configuration files, then the
    defaults.
    """
    configured = _pip_configuration()
    url = os.environ.get("PIP_INDEX_URL") or configured.get("index-url") or DEFAULT_INDEX
    extra = os.environ.get("PIP_EXTRA_INDEX_URL") or configured.get("extra-index-url") or ""
    # Folders of this host are not the index: they are not there on the next machine, nor inside.
    extra = " ".join(part for part in extra.split() if part.startswith(("http://", "https://")))
    variables = {"PIP_INDEX_URL": url, "UV_DEFAULT_INDEX": url, "PIP_DEFAULT_TIMEOUT": "60"}
    if extra:
        variables |= {"PIP_EXTRA_INDEX_URL": extra, "UV_INDEX": extra}
    for name in _PROXIES:
        for spelling in (name, name.upper()):
            if spelling in os.environ:
                variables[spelling] = os.environ[spelling]
    binds: tuple[Bind, ...] = ()
    certificates = _certificates(configured)
    if certificates is not None:
        binds = (Bind(source=certificates, target=_CERTIFICATES),)
        for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            variables[name] = _CERTIFICATES
    return IndexSettings(url, variables, binds)


def _certificates(configured: Mapping[str, str]) -> Path | None:
    """A bundle that was configured, else the system's; ``None`` leaves installers to the one they
    carry.
    """
    named = (
        os.environ.get("PIP_CERT"),
        os.environ.get("SSL_CERT_FILE"),
        configured.get("cert"),
        ssl.get_default_verify_paths().cafile,
    )
    return next((Path(name).resolve() for name in named if name and Path(name).is_file()), None)


def _pip_configuration() -> dict[str, str]:
    """The merged ``[global]`` and ``[install]`` sections of pip's files, as ``pip config debug``
    orders them.
    """
    environment = os.environ.get("PIP_CONFIG_FILE")
    if environment == os.devnull:
        return {}
    home = Path.home()
    xdg = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    files = [
        *(Path(folder) / "pip/pip.conf" for folder in reversed(xdg.split(":"))),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf",
        Path(sys.prefix) / "pip.conf",
        *([Path(environment)] if environment else []),
    ]
    parser = configparser.RawConfigParser(strict=False)
    for file in files:
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue  # pip itself says what is wrong with it
    merged: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            merged.update(parser.items(section))
    return merged
