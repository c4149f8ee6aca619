"""What a format is: how a row of it is recognised, put into SWE-bench's columns, and refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minisandbox.records.plan import InstancePlan

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Refusal:
    """Why a row that can be read is not built: ``kind`` is one of ``records.stages.FAILURE_KINDS``.

    ``final`` says that a recipe file does not help either.
    """

    kind: str
    message: str
    final: bool = False


def as_it_is(row: Values) -> Values:
    """For formats whose columns are SWE-bench's."""
    return row


def as_it_says(instance: InstancePlan) -> InstancePlan:
    """For formats whose columns mean what SWE-bench's do."""
    return instance


def never(instance: InstancePlan) -> Refusal | None:
    """For formats of which every row can be built, given a recipe."""
    del instance
    return None


@dataclass(frozen=True)
class Format:
    """One kind of rows.

    ``fits`` tells by the columns whether a row is of it; ``adapt`` gives the row SWE-bench's
    columns; ``mean`` says what is meant by them where that is another thing than there; ``refuse``
    says what its instances lack. ``evaluated`` says that its rows bring their own evaluation, in
    the columns of SWE-bench 5.
    """

    name: str
    fits: Callable[[Values], bool]
    adapt: Callable[[Values], Values] = as_it_is
    refuse: Callable[[InstancePlan], Refusal | None] = never
    mean: Callable[[InstancePlan], InstancePlan] = as_it_says
    evaluated: bool = False
