"""Which image of a file that holds several is meant.

One image may have several names, and one name may be that of an image for each of several machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minisandbox.oci.sources import Source

#: Images that an error lists.
_SHOWN = 10


@dataclass(frozen=True)
class Choice:
    """One image: its names, the fullest first, what tells it from all others (a digest), where its
    documents begin, and whether it is said to be for this machine.
    """

    names: tuple[str, ...]
    key: str
    document: Any
    fits: bool = True

    def name(self, reference: str) -> str | None:
        """That of its names which ``reference`` is short for, the first for none; None where it is
        called otherwise.
        """
        if reference in ("", self.key):
            return next(iter(self.names), "")
        return next((name for name in self.names if _is_short_for(reference, name)), None)


def _is_short_for(reference: str, name: str) -> bool:
    """Whether ``reference`` is a name, its tag, or what is left of it without its registry."""
    return reference in (name, name.rpartition(":")[2]) or name.endswith(f"/{reference}")


def choose(
    source: Source, where: str, choices: Sequence[Choice], reference: str
) -> tuple[Choice, str]:
    """The only image that ``reference`` can mean, or the only one of them for this machine, and its
    name; raises ``ImageRefused`` with what there is. ``where`` is the file that names them.
    """
    found: dict[str, tuple[Choice, str]] = {}
    for choice in choices:
        name = choice.name(reference)
        if name is not None:
            found.setdefault(choice.key, (choice, name))
    fitting = [pair for pair in found.values() if pair[0].fits]
    for pairs in (list(found.values()), fitting):
        if len(pairs) == 1:
            return pairs[0]
    if not choices:
        raise source.refused(where, "names no image")
    if not found:
        raise source.refused(where, f"names no image {reference!r}, but {_listed(choices)}")
    several = _listed([choice for choice, _ in found.values()])
    raise source.refused(where, f"names {len(found)} images; say which with --ref: {several}")


def _listed(choices: Sequence[Choice]) -> str:
    """By names; by their keys those that share a name or have none."""
    counts = Counter(choice.names[:1] for choice in choices)
    shown = [
        choice.names[0]
        if choice.names and counts[choice.names[:1]] == 1
        else ascii(choice.key[:80])[1:-1]
        for choice in choices
    ]
    return ", ".join(shown[:_SHOWN]) + (" and others" if len(shown) > _SHOWN else "")
