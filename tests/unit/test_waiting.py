"""Somebody who waits at a terminal sees how far it is, whatever is installed."""

from __future__ import annotations

import sys

import pytest

from minisandbox.cli.waiting import bar


@pytest.mark.parametrize(
    ("unit", "counts", "shown"),
    [
        ("instance", (1, 2), ["0 of 12 instances", "1 of 12 instances", "3 of 12 instances"]),
        ("B", (5,), ["0 B of 12 B", "5 B of 12 B"]),
    ],
)
@pytest.mark.parametrize("watched", [True, False])
def test_without_what_draws_bars_a_line_counts(
    unit: str,
    counts: tuple[int, ...],
    shown: list[str],
    watched: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: watched)
    with bar("prefetch", 12, unit) as advance:
        for count in counts:
            advance(count)
    said = capsys.readouterr().err.split("\r\x1b[K")
    assert said == (["", *(f"prefetch: {text} ..." for text in shown), ""] if watched else [""])


def test_a_bar_is_drawn_for_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("prefetch", 12, "B") as advance:
        advance(12)
    assert capsys.readouterr().err == ""
