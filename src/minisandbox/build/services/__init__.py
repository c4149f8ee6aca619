"""Local services that tests talk to, each packed as a layer of its own: a folder here a service.

A folder holds ``service.yaml`` (what it is installed from) and the files that lie beside its
packages inside: ``start``, which returns when the service answers, and what that runs. In a sandbox
a service is below ``/opt/services/<name>``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from minisandbox import keys
from minisandbox.errors import InvalidInput
from minisandbox.records import codec

_DESCRIPTION = "service.yaml"


@dataclass(frozen=True)
class Service:
    """One service: the Python that its packages need, and the packages, all of them pinned.

    ``prepare`` is run by its Python, in its folder, when it is installed. ``files`` are the texts
    of its folder by name.
    """

    name: str
    python: str
    packages: tuple[str, ...]
    prepare: str
    files: dict[str, str]

    @property
    def digest(self) -> str:
        """Of all that decides what its layer holds, but for the interpreter."""
        return keys.digest_of(codec.encode(self))


def service_names() -> list[str]:
    """The services that there are."""
    folder = resources.files(__name__)
    return sorted(item.name for item in folder.iterdir() if (item / _DESCRIPTION).is_file())


@cache
def service(name: str) -> Service:
    """One service; raises ``InvalidInput`` for a name that is none."""
    if name not in service_names():
        known = ", ".join(service_names())
        raise InvalidInput("services", f"there is no {name!r}", f"known: {known}")
    folder = resources.files(__name__) / name
    described: dict[str, Any] = yaml.safe_load((folder / _DESCRIPTION).read_text("utf-8"))
    files = {
        item.name: item.read_text("utf-8")
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.is_file() and item.name != _DESCRIPTION
    }
    return codec.decode(Service, {"name": name, "files": files, **described}, where=name)
