"""Persistent shells: what is kept from command to command, and how commands and shells end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox.errors import InvalidInput, SandboxDied, SandboxFileError, SessionDied
from minisandbox.sandbox import Bind, Profile, Sandbox
from minisandbox.sandbox.session import Session


@pytest.fixture
def session(box: Sandbox) -> Iterator[Session]:
    with box.session() as opened:
        yield opened


def test_state_is_kept(session: Session) -> None:
    session.run(
        "cd /usr; here=there; export A=1; f() { echo f $1; }; shopt -s extglob; set -o pipefail\n"
        "alias ll='echo aliased'; umask 077; exec 7</etc/hostname; g=(1 2)"
    )
    script = 'echo "$PWD $here $A ${g[1]}"; f x; ll; umask; cat <&7; env | grep ^A='
    assert session.run(script).stdout_text == ("/usr there 1 2\nf x\naliased\n0077\ntestbed\nA=1\n")
    assert session.run("false | true").exit_code == 1
    assert session.run("[[ ab == @(ab|c) ]]").exit_code == 0


def test_the_status_of_the_last_command_is_kept(session: Session) -> None:
    assert session.run("exit_with() { return $1; }; exit_with 42").exit_code == 42
    assert session.run("echo $?").stdout == b"42\n"
    assert session.run("echo $?").stdout == b"0\n"
    session.run("trap 'echo failed >> /tmp/failures' ERR; false")
    session.run("set -e; true")
    assert session.run("wc -l < /tmp/failures; rm /tmp/failures").stdout == b"1\n"
    assert session.alive


def test_jobs_are_kept(session: Session) -> None:
    assert session.run("sleep 1000 & job=$!").exit_code == 0
    assert b"Running" in session.run("jobs").stdout
    assert session.run("kill $job; wait $job").exit_code == 143
    assert session.run("sleep 0.2 && echo done & wait").stdout == b"done\n"


def test_streams_are_apart_merged_bounded_and_whole_in_files(
    session: Session, tmp_path: Path
) -> None:
    script = "echo a; echo b >&2; echo c"
    apart = session.run(script)
    assert (apart.stdout, apart.stderr) == (b"a\nc\n", b"b\n")
    pieces: list[tuple[str, bytes]] = []
    merged = session.run(script, merge_stderr=True, on_output=lambda *piece: pieces.append(piece))
    assert merged.stdout == b"a\nb\nc\n" == b"".join(data for _, data in pieces)
    many = session.run(
        "seq 100000; seq 7 >&2",
        max_output=1000,
        stdout_file=tmp_path / "out",
        stderr_file=tmp_path / "err",
    )
    assert many.truncated
    assert many.stdout.endswith(b"\n100000\n")
    assert (tmp_path / "out").read_text().splitlines() == [str(n) for n in range(1, 100001)]
    assert (tmp_path / "err").read_text() == "1\n2\n3\n4\n5\n6\n7\n"
    assert (
        session.run("head -c 300000 /dev/urandom | tee /tmp/r").stdout
        == session.run("cat /tmp/r").stdout
    )


def test_texts_of_any_size(session: Session) -> None:
    script = "".join(f"x='value {number}'\n" for number in range(45_000)) + 'echo "$x"'
    assert len(script) > 700_000
    assert session.run(script).stdout == b"value 44999\n"
    with pytest.raises(InvalidInput, match="NUL"):
        session.run("echo \0")
    assert session.run("").exit_code == 0


def test_a_timeout_ends_the_command_and_keeps_the_shell(session: Session) -> None:
    session.run("x=kept; cd /usr; sleep 1000 & early=$!")
    result = session.run("echo begun; setsid sleep 999 & sleep 998; echo not", timeout=0.5)
    assert (result.stdout, result.exit_code, result.timed_out) == (b"begun\n", 124, True)
    assert not result.shell_ended
    assert session.run("echo $x $PWD").stdout == b"kept /usr\n"
    assert session.run("kill -0 $early").ok, "what an earlier command left is not this one's"
    listing = session.run("ps -eo args").stdout
    assert b"sleep 999" not in listing
    assert b"sleep 998" not in listing
    session.run("kill $early")


STUBBORN = [
    "while :; do :; done",
    "while :; do sleep 0.01; done",
    "python3 -c 'import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(1000)'",
    "bash -c 'trap \"\" INT TERM; sleep 1000; sleep 1000'",
    "sleep 1000 & wait",
    "kill -STOP $BASHPID",
    "cat <(sleep 1000)",
    "mkfifo /tmp/never; read x < /tmp/never",
    "f() { sleep 0.01; f & f & }; f; sleep 1000",
]


@pytest.mark.parametrize("script", STUBBORN)
def test_commands_that_do_not_want_to_end(session: Session, script: str) -> None:
    session.run("x=kept; rm -f /tmp/never")
    assert session.run(script, timeout=0.3).timed_out
    assert session.run("echo $x; pgrep -c sleep", timeout=30).stdout == b"kept\n0\n"


def test_a_shell_that_cannot_be_interrupted_is_ended_and_says_so(session: Session) -> None:
    result = session.run("trap '' INT; while :; do :; done", timeout=0.3)
    assert result.timed_out
    assert result.shell_ended
    with pytest.raises(SessionDied, match="reopen"):
        session.run("true")
    session.reopen()
    assert session.run("echo again").stdout == b"again\n"


def test_interrupt(session: Session) -> None:
    session.interrupt()  # nothing runs
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(session.run("sleep 1000; echo not")))
    thread.start()
    while not session._running:
        time.sleep(0.01)
    with pytest.raises(InvalidInput, match="another command"):
        session.run("true")
    time.sleep(0.1)
    session.interrupt()
    thread.join(30)
    (result,) = results
    assert isinstance(result, type(session.run("true")))
    assert (result.exit_code, result.timed_out, result.stdout) == (130, False, b"")


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 3", 3), ("exec sh -c 'exit 4'", 4), ("set -e; false", 1), ("kill -9 $$", 137)],
)
def test_a_command_may_end_its_shell(session: Session, script: str, code: int) -> None:
    result = session.run(f"echo last; {script}")
    assert (result.stdout, result.exit_code, result.shell_ended) == (b"last\n", code, True)
    assert not session.alive
    with pytest.raises(SessionDied, match=f"ended with {code}"):
        session.run("true")


def test_a_shell_that_is_killed_between_commands(box: Sandbox, session: Session) -> None:
    box.run(f"kill -9 {session.pid}; while kill -0 {session.pid}; do sleep 0.01; done")
    with pytest.raises(SessionDied, match="ended with 137"):
        session.run("true")
    session.reopen()
    box.run("kill -9 -1")
    with pytest.raises(SessionDied):
        session.run("true")
    session.reopen()
    assert session.run("echo again").stdout == b"again\n"


def test_any_number_at_once(start) -> None:
    box = start()
    sessions = [box.session(env={"N": str(number)}) for number in range(8)]
    outputs: list[bytes] = []

    def use(session: Session) -> None:
        for _ in range(10):
            session.run("n=$((n + N))")
        outputs.append(session.run("echo $n").stdout)

    threads = [threading.Thread(target=use, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outputs) == sorted(b"%d\n" % (10 * number) for number in range(8))
    for session in sessions:
        session.close()
    assert b".minisandbox" not in box.run("ls -A /dev/shm").stdout


def test_environment_directory_and_user(box: Sandbox) -> None:
    with box.session(env={"A": "1"}, cwd="/usr") as session:
        assert session.run("echo $A $PWD $HOME").stdout == b"1 /usr /root\n"
    with pytest.raises(SandboxFileError, match="/missing"):
        box.session(cwd="/missing")
    if box.run("chown 65534 /tmp").exit_code:
        with pytest.raises(SandboxFileError, match="single-id"):
            box.session(user="nobody")
        return
    box.run("chown 0 /tmp")
    with box.session(user="nobody") as session:
        assert session.run("id -un; echo x > /dev/stderr").text == "nobody\nx\n"
        assert session.run("sleep 1000", timeout=0.2).timed_out
        assert session.run("touch /root/x").exit_code != 0


def test_a_bash_that_cannot_be_executed(start, tmp_path: Path) -> None:
    (tmp_path / "nothing").touch()
    box = start(profile=Profile(binds=(Bind(tmp_path / "nothing", "/usr/bin/bash"),)))
    with pytest.raises(SandboxFileError, match="/bash"):
        box.session()


def test_dead_sandboxes_are_told(start) -> None:
    box = start()
    idle, busy = box.session(), box.session()
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(busy.run("sleep 1000"))
        except SandboxDied as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.2)
    os.kill(box.pid, signal.SIGKILL)
    thread.join(20)
    assert [type(found) for found in outcome] == [SandboxDied]
    with pytest.raises(SandboxDied):
        idle.run("true")
    with pytest.raises(SandboxDied):
        idle.reopen()
    for session in (idle, busy):
        session.close()
        assert not session.alive
