"""conda's match specifications ("cython=0.29", "pandas >=1.5,<2") as requirements of pip.

The grammar is that of conda's documentation ("Package match specifications"): one ``=`` matches a
prefix, two are exact, a version after a space is exact, and a build string can follow. A build
string says nothing to pip and is left out; alternatives (``|``) cannot be said to pip at all.
"""

from __future__ import annotations

import re

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from minisandbox.errors import InvalidInput

_SPEC = re.compile(
    r"(?:[\w./-]+::)?"  # channel
    r"(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)"
    r"(?:\[(?P<extras>[\w\s,.-]*)\])?"
    r"(?P<version>([\s<>=!~].*)?)",
    re.ASCII | re.DOTALL,
)
_SPACED_OPERATOR = re.compile(r"\s*([,|]|[<>=!~]+)\s*")
_TERM = re.compile(r"(==|=|!=|>=|<=|>|<|~=)?([^<>=!~|,\s]+)")
_WITH_BUILD = re.compile(r"={1,2}([^<>=!~|,\s]+)=([^<>=!~|,\s]+)")
#: Characters of a specification; of a version with thousands of digits Python makes no number.
LONGEST = 1000
_REMEDY = "write it like 'numpy', 'numpy=1.19', 'numpy==1.19.2' or 'numpy>=1.19,<2'"


def parse(text: str, *, where: str) -> Requirement:
    """One specification, its name canonical and still conda's; raises ``InvalidInput``."""
    match = _SPEC.fullmatch(text.strip()) if len(text) <= LONGEST else None
    if match is None:
        raise InvalidInput(where, f"{text!r} is not a conda specification", _REMEDY)
    extras = f"[{match['extras']}]" if match["extras"] else ""
    name = canonicalize_name(match["name"])
    try:
        return Requirement(f"{name}{extras}{_specifier(match['version'], text, where)}")
    except InvalidRequirement:
        raise InvalidInput(
            where, f"{text!r} has a version or extra that pip cannot read (PEP 440)", _REMEDY
        ) from None


def _specifier(text: str, spec: str, where: str) -> str:
    """The version part in pip's language: ``=1.2`` to ``==1.2.*``, ``>=1.2.*`` to ``>=1.2``."""
    parts = _SPACED_OPERATOR.sub(r"\1", text.strip()).split()
    if len(parts) > 2:
        raise InvalidInput(where, f"{spec!r} has more than a version and a build string", _REMEDY)
    if not parts:
        return ""
    with_build = _WITH_BUILD.fullmatch(parts[0])
    if with_build is not None:
        return _exact(with_build[1])
    if "|" in parts[0]:
        raise InvalidInput(
            where, f"{spec!r} has alternatives ('|'), which pip cannot choose from", "name one"
        )
    terms = (_term(term, spec, where) for term in parts[0].split(","))
    return ",".join(term for term in terms if term)


def _term(text: str, spec: str, where: str) -> str:
    match = _TERM.fullmatch(text)
    if match is None:
        raise InvalidInput(where, f"{spec!r} is not a conda specification", _REMEDY)
    operator, version = match[1] or "", match[2]
    if operator == "=":
        return "" if version == "*" else f"=={_stem(version)}.*"
    if operator in ("", "=="):
        return _exact(version)
    if operator in (">=", "<=", ">", "<"):
        # conda reads no star here.
        return f"{operator}{_stem(version)}"
    return f"{operator}{version}"


def _exact(version: str) -> str:
    if version == "*":
        return ""
    return f"=={_stem(version)}.*" if version.endswith("*") else f"=={version}"


def _stem(version: str) -> str:
    """``1.2``, ``1.2*`` and ``1.2.*`` all as ``1.2``."""
    return version.removesuffix("*").removesuffix(".")
