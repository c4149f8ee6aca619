"""E1, E6, E7, E8, E11, E12: commands of a session end when they end, and tell no others' output."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from minisandbox.errors import SessionDied
from minisandbox.sandbox import Sandbox, Session

#: Far below the minutes these have taken elsewhere, far above what a loaded machine needs.
PROMPT = 15.0


@pytest.fixture
def session(box: Sandbox) -> Iterator[Session]:
    with box.session() as opened:
        yield opened


HABITS = [
    "PS1='(testbed) $ '; PS2='... '; PROMPT_COMMAND='echo prompt'; PS1=$(echo p)",
    "trap 'true' DEBUG",
    "trap 'echo debug >/dev/null' DEBUG; set -T; shopt -s extdebug",
    "trap 'true' ERR EXIT RETURN",
    "set -u",
    "set -e",
    "set -x",
    "set -v",
    "set -f; set -C; set -a; set -k; set -b",
    "set -m",
    "set -n",
    "set -o posix",
    "set -o pipefail; shopt -s failglob nullglob dotglob",
    "set -H; set -o history",
    "IFS=0123456789/",
    "umask 777",
    "alias eval=false builtin=false exit=true '>|=x'; shopt -s expand_aliases",
    'eval() { :; }; exit() { :; }; printf() { :; }; echo() { command echo "$@"; }',
    "unset -f eval; unset PS1 PATH; PATH=/usr/bin:/bin",
    "exec >/dev/null 2>&1",
    "exec </etc/passwd",
    "exec 250>&- 251>&- 253>&-; ulimit -n 64",
    "cat > ~/.bashrc <<'X'\nPS1='x'; PROMPT_COMMAND='PS1=y'; export PS1\nX\n. ~/.bashrc",
    "readonly x=1; x=2",
    "cd /tmp; mkdir -p gone; cd gone; rmdir ../gone",
    "TMOUT=100; HISTFILE=/root/h; LC_ALL=C",
]


@pytest.mark.parametrize("habit", HABITS)
def test_ends_do_not_depend_on_what_a_shell_was_told(session: Session, habit: str) -> None:
    first = session.run(habit, timeout=30)
    assert not first.timed_out
    result = session.run("echo out; sh -c 'exit 3'", timeout=30)
    assert not result.timed_out
    assert (result.stdout.splitlines()[-1], result.exit_code) == (b"out", 3)


def test_who_removes_what_tells_the_end_is_found_by_the_time_limit(session: Session) -> None:
    result = session.run("rm -rf /dev/shm/.mini*; echo done", timeout=0.5)
    assert (result.stdout, result.timed_out, result.shell_ended) == (b"done\n", True, True)
    session.reopen()
    assert session.run("echo again").stdout == b"again\n"


TEXTS = [
    ("# only a comment", b"", 0),
    ("echo a \\", b"a \\\n", 0),
    ("echo 'unbalanced", b"", 2),
    ('echo "unbalanced', b"", 2),
    ("if true; then", b"", 2),
    ("echo before\n)", b"before\n", 2),
    ("cat <<EOF\nno end", b"no end\n", 0),
    ("cat <<'EOF'\nit's `x` $y \\ \"q\"\t\nEOF", b'it\'s `x` $y \\ "q"\t\n', 0),
    ("echo a &&\n\n  echo b", b"a\nb\n", 0),
    ("return 3", b"", 2),
    ("break; continue 2; echo on", b"on\n", 0),
    ("-x", b"", 127),
    ("echo hi! !! !$", b"hi! !! !$\n", 0),
    ("printf 'no newline'", b"no newline", 0),
    ("printf '\\0\\377\\n'", b"\0\xff\n", 0),
    ("cat; read x; echo $?", b"1\n", 0),
    ("echo ${missing:?}; echo not", b"", 1),
    ("exec /nonexistent; echo on", b"on\n", 0),
    ("shopt -s extglob\necho @(x|y)", b"@(x|y)\n", 0),
    ("sh -c 'kill -SEGV $$'", b"", 139),
    ("kill $$; echo on", b"on\n", 0),
]


@pytest.mark.parametrize(("text", "output", "code"), TEXTS)
def test_texts_mean_what_bash_says(session: Session, text: str, output: bytes, code: int) -> None:
    result = session.run(text, timeout=30)
    assert (result.stdout, result.exit_code) == (output, code), result.stderr_text
    assert session.run("echo next", timeout=30).stdout == b"next\n"


BACKGROUND = [
    "sleep 1000 & echo done",
    "setsid -f sleep 1000; echo done",
    "(sleep 1000 & disown); echo done",
    "(while :; do echo noise; echo noise >&2; sleep 0.02; done) & echo done",
    "yes noise & echo done",
]


@pytest.mark.parametrize("script", BACKGROUND)
def test_what_the_background_prints_is_no_other_commands(
    box: Sandbox, session: Session, script: str
) -> None:
    result = session.run(script, timeout=30)
    assert b"done" in result.stdout
    assert result.duration < PROMPT
    for _ in range(3):
        later = session.run("sleep 0.1; echo clean")
        assert (later.stdout, later.stderr) == (b"clean\n", b"")
    # A loop of short sleeps has moments without one.
    assert any(box.run("pgrep 'sleep|yes'").ok for _ in range(100)), "it lives on"
    session.close()
    assert not box.run("pgrep 'sleep|yes'").ok


def test_killing_all_it_sees_ends_a_session_which_says_so(start) -> None:
    box = start()
    session = box.session()
    result = session.run("pkill -9 -f .; sleep 1; echo on", timeout=30)
    assert result.shell_ended
    with pytest.raises(SessionDied, match="reopen"):
        session.run("true")
    session.reopen()
    assert session.run("echo again").stdout == b"again\n"
    assert box.run("echo and the sandbox").stdout == b"and the sandbox\n"


def test_a_long_line_and_a_flood(session: Session) -> None:
    result = session.run("head -c 20000000 /dev/zero | tr '\\0' d; echo; echo end")
    assert result.truncated
    assert result.stdout.endswith(b"d\nend\n")
    started = time.monotonic()
    flood = session.run("yes", timeout=0.5, max_output=1 << 20)
    assert flood.timed_out
    assert len(flood.stdout) < 1.1 * (1 << 20)
    assert time.monotonic() - started < PROMPT
    assert session.run("echo still").stdout == b"still\n"
