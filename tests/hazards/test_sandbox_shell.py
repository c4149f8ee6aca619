"""E7, E11, E13: scripts mean what bash says, end without a prompt, and orphans are reaped."""

from __future__ import annotations

import pytest

from minisandbox.sandbox import Sandbox

TWELVE_LINES = r"""
cat <<'EOF'
it's "quoted" `not run` $HOME	tab \ backslash
EOF
cat <<-END
	indented $((1 + 2))
	END
case x in
  x) echo "case $(echo nested "quotes")";;
esac
function f { printf '%s\n' $'a\tb'; }
f
bash <<'OUTER'
cat <<'INNER'
inner
INNER
OUTER
"""
EXPECTED = """\
it's "quoted" `not run` $HOME\ttab \\ backslash
indented 3
case nested quotes
a\tb
inner
"""


def test_here_documents_quotes_and_functions(box: Sandbox) -> None:
    assert box.run(TWELVE_LINES).stdout_text == EXPECTED


SCRIPTS = [
    ("# only a comment", "", 0),
    ("echo a \\", "a \\\n", 0),
    ("echo 'unbalanced", "", 2),
    ("if true; then", "", 2),
    ("echo before\n)", "before\n", 2),
    ("cat <<EOF\nno end", "no end\n", 0),
    ("echo a &&\n\n  echo b", "a\nb\n", 0),
    ("set -e; false; echo not", "", 1),
    ("trap 'echo bye' EXIT; exit 5", "bye\n", 5),
    ("PS1='> '; PROMPT_COMMAND='echo p'; trap 'true' DEBUG; echo x", "x\n", 0),
    ("exec sh -c 'echo $0'", "sh\n", 0),
    ("shopt -s extglob\necho @(x|y)", "@(x|y)\n", 0),
    ("exec 9>/tmp/nine; echo nine >&9; cat /tmp/nine", "nine\n", 0),
    ("echo $0 $#", "/bin/bash 0\n", 0),
    ("exit 300", "", 44),
    ("echo a\r\n", "a\r\n", 0),
]


@pytest.mark.parametrize(("script", "output", "code"), SCRIPTS)
def test_scripts(box: Sandbox, script: str, output: str, code: int) -> None:
    result = box.run(script, timeout=30)
    assert (result.stdout_text, result.exit_code) == (output, code), result.stderr_text


def test_no_zombies_stay(box: Sandbox) -> None:
    for _ in range(3):
        box.run("for i in $(seq 600); do sh -c 'sleep 0.05 & exit'; done")
    assert box.run("sleep 1; ps -eo stat | grep -c Z").stdout == b"0\n"


def test_orphans_of_a_command_that_ended_are_reaped(start) -> None:
    box = start()
    box.run("(sleep 0.3 &) ; exit 0")
    assert box.run("sleep 1; ps -eo stat,comm | grep -v ps | grep -c '^Z'").stdout == b"0\n"
    assert box.run("ps -eo comm | grep -c minisandbox").stdout in (b"2\n", b"0\n")
