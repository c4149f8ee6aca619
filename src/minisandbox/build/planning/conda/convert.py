"""From conda's descriptions of an environment to requirements.

Invariant: each entry of the input is either a requirement or in ``dropped`` with its reason.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, is_normalized_name
from packaging.version import InvalidVersion, Version

from minisandbox.build.planning.conda import document, matchspec, names
from minisandbox.build.planning.conda.document import Entry
from minisandbox.build.planning.conda.requirements import split_line
from minisandbox.errors import InvalidInput

#: Build strings of Python packages begin with "py", after a feature or two: "py39h06a4308_0",
#: "pyhd8ed1ab_0", "py_0", "pyge310_1234567_0", "nompi_py310h60e0fe6_102", "unix_pyh707e725_0".
#: "5_cp310" of ``python_abi`` and "1_cpython" of Python itself are none.
_PYTHON_BUILD = re.compile(r"(?:^|_)py(?:(?:ge|lt)?\d|_|h[0-9a-f]{7})")

#: Older ones know no ``manylinux_2_17`` wheels and would be worse than what an environment has.
_OLDEST_PIP = Version("20.3")


@dataclass(frozen=True)
class PipEnvironment:
    """What to install into a virtual environment to have what conda would have.

    ``python`` is a minor version ("3.9"), ``python_full`` the release that an export pins
    ("3.9.20", else ""). ``requirements`` are PEP 508 (and bare URLs of a pip section), sorted,
    with canonical names. ``complete`` says that they are all there is, to be installed with
    ``--no-deps``; else dependencies are to be resolved. Of an export ``pip``, ``setuptools`` and
    ``wheel`` are pinned too, and are to be installed first: they build the source releases among
    the others. ``dropped`` is what pip cannot have, each as "name=version (why)".
    """

    python: str
    python_full: str
    requirements: tuple[str, ...]
    complete: bool
    dropped: tuple[str, ...]


def from_export(text: str, *, where: str) -> PipEnvironment:
    """The text of ``conda env export`` (``name=version=build`` lines and a pip section).

    What the pip section has replaces what conda has. Raises ``InvalidInput`` with the line.
    """
    content = document.read(text, where=where)
    pinned = [_pinned(entry) for entry in content.conda]
    full = _pinned_python(pinned, where)
    found = _Found(_minor(full, where))
    from_pip = _by_name(map(_pip_pinned, content.pip))
    # The interpreter is in no build a Python package: its line takes no part in what follows.
    others = [pin for pin in pinned if pin.name != "python"]
    _by_name(pin for pin in others if pin.is_python)
    for pin in others:
        reason = names.why_unavailable(pin.conda_name, python=found.python)
        if not pin.is_python:
            # Also second names ("importlib_metadata"), whose distribution has a line of its own.
            found.drop(pin.text, "no Python files of its own: a library, program or second name")
        elif reason:
            found.drop(pin.text, reason)
        elif pin.name in from_pip:
            found.drop(pin.text, f"replaced by {from_pip[pin.name].text} of the pip section")
        else:
            found.pin(pin)
    for pin in from_pip.values():
        found.pin(pin)
    found.complete()
    return found.environment(full, complete=True, variables=content.variables)


def from_packages(packages: str, *, python: str, where: str) -> PipEnvironment:
    """A list of conda specifications as on a command line: ``"numpy cython=0.29 'pandas<2'"``.

    Raises ``InvalidInput`` for what is none, and for a Python other than ``python``.
    """
    try:
        words = shlex.split(packages)
    except ValueError as error:
        raise InvalidInput(where, f"cannot be split into words ({error})", "fix quotes") from None
    found = _Found(_minor(python, where))
    for word in words:
        if word.startswith("-") or word.endswith((".txt", ".yml", ".yaml")):
            raise InvalidInput(
                where, f"{word!r} is an option or a file, not a package", "list packages only"
            )
        spec = found.conda(Entry(word, where))
        if spec is not None and not _admits(spec.specifier, found.python):
            raise InvalidInput(
                where, f"{word!r} contradicts Python {found.python}", "remove one of them"
            )
    return found.environment("", complete=False)


def from_environment_yml(text: str, *, python: str, where: str) -> PipEnvironment:
    """A repository's ``environment.yml``: conda specifications and a pip section.

    ``python`` overrides what the file says of Python. Raises ``InvalidInput`` with the line.
    """
    content = document.read(text, where=where)
    found = _Found(_minor(python, where))
    for entry in content.conda:
        found.conda(entry)
    for entry in content.pip:
        found.pip(entry)
    return found.environment("", complete=False, variables=content.variables)


@dataclass(frozen=True)
class _Pin:
    """One distribution at one version; ``name`` is the index's, ``text`` names it in a record.

    ``is_python`` says that its build has Python files.
    """

    conda_name: str
    name: str
    version: str
    is_python: bool
    text: str
    where: str


def _pinned(entry: Entry) -> _Pin:
    parts = entry.text.rpartition("::")[2].split("=")
    if len(parts) != 3 or not all(parts):
        raise InvalidInput(
            entry.where,
            f"{entry.text!r} is not name=version=build",
            "export with `conda env export`, without --no-builds and --from-history",
        )
    conda_name = canonicalize_name(parts[0])
    pin = _Pin(
        conda_name=conda_name,
        name=names.index_name(conda_name),
        version=parts[1],
        is_python=_PYTHON_BUILD.search(parts[2]) is not None,
        text=f"{parts[0]}={parts[1]}",
        where=entry.where,
    )
    if pin.is_python:
        _check(pin)
    return pin


def _pip_pinned(entry: Entry) -> _Pin:
    name, equal, version = entry.text.partition("==")
    if not equal:
        raise InvalidInput(
            entry.where, f"{entry.text!r} is not name==version", "export with `conda env export`"
        )
    name = canonicalize_name(name)
    pin = _Pin(name, name, version, True, entry.text, entry.where)
    _check(pin)
    return pin


def _check(pin: _Pin) -> None:
    """Raises ``InvalidInput`` for what could not be said to pip."""
    if not is_normalized_name(pin.name):
        raise InvalidInput(pin.where, f"{pin.text!r} has no name that pip knows (PEP 503)")
    try:
        Version(pin.version if len(pin.version) <= matchspec.LONGEST else "")
    except InvalidVersion:
        raise InvalidInput(
            pin.where, f"{pin.version!r} is not a version that pip knows (PEP 440)"
        ) from None


def _pinned_python(pinned: Iterable[_Pin], where: str) -> str:
    versions = [pin.version for pin in pinned if pin.name == "python"]
    if len(versions) != 1 or re.fullmatch(r"\d+\.\d+(\.\d+)?", versions[0], re.ASCII) is None:
        raise InvalidInput(
            where,
            f"pins {' and '.join(versions) or 'no version'} of python",
            "expected one line like 'python=3.9.20=he870216_1'",
        )
    return versions[0]


def _by_name(pins: Iterable[_Pin]) -> dict[str, _Pin]:
    """Raises ``InvalidInput`` for two versions of one distribution."""
    found: dict[str, _Pin] = {}
    for pin in pins:
        other = found.setdefault(pin.name, pin)
        if Version(other.version) != Version(pin.version):
            raise InvalidInput(
                pin.where, f"has {pin.text}, but there is {other.text} already", "remove one"
            )
    return found


def _minor(python: str, where: str) -> str:
    match = re.fullmatch(r"(\d+\.\d+)(\.\d+)?", python, re.ASCII)
    if match is None:
        raise InvalidInput(
            where, f"Python {python!r} is not a version", "expected one like '3.9' or '3.9.20'"
        )
    return match[1]


def _admits(specifier: SpecifierSet, minor: str) -> bool:
    """Whether some release of a minor version fits; no minor version has had a hundred."""
    return any(specifier.contains(f"{minor}.{micro}") for micro in range(100))


def _exact(specifier: SpecifierSet) -> str:
    """The one version that a specifier admits; "" if there may be more."""
    exact = [one.version for one in specifier if one.operator == "==" and "*" not in one.version]
    return exact[0] if exact else ""


@dataclass
class _Found:
    """Requirements by name (and marker), as they are collected."""

    python: str
    requirements: dict[tuple[str, str], Requirement] = field(
        default_factory=dict[tuple[str, str], Requirement]
    )
    of_conda: set[str] = field(default_factory=set[str])
    urls: list[str] = field(default_factory=list[str])
    dropped: list[str] = field(default_factory=list[str])

    def drop(self, text: str, reason: str) -> None:
        self.dropped.append(f"{text} ({reason})")

    def pin(self, pin: _Pin) -> None:
        """Take one line of an export."""
        if pin.name == "pip" and Version(pin.version) < _OLDEST_PIP:
            self.drop(pin.text, f"older than pip {_OLDEST_PIP}, the environment brings its own")
            return
        key = (pin.name, "")
        if key not in self.requirements:
            self.requirements[key] = Requirement(f"{pin.name}=={pin.version}")

    def complete(self) -> None:
        """Add what exports leave out."""
        for name, _ in list(self.requirements):
            version = _exact(self.requirements[name, ""].specifier)
            needed = names.left_out(name, version)
            if needed is not None:
                self.requirements.setdefault((needed[0], ""), Requirement("==".join(needed)))

    def conda(self, entry: Entry) -> Requirement | None:
        """Take one conda specification; given back only where it is Python itself."""
        if entry.text.startswith("_"):
            self.drop(entry.text, "conda's own bookkeeping")
            return None
        spec = matchspec.parse(entry.text, where=entry.where)
        reason = names.why_unavailable(spec.name, python=self.python)
        if spec.name == "python":
            self.drop(entry.text, f"the recipe says Python {self.python}")
            return spec
        if reason:
            self.drop(entry.text, reason)
        elif names.is_native(spec.name):
            self.drop(entry.text, "not a Python distribution")
        elif spec.name == "pip" and not spec.specifier:
            self.drop(entry.text, "every environment has one")
        else:
            spec.name = names.index_name(spec.name)
            self._merge(spec, entry)
            self.of_conda.add(spec.name)
        return None

    def pip(self, entry: Entry) -> None:
        """Take one line of a pip section, which is installed over what conda installed."""
        line, lost = split_line(entry.text, where=entry.where)
        self.dropped += lost
        if not line:
            return
        try:
            requirement = Requirement(line)
        except InvalidRequirement:  # a bare URL
            self.urls.append(line)
            return
        requirement.name = canonicalize_name(requirement.name)
        decides = requirement.url is not None or len(requirement.specifier) > 0
        if requirement.name in self.of_conda and requirement.marker is None and decides:
            replaced = self.requirements.pop((requirement.name, ""))
            self.of_conda.remove(requirement.name)
            if replaced.specifier:
                self.drop(str(replaced), f"replaced by {line} of the pip section")
        self._merge(requirement, entry)

    def _merge(self, requirement: Requirement, entry: Entry) -> None:
        """Add to what the same name has already; raises ``InvalidInput`` for two exact versions."""
        key = (requirement.name, str(requirement.marker or ""))
        other = self.requirements.get(key)
        if other is not None:
            first, second = _exact(other.specifier), _exact(requirement.specifier)
            differ = first and second and Version(first) != Version(second)
            if differ or other.url != requirement.url:
                raise InvalidInput(
                    entry.where,
                    f"{entry.text!r} asks for another version than {str(other)!r}",
                    "remove one of them",
                )
            requirement.specifier &= other.specifier
            requirement.extras |= other.extras
        self.requirements[key] = requirement

    def _usable(self, requirement: Requirement) -> Requirement:
        """The same requirement, at the nearest version that has a file for this Python."""
        asked = _exact(requirement.specifier)
        nearest = names.nearest_version(requirement.name, asked, python=self.python)
        if nearest != asked:
            self.drop(
                f"{requirement.name}={asked}", f"no wheel for Python {self.python}: {nearest}"
            )
            requirement.specifier = SpecifierSet(f"=={nearest}")
        return requirement

    def environment(
        self, full: str, *, complete: bool, variables: Iterable[str] = ()
    ) -> PipEnvironment:
        """What was collected, in a fixed order."""
        for name in variables:
            self.drop(f"variables: {name}", "variables belong into 'env' of the recipe")
        usable = [self._usable(requirement) for requirement in self.requirements.values()]
        return PipEnvironment(
            python=self.python,
            python_full=full,
            requirements=tuple(sorted([*map(str, usable), *self.urls])),
            complete=complete,
            dropped=tuple(self.dropped),
        )
