"""The interactive shell, driven through a terminal of its own as a person would."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from minisandbox.idmap import IdMap
from minisandbox.sandbox import launch

SOURCE = Path(launch.__file__).parents[2]
PROGRAM = """
import sys
from pathlib import Path
from minisandbox.idmap import current, single
from minisandbox.sandbox import Sandbox
idmap = single() if sys.argv[2] == "single" else current()
with Sandbox.start([], scratch=Path(sys.argv[1]), idmap=idmap) as box:
    code = box.open_shell(env={"PS1": "inside> "}, argv=["bash", "--norc", "-i"])
print(f"code={code}")
"""


class Typist:
    """A client of a sandbox on a terminal, and somebody who types there."""

    def __init__(self, scratch: Path, kind: str) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ["PYTHONPATH"] = str(SOURCE)
            os.execv(sys.executable, [sys.executable, "-c", PROGRAM, str(scratch), kind])
        self.seen = b""

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def wait_for(self, text: str, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while text.encode() not in self.seen:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            if select.select([self.terminal], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.terminal, 4096)
                except OSError:
                    break
        assert text.encode() in self.seen, self.seen
        self.seen = self.seen.partition(text.encode())[2]

    def finish(self) -> None:
        os.close(self.terminal)
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)


@pytest.fixture
def typist(scratch: Path, idmap: IdMap):
    person = Typist(scratch, idmap.kind)
    yield person
    person.finish()


def test_a_person_can_work_in_it(typist: Typist) -> None:
    typist.wait_for("inside> ")
    typist.type("tty; echo $((40+2))\r")
    typist.wait_for("/dev/pts/")
    typist.wait_for("42")
    typist.type("sleep 1000\r")
    time.sleep(0.5)
    typist.type("\x03")  # Ctrl-C reaches the job inside, not the client
    typist.wait_for("inside> ")
    typist.type("echo $?\r")
    typist.wait_for("130")
    fcntl.ioctl(typist.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    os.kill(typist.pid, signal.SIGWINCH)
    typist.type("sleep 0.5; stty size\r")
    typist.wait_for("33 111")
    typist.type("sleep 1000 &\r")
    typist.wait_for("[1]")
    typist.type("jobs; exit 7\r")
    typist.wait_for("Running")
    typist.type("exit 7\r")
    typist.wait_for("code=7")


@pytest.mark.parametrize("typed", [b"", b"echo $((40+2)); exit 7\n", b"cat > /tmp/x\n" + b"a" * 70])
def test_without_a_terminal_the_end_of_input_ends_it(
    scratch: Path, idmap: IdMap, typed: bytes
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(scratch), idmap.kind],
        input=typed,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert (b"code=7" if b"exit 7" in typed else b"code=") in done.stdout


def test_more_input_than_the_terminal_holds(scratch: Path, idmap: IdMap) -> None:
    text = b"cat > /tmp/x; wc -c < /tmp/x\n" + b"line of text that is echoed\n" * 5000
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(scratch), idmap.kind],
        input=text,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert str(len(text) - len(b"cat > /tmp/x; wc -c < /tmp/x\n")).encode() in done.stdout
