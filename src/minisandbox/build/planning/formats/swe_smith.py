"""SWE-smith rows, official and made with its tools: ``patch`` puts a bug into a healthy commit.

Their ids say where: ``owner__name.commit.bug``. Official rows have no base commit, their ``repo``
is a mirror with one branch a bug; the healthy tree is also that of the project at the id's commit.
"""

from __future__ import annotations

import re
from collections.abc import Sized
from typing import Any

from minisandbox.build.planning.formats.format import Format, Refusal, Values
from minisandbox.records.plan import InstancePlan

_ID = re.compile(r"[A-Za-z0-9._-]+?__[A-Za-z0-9._-]+?\.(?P<commit>[0-9a-f]{8})\..+")
_HASH = re.compile(r"[0-9a-f]{7,64}")


def _fits(row: Values) -> bool:
    named = _ID.fullmatch(str(row.get("instance_id")))
    return named is not None and not _holds_something(row.get("test_patch"))


def _adapt(row: Values) -> Values:
    adapted = dict(row)
    # What the bug breaks is what its removal has to mend.
    broken = adapted.pop("PASS_TO_FAIL", None)
    if not _holds_something(adapted.get("FAIL_TO_PASS")):
        adapted["FAIL_TO_PASS"] = broken
    named = _ID.fullmatch(str(row["instance_id"]))
    # Rows that were made with the tools name a branch of the mirror, or nothing.
    if named and not _HASH.fullmatch(str(adapted.get("base_commit"))):
        adapted["base_commit"] = named["commit"]
    return adapted


def _holds_something(value: Any) -> bool:
    """Text or a list with something in it; in files of pandas what is missing is NaN."""
    if isinstance(value, str):
        return value not in ("", "[]")
    return isinstance(value, Sized) and len(value) > 0


def _refuse(instance: InstancePlan) -> Refusal:
    message = (
        "it is a SWE-smith row, whose patch puts the bug in instead of taking it out: such rows "
        "are not built yet"
    )
    if not instance.fail_to_pass:
        message += ", and this one names no test that the bug breaks"
    return Refusal("format", message, final=True)


FORMAT = Format("swe-smith", _fits, _adapt, _refuse)
