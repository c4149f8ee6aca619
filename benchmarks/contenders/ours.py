"""This project, by its public API."""

from __future__ import annotations

import time

from contenders import ANSWER, FIRST, PYTHON, milliseconds
from minisandbox.runtime import Instance
from subjects import Subject

_LEFT = "/testbed/left-by-the-benchmark"


def answer(instance: Instance, command: tuple[str, ...] = FIRST) -> None:
    """Run a command that prints what it should; raises ``RuntimeError`` when it does not."""
    result = instance.run(command)
    if result.stdout != ANSWER or result.exit_code:
        raise RuntimeError(f"{command} ended with {result.exit_code}: {result.stderr_text}")


class Ours:
    """Sandboxes of one subject."""

    name = "minisandbox"

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.round()  # layers are unpacked and compiled, the server is started

    def round(self) -> dict[str, float]:
        """One life of a sandbox."""
        times: dict[str, float] = {}
        started = time.perf_counter()
        with self._subject.cache.materialize(self._subject.instance_id) as instance:
            answer(instance)
            times["first command"] = (time.perf_counter() - started) * 1000
            times["command"] = milliseconds(lambda: answer(instance))
            times["command, python"] = milliseconds(lambda: answer(instance, PYTHON))
            instance.write_file(_LEFT, b"")
            started = time.perf_counter()
            with instance.fork() as child:
                times["fork"] = (time.perf_counter() - started) * 1000
                answer(child)
                times["fork and a command"] = (time.perf_counter() - started) * 1000
                answer(child, ("/bin/sh", "-c", f"test -e {_LEFT} && echo x"))
            started = time.perf_counter()
            instance.reset()
            times["reset"] = (time.perf_counter() - started) * 1000
            answer(instance)
            times["reset and a command"] = (time.perf_counter() - started) * 1000
            answer(instance, ("/bin/sh", "-c", f"test -e {_LEFT} || echo x"))
            times["close"] = milliseconds(instance.close)
        return times

    def close(self) -> None:
        """Nothing is left of it."""
