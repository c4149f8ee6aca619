"""E1, E3, E4, E5, E6, E8: output can neither hang a caller, nor break it, nor get lost."""

from __future__ import annotations

import resource
import time

import pytest

from minisandbox.sandbox import Sandbox

#: Far below the minutes these have taken elsewhere, far above what a loaded machine needs.
PROMPT = 15.0

DOUBLE_FORK = """python3 -c '
import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
time.sleep(1000)
'; echo done"""

BACKGROUND = [
    ("sleep 1000 & echo done", b"done\n", 0),
    ("setsid sleep 1000 & echo done", b"done\n", 0),
    ("setsid -f sleep 1000; echo done", b"done\n", 0),
    ("nohup sleep 1000 & echo done", b"done\n", 0),
    ("(sleep 1000 & disown); echo done", b"done\n", 0),
    ("echo done; while :; do echo x; sleep 0.1; done & exit 3", b"done\n", 3),
    ("echo done; yes >&2 & exit 4", b"done\n", 4),
    (DOUBLE_FORK, b"done\n", 0),
]


@pytest.mark.parametrize(("script", "output", "code"), BACKGROUND)
def test_background_processes_do_not_delay_the_result(
    box: Sandbox, script: str, output: bytes, code: int
) -> None:
    result = box.run(script)
    assert result.exit_code == code
    assert result.stdout.startswith(output)
    assert result.duration < PROMPT
    box.run("kill -9 -1")  # the box is shared with the other tests


def test_background_processes_live_on_and_may_print(start) -> None:
    box = start()
    script = """
    (while :; do echo noise; echo noise >&2; date +%s%N > /tmp/beat; sleep 0.05; done) &
    """
    box.run(script)
    first = box.run("cat /tmp/beat").stdout
    time.sleep(0.5)
    later = box.run("cat /tmp/beat")
    assert later.stdout != first, "ended by SIGPIPE when the caller stopped reading"
    assert b"noise" not in later.stdout + later.stderr


def test_a_server_in_the_background_serves_later_commands(start) -> None:
    box = start()
    box.run("nohup python3 -m http.server -d /etc 8000 & sleep 0.1")
    fetch = (
        "import time, urllib.request\n"
        "for _ in range(100):\n"
        "    try: urllib.request.urlopen('http://localhost:8000/hostname').read(); break\n"
        "    except OSError: time.sleep(0.1)\n"
        "else: raise SystemExit(1)\n"
    )
    for _ in range(3):
        assert box.run(["python3", "-c", fetch]).exit_code == 0


def test_output_before_a_timeout_is_kept(box: Sandbox) -> None:
    result = box.run("echo printed; echo too >&2; sleep 1000", timeout=1)
    assert (result.stdout, result.stderr) == (b"printed\n", b"too\n")
    assert result.timed_out
    assert result.exit_code == 124


def test_flood_and_timeout_together(box: Sandbox) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = box.run("yes", timeout=1, max_output=1 << 20)
    assert result.timed_out
    assert result.truncated
    assert len(result.stdout) < 1.1 * (1 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    assert result.duration < PROMPT


def test_flood_that_ends(box: Sandbox) -> None:
    result = box.run("yes | head -c 200M", max_output=1 << 20)
    assert (result.exit_code, result.truncated) == (0, True)
    assert result.duration < 50


def test_one_line_of_twenty_megabytes(box: Sandbox) -> None:
    result = box.run("head -c 20000000 /dev/zero | tr '\\0' d; echo; echo end")
    assert result.truncated
    assert result.stdout.endswith(b"d\nend\n")
    whole = box.run("head -c 20000000 /dev/zero | tr '\\0' d", max_output=32 << 20)
    assert whole.stdout == b"d" * 20_000_000


@pytest.mark.parametrize("script", ["cat", "read x", "python3", "bash", "less", "sort"])
def test_commands_that_ask_find_the_end_of_input(box: Sandbox, script: str) -> None:
    assert box.run(script, timeout=30).timed_out is False


def test_git_uses_no_pager(box: Sandbox) -> None:
    script = """
    cd /root && rm -rf r && git init -q r && cd r
    git -c user.name=a -c user.email=b commit -q --allow-empty -m subject && git log
    """
    result = box.run(script, timeout=30)
    assert not result.timed_out
    assert "subject" in result.stdout_text


def test_bytes_that_are_no_text(box: Sandbox) -> None:
    data = bytes(range(256)) * 400
    result = box.run("cat", stdin=data)
    assert result.stdout == data
    assert "\ufffd" in result.text
    assert box.run("head -c 1000 /dev/urandom").text is not None


def test_characters_split_between_writes(box: Sandbox) -> None:
    result = box.run(r"printf '\xe2'; sleep 0.2; printf '\x82\xac'")
    assert result.text == "€"
