"""Running commands: results, environment, users, limits on output, threads."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from minisandbox.errors import InvalidInput, SandboxFileError
from minisandbox.sandbox import Sandbox, connection

SOURCE = Path(connection.__file__).parents[2]

EXIT_CODES = [
    ("true", 0),
    ("exit 3", 3),
    ("nosuchprogram", 127),
    ("/etc/passwd", 126),
    ("kill -9 $$", 137),
    ("kill -TERM $$", 143),
    ("(", 2),
    ("", 0),
    (["true"], 0),
    (["nosuchprogram"], 127),
    (["/etc/passwd"], 126),
    (["/etc"], 126),
    (["sh", "-c", "exit 7"], 7),
]


@pytest.mark.parametrize(("command", "code"), EXIT_CODES)
def test_exit_codes_are_a_shells(box: Sandbox, command, code: int) -> None:
    assert box.run(command).exit_code == code


def test_streams_are_apart_or_merged(box: Sandbox) -> None:
    script = "echo a; echo b >&2; echo c"
    apart = box.run(script)
    assert (apart.stdout, apart.stderr) == (b"a\nc\n", b"b\n")
    merged = box.run(script, merge_stderr=True)
    assert (merged.stdout, merged.stderr) == (b"a\nb\nc\n", b"")


def test_arguments_arrive_unchanged(box: Sandbox) -> None:
    arguments = ["", "a b", "'", '"$x"', "*", "\n", "ü", "\udcff"]
    result = box.run(["printf", "%s\\0", *arguments])
    expected = b"".join(text.encode("utf-8", "surrogateescape") + b"\0" for text in arguments)
    assert result.stdout == expected


def test_environment_and_directory(start) -> None:
    box = start(env={"A": "1", "PATH": "/opt/bin:/usr/bin:/bin"}, cwd="/usr")
    script = 'echo "$A $B $PWD $PATH"'
    assert box.run(script).stdout == b"1  /usr /opt/bin:/usr/bin:/bin\n"
    assert box.run(script, env={"B": "2"}, cwd="lib").stdout.startswith(b"1 2 /usr/lib ")
    assert "cannot enter /missing" in box.run("true", cwd="/missing").stderr_text


def test_nothing_of_the_callers_environment_is_inside(start, monkeypatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    assert b"hunter2" not in start().run("env; cat /proc/*/environ").stdout


def test_users(box: Sandbox) -> None:
    if box.run("chown 65534 /tmp").exit_code:
        with pytest.raises(SandboxFileError, match="single-id"):
            box.run("id", user="nobody")
        return
    box.run("chown 0 /tmp")
    assert box.run("id -un; echo x > /dev/stderr", user="nobody").text == "nobody\nx\n"
    assert box.run("id -u; id -g", user=1234).stdout == b"1234\n1234\n"
    assert box.run("touch /root/x", user="nobody").exit_code != 0
    assert box.run("kill -0 1", user="nobody").exit_code != 0


def test_unknown_user(box: Sandbox) -> None:
    with pytest.raises(SandboxFileError, match="nosuchuser"):
        box.run("true", user="nosuchuser")


def test_what_refuses_a_request_is_told_without_a_path_too() -> None:
    error = SandboxFileError("start a process", "", 11, "the limit on processes is reached")
    assert str(error) == "cannot start a process in the sandbox: the limit on processes is reached"


@pytest.mark.parametrize("row", ["bad:x:one:1::/:/bin/sh", "bad:x:1:one::/:/bin/sh", "bad:x"])
def test_accounts_without_numbers_are_unknown(start, row: str) -> None:
    box = start()
    box.run(f"echo '{row}' >> /etc/passwd")
    with pytest.raises(SandboxFileError, match="bad"):
        box.run("true", user="bad")
    assert box.run("true", user="root").ok


@pytest.mark.parametrize("user", [2**32 - 1, 10**12, "²", -1])
def test_numbers_that_are_no_ids_are_unknown(box: Sandbox, user) -> None:
    with pytest.raises(SandboxFileError, match=str(user)):
        box.run("true", user=user)


@pytest.mark.parametrize("timeout", [1e7, 1e300, math.inf])
def test_any_patience_is_possible(box: Sandbox, timeout: float) -> None:
    assert box.run("echo x", timeout=timeout).stdout == b"x\n"


@pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan])
def test_bad_start_timeouts_are_refused(start, timeout: float) -> None:
    with pytest.raises(InvalidInput, match=f"start_timeout: is {timeout}"):
        start(start_timeout=timeout)


def test_negative_sizes_are_refused(box: Sandbox) -> None:
    with pytest.raises(InvalidInput, match="max_output: is -1"):
        box.run("echo x", max_output=-1)


@pytest.mark.parametrize("timeout", [-1, -math.inf, math.nan])
def test_times_that_are_none_are_refused(box: Sandbox, timeout: float) -> None:
    with pytest.raises(InvalidInput, match=r"timeout: is .*seconds from 0 on"):
        box.run("true", timeout=timeout)


def test_input(box: Sandbox) -> None:
    data = bytes(range(256)) * 10_000
    assert box.run("cat", stdin=data).stdout == data
    assert box.run("wc -c < /dev/stdin", stdin=b"abc").stdout == b"3\n"
    assert box.run("cat").stdout == b""


def test_input_through_a_pipe_of_the_caller(box: Sandbox, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    with open(write_end, "wb") as pipe:
        pipe.write(b"typed")
    with open(read_end, "rb") as pipe:
        assert box.run("cat", stdin=pipe.fileno()).stdout == b"typed"
    for path in (tmp_path, Path(__file__)):
        fd = os.open(path, os.O_RDONLY)
        with pytest.raises(InvalidInput, match="is no pipe"):
            box.run("true", stdin=fd)
        os.close(fd)


def test_scripts_of_any_size(box: Sandbox) -> None:
    script = "".join(f"x=value-{number}\n" for number in range(60_000)) + "echo $x"
    assert len(script) > 600_000
    assert box.run(script).stdout == b"value-59999\n"


def test_output_is_bounded_and_says_so(box: Sandbox) -> None:
    result = box.run("head -c 300000 /dev/zero | tr '\\0' a; echo end", max_output=1000)
    assert result.truncated
    assert result.stdout.startswith(b"a" * 500)
    assert result.stdout.endswith(b"aaaaend\n")
    assert b"bytes left out" in result.stdout
    assert len(result.stdout) < 1100
    assert not box.run("echo x").truncated


def test_exactly_the_limit_is_not_truncated(box: Sandbox) -> None:
    result = box.run("printf 0123456789", max_output=10)
    assert (result.stdout, result.truncated) == (b"0123456789", False)


def test_threads_share_a_sandbox(box: Sandbox) -> None:
    outputs: dict[int, bytes] = {}

    def run(number: int) -> None:
        outputs[number] = box.run(f"sleep 0.1; echo {number}").stdout

    threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {number: f"{number}\n".encode() for number in range(16)}


def test_a_sandbox_outlives_the_thread_that_started_it(start) -> None:
    started: list[Sandbox] = []
    thread = threading.Thread(target=lambda: started.append(start()))
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert started[0].run("echo here").stdout == b"here\n"


HABITS = """
import os, signal, sys
from pathlib import Path
os.umask(0o077)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD])
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
held = [open("/dev/null") for _ in range(min(hard, 4096) - 200)]
from minisandbox.idmap import current
from minisandbox.sandbox import Sandbox, connection

SOURCE = Path(connection.__file__).parents[2]
with Sandbox.start([], scratch=Path(sys.argv[1])) as box:
    user = "nobody" if current().count > 1 else None
    script = "sh -c 'exit 3'; echo $?; ls / >/dev/null; kill -TERM $$"
    result = box.run(script, user=user)
    assert (result.stdout, result.exit_code) == (b"3\\n", 143), result
    assert box.run("echo x", timeout=30).stdout == b"x\\n"
"""


def test_habits_of_the_client_do_not_reach_the_sandbox(scratch: Path) -> None:
    """A strict umask, ignored children, blocked signals, descriptors above 1023 (for select)."""
    done = subprocess.run(
        [sys.executable, "-c", HABITS, str(scratch)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["a\0b", [], ["a\0"], "echo \ud800", ["echo", "\ud800"]])
def test_impossible_commands(box: Sandbox, command) -> None:
    with pytest.raises(InvalidInput):
        box.run(command)


def test_pkill_does_not_find_the_shell_that_runs_it(box: Sandbox) -> None:
    script = "sleep 1000 & sleep 0.1; pkill -f 'sleep 1000'; echo survived"
    result = box.run(script)
    assert b"survived" in result.stdout


def test_output_is_told_as_it_comes(box: Sandbox) -> None:
    seen: list[tuple[str, bytes, float]] = []
    script = "echo one; echo two >&2; sleep 1; echo three"
    result = box.run(script, on_output=lambda *piece: seen.append((*piece, time.monotonic())))
    assert [piece[:2] for piece in seen if piece[0] == "stdout"] == [
        ("stdout", b"one\n"),
        ("stdout", b"three\n"),
    ]
    assert ("stderr", b"two\n") in [piece[:2] for piece in seen]
    assert seen[-1][2] - seen[0][2] > 0.5, "everything came at the end"
    assert result.stdout == b"one\nthree\n"


def private_kib(pid: int) -> int:
    try:
        rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended
    return sum(int(row.split()[1]) for row in rows if row.startswith("Private_"))


def test_a_sandbox_that_pauses_holds_little_and_goes_on(start) -> None:
    box = start()
    assert box.run(["echo", "x"]).stdout == b"x\n"
    time.sleep(0.6)
    children = Path(f"/proc/{box.pid}/task/{box.pid}/children")
    end = time.monotonic() + 20
    while sum(map(private_kib, [box.pid, *map(int, children.read_text().split())])) > 1536:
        assert time.monotonic() < end, "both hold what either has ever touched"
        time.sleep(0.05)
    with box.snapshot() as snapshot:
        assert snapshot.way == "sealed"  # a monitor that is exchanged is nothing that runs
    box.run("sleep 1000 & echo $! > /tmp/pid")
    time.sleep(0.6)
    assert box.run("kill $(cat /tmp/pid) && echo y").stdout == b"y\n"


@pytest.mark.parametrize("table", ["mkfifo", "ln -s /dev/zero"])
def test_tables_of_users_that_have_no_end_hold_nobody_up(start, table: str) -> None:
    box = start()
    assert box.run(f"rm /etc/passwd /etc/group; {table} /etc/passwd").ok
    with pytest.raises(SandboxFileError, match="no-such-user"):
        box.read_file("/etc/hostname", user="no-such-user")
