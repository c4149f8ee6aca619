"""SWE-smith rows, official and made with its tools: ``patch`` puts a bug into a healthy commit.

Their ids say where: ``owner__name.commit.bug``. Official rows have no base commit, and their
``repo`` is a mirror with one branch a bug; the healthy tree is that of the project itself at the
id's commit, so that is where it is taken from.
"""

from __future__ import annotations

import re
from collections.abc import Sized
from dataclasses import replace
from typing import Any

from minisandbox.build.planning.formats.format import Format, Refusal, Values
from minisandbox.evaluate.reversal import reverse
from minisandbox.records.plan import InstancePlan

#: No owner has two underscores in its name.
_ID = re.compile(
    r"(?P<owner>[A-Za-z0-9._-]+?)__(?P<name>[A-Za-z0-9._-]+?)\.(?P<commit>[0-9a-f]{8})\..+"
)
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
    assert named is not None
    adapted["repo"] = f"{named['owner']}/{named['name']}"
    # Rows made with the tools name a branch of the mirror, or nothing; those made of pull requests
    # a commit of that.
    commit = str(adapted.get("base_commit"))
    if not (_HASH.fullmatch(commit) and commit.startswith(named["commit"])):
        adapted["base_commit"] = named["commit"]
    # What the official package specifies is of one commit.
    adapted["version"] = named["commit"]
    return adapted


def _holds_something(value: Any) -> bool:
    """Text or a list with something in it; in files of pandas what is missing is NaN."""
    if isinstance(value, str):
        return value not in ("", "[]")
    return isinstance(value, Sized) and len(value) > 0


def _mean(instance: InstancePlan) -> InstancePlan:
    try:
        return replace(instance, bug=instance.patch, patch=reverse(instance.patch))
    except ValueError:
        return instance


def _refuse(instance: InstancePlan) -> Refusal | None:
    if instance.bug:
        return None
    try:
        reverse(instance.patch)
    except ValueError as error:
        reason = str(error) if instance.patch else "it is empty"
        return Refusal("patch", f"its patch cannot put a bug in and be taken back: {reason}", True)
    return None


FORMAT = Format("swe-smith", _fits, _adapt, _refuse, _mean)
