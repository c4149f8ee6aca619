"""Runs inside the environment of an official grader: one request on standard input, one answer out.

The first argument is the script beside this one that asks the grader's code; nothing else of this
project is imported. Nothing but the answer reaches standard output, and no connection leaves the
process.

A request is ``{"operation": ..., "items": [...], "mirrors": {repo: path}}``. The answer is a list
of one object an item; ``error`` in it says why there is no other content. The script names its
operations in ``OPERATIONS``, and what has to be done before the first in ``prepare``.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from typing import Any

Item = Mapping[str, Any]
Answer = dict[str, Any]


class Refused(Exception):
    """A request to the network."""


def main() -> None:
    """Answer the request on standard input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the harness prints is for the log
    request = json.load(sys.stdin)
    sys.addaudithook(refuse_connections)
    script = runpy.run_path(sys.argv[1])
    script["prepare"](request)
    operation = script["OPERATIONS"][request["operation"]]
    json.dump([_guarded(operation, item) for item in request["items"]], answers)
    answers.close()


def _guarded(operation: Callable[[Item], Answer], item: Item) -> Answer:
    try:
        return operation(item)
    except Exception as error:  # noqa: BLE001 - whatever the harness raises is the item's answer
        return {"error": f"{type(error).__name__}: {error}"}


def refuse_connections(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook that lets nothing out."""
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        asked = arguments[1] if event in ("socket.connect", "socket.sendto") else arguments[:2]
        raise Refused(f"a connection to {asked} was refused: graders have no network")


if __name__ == "__main__":
    main()
