"""What a packed base consists of: a file that says what it is, and a lock that says which packages.

``envs/bases/<name>.yaml`` is written by people, ``<name>.<architecture>.lock.json`` beside it by
``minisandbox base lock``. The lock names each package with its digest, so that what a base is can
be told, and goes into the keys of environments, without a network.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from minisandbox import atomic, keys
from minisandbox.build.planning.yamlfile import read_yaml
from minisandbox.errors import InvalidInput
from minisandbox.records import codec
from minisandbox.records.plan import DebianPackage

#: Version of how packages become a base, the script apart; a change of what comes out makes every
#: record anew.
METHOD = 1

#: What Debian calls the architectures that sandboxes run on.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Archive:
    """A package archive: ``{archive}`` in the addresses of mirrors, and what of it is used."""

    archive: str
    suites: tuple[str, ...]
    components: tuple[str, ...] = ("main",)


@dataclass(frozen=True)
class Definition:
    """The file that people write. ``extras`` may be added by recipes, ``aliases`` are other names
    for packages; ``keyring`` verifies the archives when a lock is made.
    """

    os: str
    os_version: str
    libc: str
    keyring: str
    archives: tuple[Archive, ...]
    mirrors: tuple[str, ...]
    packages: tuple[str, ...]
    extras: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Lock:
    """``packages`` is everything, ``base`` names what is in the base, ``extras`` what else each
    one of these needs. ``date`` is when the archives were read, as snapshot.debian.org has it.
    """

    date: str
    architecture: str
    packages: tuple[DebianPackage, ...]
    base: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]]


def definition_file(folder: Path, name: str) -> Path:
    """Where the definition of a base lies; raises ``InvalidInput`` if there is none."""
    path = folder / f"{name}.yaml"
    if not path.is_file():
        found = ", ".join(["host", *sorted(item.stem for item in folder.glob("*.yaml"))])
        raise InvalidInput(f"base {name!r}", f"is not defined in {folder}", f"there are {found}")
    return path


def read_definition(folder: Path, name: str) -> Definition:
    """The definition of a base; raises ``InvalidInput``."""
    path = definition_file(folder, name)
    return codec.decode(Definition, read_yaml(path), where=str(path))


def lock_file(folder: Path, name: str) -> Path:
    """Where the lock for this machine's architecture lies."""
    machine = platform.machine()
    return folder / f"{name}.{ARCHITECTURES.get(machine, machine)}.lock.json"


def write_lock(path: Path, lock: Lock) -> None:
    """One package a line, so that two locks can be compared by eye."""
    values = codec.encode(lock)
    packages = ",\n".join(f"  {json.dumps(package)}" for package in values.pop("packages"))
    rest = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
    listed = f' "packages": [\n{packages}\n ]'
    atomic.write_text(path, "{\n" + ",\n".join([*rest, listed]) + "\n}\n")


def read_lock(folder: Path, name: str) -> Lock:
    """The lock of a base; raises ``InvalidInput``."""
    path = lock_file(folder, name)
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput(
            str(path), "does not exist", f"make it with `minisandbox base lock {name}`"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidInput(str(path), f"cannot be read ({error})") from None
    lock = codec.decode(Lock, data, where=str(path))
    needed = {*lock.base, *(name for names in lock.extras.values() for name in names)}
    if unknown := sorted(needed - {package.name for package in lock.packages}):
        raise InvalidInput(str(path), f"has no package {unknown[0]}", "make it again")
    for package in lock.packages:
        try:
            keys.hex_of(f"sha256:{package.sha256}")  # it becomes a path
        except ValueError as error:
            raise InvalidInput(str(path), str(error), "make it again") from None
    return lock


class PackedBase:
    """A base for which there is a lock, and its variants with further packages."""

    def __init__(self, name: str, definition: Definition, lock: Lock) -> None:
        self.name = name
        self.definition = definition
        self.lock = lock
        self.packages = {package.name: package for package in lock.packages}

    @classmethod
    def read(cls, folder: Path, name: str) -> PackedBase:
        """Raises ``InvalidInput``."""
        return cls(name, read_definition(folder, name), read_lock(folder, name))

    def further(self, system_packages: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What a variant has that the base has not: names of packages, sorted; and those of
        ``system_packages`` that the lock does not know.
        """
        names: set[str] = set()
        unknown: list[str] = []
        for asked in system_packages:
            name = self.definition.aliases.get(asked, asked)
            if name in self.lock.base:
                continue
            if name in self.lock.extras:
                names.update(self.lock.extras[name])
            else:
                unknown.append(asked)
        return tuple(sorted(names)), tuple(unknown)

    def slug(self, system_packages: Sequence[str] = ()) -> str:
        """File name of the base, or of the variant with these packages."""
        names, unknown = self.further(system_packages)
        if not names and not unknown:
            return self.name
        return f"{self.name}-{keys.short(keys.digest_of([names, unknown]))}"

    def identity(self, system_packages: Sequence[str] = ()) -> dict[str, str]:
        """What an environment on it is compiled against, by the fields of ``manifest.Base``."""
        names, unknown = self.further(system_packages)
        return {
            "kind": self.name,
            "os": self.definition.os,
            "os_version": self.definition.os_version,
            "libc": self.definition.libc,
            "arch": platform.machine(),
            "packages": self._digest(names, unknown),
        }

    def _digest(self, further: Collection[str], unknown: Sequence[str]) -> str:
        """A digest of the packages and how they become layers."""
        names = sorted([*self.lock.base, *further])
        return keys.digest_of(
            {
                "method": METHOD,
                "script": _text("configure.sh"),
                "packages": [[name, self.packages[name].sha256] for name in names],
                "unknown": list(unknown),
                **({"variant": _text("set_aside.sh")} if further else {}),
            }
        )


def _text(script: str) -> str:
    return (resources.files("minisandbox.build.bases") / script).read_text("utf-8")
