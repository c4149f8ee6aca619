"""Programs of the host: how they are started, how they end, what is said when they fail."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from minisandbox.errors import InvalidInput, ProcessFailed
from minisandbox.process import Completed, ProcessTimedOut, run


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody has collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def pid_in(path: Path) -> int:
    deadline = time.monotonic() + 10
    while not path.exists() or not path.read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(path.read_text())


def test_streams_and_code_come_back_apart() -> None:
    done = run(["sh", "-c", "printf out; printf err >&2; exit 3"], check=False)
    assert done == Completed(3, b"out", b"err")


def test_signal_is_a_negative_code() -> None:
    assert run(["sh", "-c", "kill -TERM $$"], check=False).returncode == -signal.SIGTERM


def test_paths_are_arguments(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"\xff\x00text")
    assert run(["cat", tmp_path / "a b"]).stdout == b"\xff\x00text"
    assert run(["cat", "a b"], cwd=tmp_path).stdout == b"\xff\x00text"


def test_nothing_to_read_by_default() -> None:
    assert run(["cat"], timeout=20).stdout == b""


@pytest.mark.parametrize("timeout", [1e7, 1e300, math.inf])
def test_any_patience_is_possible(timeout: float) -> None:
    assert run(["true"], timeout=timeout).returncode == 0


@pytest.mark.parametrize("timeout", [-1, -math.inf, math.nan])
def test_times_that_are_none_are_refused(timeout: float) -> None:
    with pytest.raises(InvalidInput, match=r"timeout: is .*seconds from 0 on"):
        run(["true"], timeout=timeout)


def test_waiting_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minisandbox.process._LONGEST_POLL", 0.01)
    assert run(["sh", "-c", "sleep 0.2; exit 3"], timeout=60, check=False).returncode == 3
    with pytest.raises(ProcessTimedOut):
        run(["sleep", "60"], timeout=0.1)


def test_input_and_output_larger_than_a_pipe() -> None:
    data = os.urandom(5 << 20)
    assert run(["cat"], stdin=data, timeout=30).stdout == data


def test_input_that_nobody_reads() -> None:
    assert run(["true"], stdin=bytes(1 << 20), timeout=20).returncode == 0


def test_both_streams_flooded() -> None:
    script = (
        "import sys; [f.write('x' * 100_000) for _ in range(20) for f in (sys.stdout, sys.stderr)]"
    )
    done = run([sys.executable, "-c", script], timeout=30)
    assert len(done.stdout) == len(done.stderr) == 2_000_000


def test_locale_is_utf8_and_own_environment_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.ISO-8859-1")
    monkeypatch.setenv("MARK", "here")
    assert run(["sh", "-c", "echo $LC_ALL $MARK"]).stdout == b"C.UTF-8 here\n"


def test_given_environment_is_the_whole_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    assert sorted(run(["/usr/bin/env"], env={"A": "1"}).stdout.split()) == [
        b"A=1",
        b"LC_ALL=C.UTF-8",
    ]


def test_failure_says_what_was_run_and_what_it_said() -> None:
    with pytest.raises(ProcessFailed) as caught:
        run(["sh", "-c", "echo progress; echo 'no such branch' >&2; exit 128"])
    assert caught.value.returncode == 128
    assert caught.value.argv[0] == "sh"
    assert str(caught.value).endswith("ended with 128: no such branch")


def test_program_that_is_not_there() -> None:
    with pytest.raises(ProcessFailed, match="no-such-program is not installed, or not on PATH"):
        run(["no-such-program", "x"], check=False)


def test_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed, match="nowhere"):
        run(["true"], cwd=tmp_path / "nowhere")


def test_timeout_kills_the_group_and_keeps_the_output(tmp_path: Path) -> None:
    script = f"trap '' TERM; echo so far; sh -c 'echo $$ > {tmp_path}/pid; sleep 600' & wait"
    with pytest.raises(ProcessTimedOut, match=r"so far\nkilled after 0.5 seconds") as caught:
        run(["sh", "-c", script], timeout=0.5, check=False)
    assert caught.value.timeout == 0.5
    assert gone(pid_in(tmp_path / "pid"))


def test_daemon_that_keeps_the_streams_does_not_hold_up(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; echo done"
    try:
        started = time.monotonic()
        assert run(["sh", "-c", script]).stdout == b"done\n"
        assert time.monotonic() - started < 30
    finally:
        os.kill(pid_in(tmp_path / "pid"), signal.SIGKILL)


def test_interrupt_takes_the_program_along(tmp_path: Path) -> None:
    """Ctrl-C reaches this process only, as the program is in a session of its own."""
    code = f"""
from minisandbox.process import run
run(["sh", "-c", "echo $$ > {tmp_path}/pid; sleep 600"])
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as caller:
        pid = pid_in(tmp_path / "pid")
        caller.send_signal(signal.SIGINT)
        caller.wait(20)
    assert gone(pid)


def test_many_at_once() -> None:
    results: list[bytes] = []

    def one(number: int) -> None:
        results.append(run(["sh", "-c", f"sleep 0.1; echo {number}"]).stdout)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, results)) == list(range(20))


def test_log_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "one.log"
    where = tmp_path / "a directory"
    where.mkdir()
    environment = os.environ | {"MARK": "it's here"}
    words = ["sh", "-c", 'printf "%s\\n" "$MARK" "$1" "$PWD"; echo warning >&2', "-", "a 'b' $c"]
    done = run(words, cwd=where, env=environment, log=log)
    first, *rest = log.read_text().splitlines()
    assert first.startswith("$ (cd ")
    again = subprocess.run(first[2:], shell=True, capture_output=True, check=True)
    assert again.stdout == done.stdout
    assert rest[:4] == ["it's here", "a 'b' $c", str(where), "warning"]
    assert rest[4].startswith("[ended with 0 after ")


def test_log_is_appended_to_also_on_failure(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(["echo", "first"], log=log)
    with pytest.raises(ProcessFailed):
        run(["sh", "-c", "echo second; exit 1"], log=log)
    with pytest.raises(ProcessTimedOut):
        run(["sh", "-c", "echo third; sleep 600"], log=log, timeout=0.5)
    lines = [line for line in log.read_text().splitlines() if not line.startswith(("$", "["))]
    assert lines == ["first", "second", "third"]
