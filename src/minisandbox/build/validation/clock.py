"""An instance whose programs see another date: a small library that is preloaded into all of them.

The kernel has no namespace for the time of day. The library is compiled inside, against the C
library that its programs have; a program that is linked statically sees the real date.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib import resources

from minisandbox.errors import MiniSandboxError
from minisandbox.records.plan import InstancePlan, Recipe
from minisandbox.runtime import Instance

_LIBRARY = "/opt/minisandbox/clock.so"
_SOURCE = "/opt/minisandbox/clock.c"
_COMPILER = "cc"

#: A date nearer than this shows nothing: what fails now would have failed then.
_NEAR = timedelta(days=2)


class ClockUnavailable(MiniSandboxError):
    """The clock of an instance cannot be set."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def date_of(row: InstancePlan, recipe: Recipe) -> datetime | None:
    """When the tests of a row are known to have been run by somebody: its ``created_at``, else the
    date of its recipe; ``None`` without either, and where that was days ago.
    """
    at = _parsed(row.extra.get("created_at")) or _parsed(recipe.date)
    return at if at is not None and datetime.now(UTC) - at > _NEAR else None


def _parsed(text: object) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def clock_variables(at: datetime) -> Mapping[str, str]:
    """What every process of the instance has to have in its environment, from its start on."""
    return {"LD_PRELOAD": _LIBRARY, "MINISANDBOX_CLOCK": str(int(at.timestamp() - time.time()))}


def set_clock(instance: Instance, at: datetime) -> None:
    """Let programs of an instance with ``clock_variables`` see ``at``; raises
    ``ClockUnavailable``.
    """
    source = (resources.files("minisandbox.build.validation") / "clock.c").read_bytes()
    instance.write_file(_SOURCE, source)
    compiled = instance.run(
        f"{_COMPILER} -shared -fPIC -O1 -o {_LIBRARY} {_SOURCE} -ldl",
        cwd="/",
        user=0,
        env={"LD_PRELOAD": ""},
        timeout=60,
        merge_stderr=True,
    )
    if compiled.exit_code == 127:
        raise ClockUnavailable("the base has no C compiler to make a library for it")
    if compiled.exit_code != 0:
        last = compiled.text.strip().splitlines()[-1:] or [f"cc ended with {compiled.exit_code}"]
        raise ClockUnavailable(f"the library for it does not compile: {last[0]}")
    said = instance.run("date -u +%s", cwd="/", user=0, timeout=60).text.strip()
    if not said.isdecimal() or abs(int(said) - at.timestamp()) > 3600:
        raise ClockUnavailable(f"programs of the base do not take it: `date` says {said!r}")
