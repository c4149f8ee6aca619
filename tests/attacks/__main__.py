"""Entry of the packed attacks: ``FACTS NAME...`` runs some, ``--actor ...`` is somebody to attack.

For each a line says how it ended, as JSON: ``through`` with what was got, or ``held`` with the
reason. Whatever else goes wrong is ``broken``, with a traceback: that attack proves nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback

from attacks import actor, every
from attacks.table import TABLE, Attack, Facts, make_mounts_private

_SECONDS = 20


def main(arguments: list[str]) -> None:
    """Run what the arguments say; ``--control`` is for attacks where no sandbox is around them."""
    if arguments[0] == "--actor":
        actor.live(*arguments[1:])
        return
    control = arguments[0] == "--control"
    facts, *names = arguments[control:]
    for name in names:
        outcome = _in_a_process_of_its_own(TABLE[name], Facts.of(json.loads(facts)), control)
        sys.stdout.write("\n" + json.dumps({every.MARK: [name, *outcome]}) + "\n")
        sys.stdout.flush()


def _in_a_process_of_its_own(attack: Attack, facts: Facts, control: bool) -> list[str]:
    # Namespaces, ids and roots that it changes are nobody else's; all share one start of Python.
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(_SECONDS)
            if attack.mounts:
                _spare_others(control)
            os.write(write_end, json.dumps(_outcome(attack, facts)).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, encoding="utf-8") as answer:
        text = answer.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
        return ["held", "killed by a filter of system calls"]
    return json.loads(text) if text else ["broken", f"it ended with status {status}"]


def _spare_others(control: bool) -> None:
    """Keep what an attack does to mounts from the host, and from the attacks that follow."""
    try:
        make_mounts_private()
    except OSError:
        if control:
            raise


def _outcome(attack: Attack, facts: Facts) -> list[str]:
    try:
        got = attack.program(facts)
    except OSError as error:
        return ["held", str(error.strerror or error)]
    except BaseException:  # noqa: BLE001 - reported, and the process ends
        return ["broken", traceback.format_exc()]
    return ["through", got] if got else ["held", "nothing there"]


main(sys.argv[1:])
