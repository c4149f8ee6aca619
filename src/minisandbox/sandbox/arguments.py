"""What callers pass, checked before anything is sent.

A request is marshalled, which takes ``str`` and ``int`` themselves but no subclass of them (an
enum, a scalar of numpy), and what a call inside does not take ends the process that made it.
Invariant: what comes out of here is of plain types and can be sent; for all else the caller is told
in one sentence which argument it was, never what was in it, which may be a secret.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, cast

from minisandbox.errors import InvalidInput

#: Beyond these no kernel counts anything.
_NUMBERS = range(-(1 << 63), 1 << 63)


def _refuse_type(where: str, value: object, remedy: str, *, what: str = "") -> InvalidInput:
    return InvalidInput(where, f"{what}is of type {type(value).__name__}", remedy)


def encoded(where: str, value: object, *, what: str = "", remedy: str = "give a string") -> bytes:
    """Text as its bytes, as ``os.fsencode`` has it; refuses what has none. ``what`` is what of
    ``where`` it is, with a blank after it.
    """
    if not isinstance(value, str):
        raise _refuse_type(where, value, remedy, what=what)
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        half = f"{value[error.start : error.end]!r} at {error.start}"
        problem = f"{what}has half a character ({half})"
        raise InvalidInput(where, problem, "pass the text as it was read") from None


def text(where: str, value: object, *, what: str = "", remedy: str = "give a string") -> str:
    """A string for a program or a path: without NUL bytes; as :func:`encoded`."""
    if b"\0" in encoded(where, value, what=what, remedy=remedy):
        raise InvalidInput(where, f"{what}holds a NUL byte", "no program or path can have one")
    return str.__str__(cast("str", value))  # str() of an enum is its name


def whole(where: str, value: object, *, least: int, remedy: str, most: int | None = None) -> int:
    """A whole number from ``least`` to ``most``."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(cast("int", value))
    except TypeError:
        raise _refuse_type(where, value, remedy) from None
    if number not in _NUMBERS:
        raise InvalidInput(where, "has more digits than anything counted", remedy)
    if number < least or (most is not None and number > most):
        raise InvalidInput(where, f"is {number}", remedy)
    return number


def size(where: str, value: object) -> int:
    """A number of bytes, or of what else can be counted."""
    return whole(where, value, least=0, remedy="give a whole number from 0 on")


def seconds(where: str, value: object) -> float | None:
    """A time to wait for, or None."""
    remedy = "give seconds from 0 on, or None to wait for the end"
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _refuse_type(where, value, remedy)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if cast("Any", value) > 0 else -math.inf
    if not number >= 0:  # NaN is not either
        raise InvalidInput(where, f"is {number:g}", remedy)
    return number


def sequence(where: str, value: object, *, remedy: str) -> list[Any]:
    """The elements of a list, tuple or the like; a string is none."""
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Sequence):
        raise _refuse_type(where, value, remedy)
    return list(cast("Iterable[Any]", value))


def texts(where: str, value: object, *, remedy: str) -> list[str]:
    """A sequence of strings."""
    return [
        text(where, element, what=f"element {number} ", remedy=remedy)
        for number, element in enumerate(sequence(where, value, remedy=remedy))
    ]


def argv(where: str, value: object) -> list[str]:
    """A program with its arguments."""
    remedy = "give a program and its arguments, each a string"
    elements = texts(where, value, remedy=remedy)
    if not elements:
        raise InvalidInput(where, "the sequence is empty", remedy)
    return elements


def command(where: str, value: object) -> str | list[str]:
    """Shell text, or a program with its arguments."""
    if isinstance(value, str):
        return text(where, value)
    if isinstance(value, bytes | bytearray) or not isinstance(value, Sequence):
        remedy = "give shell text as a string, or a program and its arguments as a list of strings"
        raise _refuse_type(where, value, remedy)
    return argv(where, cast("object", value))


def variables(where: str, value: object) -> dict[str, str]:
    """An environment; None is empty."""
    remedy = "give strings by name"
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _refuse_type(where, value, remedy)
    checked: dict[str, str] = {}
    for key, content in cast("Mapping[object, object]", value).items():
        name = text(where, key, what="a name ", remedy=remedy)
        if not name or "=" in name:
            raise InvalidInput(where, f"{name!r} is no name of a variable", "leave out the `=`")
        checked[name] = text(where, content, what=f"the value of {name} ", remedy=remedy)
    return checked


def user(where: str, value: object) -> str | int | None:
    """A user's name or number, or None for root. Whether there is one is found out inside."""
    if value is None:
        return None
    remedy = "give a user's name or number"
    if isinstance(value, str):
        return text(where, value, remedy=remedy)
    return whole(where, value, least=_NUMBERS[0], remedy=remedy)


def content(where: str, value: object) -> bytes | memoryview:
    """Bytes, or text as its bytes."""
    if isinstance(value, str):
        return encoded(where, value)
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _refuse_type(where, value, "give bytes or a string")
    view = memoryview(cast("bytes", value))
    try:
        return view.cast("B")
    except TypeError:  # it has no bytes, or not in the order of its elements
        return view.tobytes()


def host_path(where: str, value: object) -> str:
    """A path of this host as a string."""
    remedy = "give a path of this host, a string or a Path"
    if not isinstance(value, str | os.PathLike):
        raise _refuse_type(where, value, remedy)
    return text(where, os.fspath(cast("os.PathLike[str]", value)), remedy=remedy)


def function(where: str, value: object) -> None:
    """Refuse what can neither be called nor is None."""
    if value is not None and not callable(value):
        raise _refuse_type(where, value, "give a function")


def instance_of(where: str, value: object, kind: type) -> None:
    """Refuse what is not of a class of this package."""
    if not isinstance(value, kind):
        raise _refuse_type(where, value, f"give an object of type {kind.__name__}")


def terminal_size(where: str, value: object) -> tuple[int, int]:
    """Rows and columns of a terminal, which the kernel keeps in 16 bits each."""
    remedy = "give rows and columns, two whole numbers from 0 to 65,535"
    numbers = sequence(where, value, remedy=remedy)
    if len(numbers) != 2:
        raise InvalidInput(where, f"has {len(numbers)} elements", remedy)
    rows, columns = (whole(where, n, least=0, most=65_535, remedy=remedy) for n in numbers)
    return rows, columns
