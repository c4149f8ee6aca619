"""Background services: streams, ends, signals, terminals, and what a reader that is late finds."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from minisandbox.errors import InvalidInput, SandboxDied, SandboxFileError
from minisandbox.sandbox import Sandbox

FETCH = """
import time, urllib.request
for _ in range(100):
    try:
        print(urllib.request.urlopen("http://127.0.0.1:8000/hostname").read())
        break
    except OSError:
        time.sleep(0.1)
"""
HEARTBEAT = "while :; do echo x >> /tmp/beat; sleep 0.05; done"


def test_a_server_answers_later_commands_until_it_is_closed(box: Sandbox) -> None:
    with box.popen(["python3", "-m", "http.server", "-d", "/etc", "8000"]) as server:
        assert box.run(["python3", "-c", FETCH], timeout=50).stdout == b"b'testbed\\n'\n"
        assert server.poll() is None
        assert box.run(["kill", "-0", str(server.pid)]).ok
    assert b"http.server" not in box.run("ps -ef").stdout


def test_streams_and_exit_code(box: Sandbox) -> None:
    with box.popen("echo out; echo err >&2; exit 3") as process:
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == (b"out\n", b"err\n")
        assert process.wait(30) == 3
        assert process.poll() == 3
    with box.popen("echo out; echo err >&2", merge_stderr=True) as process:
        assert process.stderr is None
        assert list(process.stdout) == [b"out\n", b"err\n"]


@pytest.mark.parametrize(("command", "code"), [(["nosuch"], 127), (["/etc"], 126), ("(", 2)])
def test_what_cannot_be_started_ends_like_a_command(box: Sandbox, command, code: int) -> None:
    with box.popen(command) as process:
        assert process.wait(30) == code
        assert process.stderr is not None
        assert process.stderr.read()


def test_input(box: Sandbox) -> None:
    data = bytes(range(256)) * 4000
    with box.popen(["cat"], stdin=data) as process:
        assert process.stdout.read() == data
    with box.popen(["cat"], stdin="pipe") as process:
        assert process.stdin is not None
        for line in (b"one\n", b"two\n"):
            process.stdin.write(line)
            assert process.stdout.readline() == line
        assert process.wait(0) is None
        process.stdin.close()
        assert process.wait(30) == 0
    with box.popen(["cat"]) as process:
        assert process.wait(30) == 0


def test_environment_directory_and_user(box: Sandbox) -> None:
    with box.popen('echo "$A $PWD"', env={"A": "1"}, cwd="/usr") as process:
        assert process.stdout.read() == b"1 /usr\n"
    if box.run("chown 65534 /tmp").exit_code:
        with pytest.raises(SandboxFileError, match="single-id"):
            box.popen("id", user="nobody")
        return
    box.run("chown 0 /tmp")
    with box.popen("id -un; cat > /dev/stdout", user="nobody", stdin="pipe") as process:
        assert process.stdin is not None
        process.stdin.write(b"x\n")
        process.stdin.close()
        assert process.stdout.read() == b"nobody\nx\n"


def test_what_is_not_read_holds_nothing_up_and_the_newest_is_kept(box: Sandbox) -> None:
    script = "import sys\nfor n in range(2_000_000): print(n)\nprint('last', file=sys.stderr)"
    with box.popen(["python3", "-c", script]) as process:
        assert process.wait(50) == 0
        output = process.stdout.read()
    assert output.startswith(b"0\n1\n2\n")
    assert output.endswith(b"\n1999998\n1999999\n")
    assert b" bytes left out ...]\n" in output
    assert len(output) < 3 << 20


def test_a_reader_that_keeps_up_loses_nothing(box: Sandbox) -> None:
    with box.popen("head -c 30000000 /dev/zero") as process:
        size = 0
        while data := process.stdout.read1(1 << 16):
            size += len(data)
            assert not data.strip(b"\0")
        assert process.wait(30) == 0
    assert size == 30_000_000


def test_kill_ends_daemons_too(start) -> None:
    box = start()
    script = f"trap '' TERM; setsid bash -c \"trap '' TERM; {HEARTBEAT}\" & echo on; sleep 1000"
    process = box.popen(script)
    assert process.stdout.readline() == b"on\n"
    while not box.run("test -s /tmp/beat").ok:
        time.sleep(0.02)
    process.terminate()
    assert process.wait(0.2) is None
    process.kill()
    assert process.poll() == 137
    beats = box.run("wc -c < /tmp/beat").stdout
    time.sleep(0.3)
    assert box.run("wc -c < /tmp/beat").stdout == beats
    process.close()
    process.close()


def test_what_it_left_lives_until_it_is_closed(start) -> None:
    box = start()
    process = box.popen(f"({HEARTBEAT}) & echo on")
    assert process.stdout.read() == b"on\n"
    assert process.wait(30) == 0
    while not box.run("test -s /tmp/beat").ok:
        time.sleep(0.02)
    process.close()
    assert b"sleep" not in box.run("ps -ef").stdout


def test_signals_reach_the_whole_group(box: Sandbox) -> None:
    with box.popen("trap 'echo got; exit 7' USR1; echo on; sleep 1000 & wait") as process:
        process.stdout.readline()
        process.send_signal(signal.SIGUSR1)
        assert process.wait(30) == 7
        assert process.stdout.read() == b"got\n"
        process.send_signal(signal.SIGUSR1)
    with box.popen("sleep 1000; echo not") as process:
        process.terminate()
        assert process.wait(30) == 143


def test_a_terminal(box: Sandbox) -> None:
    script = "test -t 0 && test -t 2 && stty size; read x; echo $x"
    with box.popen(script, pty=True, size=(30, 100)) as process:
        assert process.stdin is not None
        assert process.stdout.readline() == b"30 100\r\n"
        process.stdin.write(b"typed\n")
        assert process.wait(30) == 0
        assert process.stdout.read() == b"typed\r\ntyped\r\n"
    with box.popen(
        "trap 'stty size; exit' WINCH; echo on; while :; do sleep 0.05; done", pty=True
    ) as p:
        p.stdout.readline()
        p.resize(50, 120)
        assert p.stdout.readline() == b"50 120\r\n"
    with box.popen("echo on; sleep 1000", pty=True) as process:
        process.stdout.readline()
        assert process.stdin is not None
        process.stdin.write(b"\x03")
        assert process.wait(30) == 130
    with pytest.raises(InvalidInput, match="keyboard"):
        box.popen("true", pty=True, stdin=b"x")


def test_one_that_kills_its_monitor_is_told_from_a_dead_sandbox(start) -> None:
    box = start()
    process = box.popen("kill -9 $PPID; sleep 1000")
    assert process.wait(30) == 137
    other = box.popen("sleep 1000")
    waiting: list[object] = []

    def wait() -> None:
        try:
            waiting.append(other.wait())
        except SandboxDied as error:
            waiting.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    os.kill(box.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(20)
    assert [type(outcome) for outcome in waiting] == [SandboxDied] * 3
    with pytest.raises(SandboxDied):
        other.poll()
    other.close()


def test_closing_the_sandbox_closes_its_services(start) -> None:
    before = len(os.listdir("/proc/self/fd"))
    box = start()
    process = box.popen("sleep 1000", stdin="pipe")
    box.popen("sleep 1000")  # nobody holds it, and it runs all the same
    assert b"1000" in box.run("pgrep -af 'sleep 1000'").stdout
    box.close()
    with pytest.raises(SandboxDied, match="closed"):
        process.poll()
    process.kill()
    assert process.stdout.closed
    start().close()
    assert len(os.listdir("/proc/self/fd")) <= before + 8


def test_many_at_once_from_many_threads(box: Sandbox) -> None:
    codes: list[int | None] = []

    def serve(number: int) -> None:
        with box.popen(f"echo {number}; exit {number}") as process:
            assert process.stdout.read() == b"%d\n" % number
            codes.append(process.wait(50))

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(code for code in codes if code is not None) == list(range(16))
