"""Values that cannot be meant are refused in one sentence, and nothing is sent for them."""

from __future__ import annotations

import asyncio
import enum
import io
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minisandbox.errors import InvalidInput
from minisandbox.runtime import Instance
from minisandbox.sandbox import Sandbox
from minisandbox.sandbox.aio import AsyncSandbox
from minisandbox.sandbox.requests import Requests

COMMANDS: list[tuple[Any, str]] = [
    (b"true", "command: is of type bytes; give shell text"),
    (7, "command: is of type int"),
    (None, "command: is of type NoneType"),
    (Path("/bin/true"), "command: is of type PosixPath"),
    ({"true"}, "command: is of type set"),
    ([], "command: the sequence is empty; give a program"),
    ([b"true"], "command: element 0 is of type bytes; give a program"),
    (["echo", 7], "command: element 1 is of type int"),
    (["echo", "a\0b"], "command: element 1 holds a NUL byte"),
    (["echo", "\ud800"], r"command: element 1 has half a character \('\\ud800' at 0\)"),
    ("echo \0", "command: holds a NUL byte"),
    ("echo \ud800", "command: has half a character"),
]
#: Of whatever starts a program.
ENVIRONMENTS: list[tuple[dict[str, Any], str]] = [
    ({"env": {"A": 1}}, "env: the value of A is of type int; give strings"),
    ({"env": {"A": None}}, "env: the value of A is of type NoneType"),
    ({"env": {b"A": "1"}}, "env: a name is of type bytes"),
    ({"env": {"A=B": "1"}}, "env: 'A=B' is no name"),
    ({"env": {"": "1"}}, "env: '' is no name"),
    ({"env": {"A\0": "1"}}, "env: a name holds a NUL byte"),
    ({"env": {"A": "\0"}}, "env: the value of A holds a NUL byte"),
    ({"env": {"A": "\udfff"}}, "env: the value of A has half a character"),
    ({"env": ["A=1"]}, "env: is of type list"),
    ({"cwd": b"/"}, "cwd: is of type bytes"),
    ({"cwd": Path("/usr")}, "cwd: is of type PosixPath"),
    ({"cwd": "/\0"}, "cwd: holds a NUL byte"),
]
USERS: list[tuple[dict[str, Any], str]] = [
    ({"user": b"root"}, "user: is of type bytes; give a user's name or number"),
    ({"user": 1.5}, "user: is of type float"),
    ({"user": True}, "user: is of type bool"),
    ({"user": "no\0body"}, "user: holds a NUL byte"),
    ({"user": 10**5000}, "user: has more digits"),
]
INPUTS: list[tuple[dict[str, Any], str]] = [
    ({"stdin": io.BytesIO(b"x")}, "stdin: is of type BytesIO; give bytes"),
    ({"stdin": subprocess.PIPE}, "stdin: is -1; give bytes, the descriptor of a pipe"),
    ({"stdin": 10**6}, "stdin: descriptor 1000000: Bad file descriptor"),
    ({"stdin": 10**12}, "stdin: is 1000000000000"),
    ({"stdin": True}, "stdin: is of type bool"),
]
OUTPUTS: list[tuple[dict[str, Any], str]] = [
    ({"timeout": "5"}, "timeout: is of type str; give seconds"),
    ({"timeout": True}, "timeout: is of type bool"),
    ({"timeout": math.nan}, "timeout: is nan"),
    ({"timeout": -(10**400)}, "timeout: is -inf"),
    ({"max_output": 1.5}, "max_output: is of type float"),
    ({"max_output": "1k"}, "max_output: is of type str"),
    ({"max_output": None}, "max_output: is of type NoneType"),
    ({"max_output": -1}, "max_output: is -1; give a whole number from 0 on"),
    ({"on_output": "print"}, "on_output: is of type str; give a function"),
    ({"stdout_file": 5}, "stdout_file: is of type int; give a path"),
    ({"stderr_file": "a\0"}, "stderr_file: holds a NUL byte"),
]
SIZES: list[tuple[Any, str]] = [
    ((24,), "size: has 1 elements; give rows and columns"),
    (("a", "b"), "size: is of type str"),
    ((24, 70_000), "size: is 70000"),
    ((-1, 80), "size: is -1"),
    ("24x80", "size: is of type str"),
    (24, "size: is of type int"),
]
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    *(("run", (command,), {}, problem) for command, problem in COMMANDS),
    *(("popen", (command,), {}, problem) for command, problem in COMMANDS),
    *(("run", ("true",), *row) for row in (*ENVIRONMENTS, *USERS, *INPUTS, *OUTPUTS)),
    *(("popen", ("true",), *row) for row in (*ENVIRONMENTS, *USERS, *INPUTS)),
    *(("session", (), *row) for row in (*ENVIRONMENTS, *USERS)),
    *(("open_shell", (), *row) for row in ENVIRONMENTS),
    *(("popen", ("true",), {"size": size, "pty": True}, problem) for size, problem in SIZES),
    ("run", ("true",), {"stdin": "text"}, "stdin: is of type str"),
    ("popen", ("true",), {"stdin": "text"}, "stdin: is a string; .*'pipe'"),
    ("open_shell", (), {"argv": []}, "argv: the sequence is empty"),
    ("open_shell", (), {"argv": "bash -i"}, "argv: is of type str"),
    *(("read_file", ("/f",), *row) for row in USERS),
    ("read_file", (b"/f",), {}, "path: is of type bytes"),
    ("read_file", (Path("/f"),), {}, "path: is of type PosixPath"),
    ("read_file", ("/\0",), {}, "path: holds a NUL byte"),
    ("read_file", ("/\ud800",), {}, "path: has half a character"),
    ("read_file", ("/f",), {"max_bytes": None}, "max_bytes: is of type NoneType"),
    ("read_file", ("/f",), {"max_bytes": -1}, "max_bytes: is -1"),
    *(("write_file", ("/f", b""), *row) for row in USERS),
    ("write_file", (None, b""), {}, "path: is of type NoneType"),
    ("write_file", ("/f", 7), {}, "data: is of type int; give bytes or a string"),
    ("write_file", ("/f", None), {}, "data: is of type NoneType"),
    ("write_file", ("/f", [1]), {}, "data: is of type list"),
    ("write_file", ("/f", "\ud800"), {}, "data: has half a character"),
    ("write_file", ("/f", b""), {"mode": "644"}, "mode: is of type str; give permission bits"),
    ("write_file", ("/f", b""), {"mode": -1}, "mode: is -1"),
    ("write_file", ("/f", b""), {"mode": 0o100644}, "mode: is 33188"),
    ("upload", (7, "/f"), {}, "local: is of type int; give a path of this host"),
    ("upload", ("a\0", "/f"), {}, "local: holds a NUL byte"),
    ("upload", ("a", b"/f"), {}, "remote: is of type bytes"),
    ("download", ("/f\0", "a"), {}, "remote: holds a NUL byte"),
    ("download", ("/f", None), {}, "local: is of type NoneType"),
    ("download", ("/f", b"a"), {}, "local: is of type bytes"),
    ("download", ("/f", "a"), {"max_bytes": "1G"}, "max_bytes: is of type str"),
    ("download", ("/f", "a"), {"max_bytes": -1}, "max_bytes: is -1"),
    ("download", ("/f", "a"), {"max_entries": 1.0}, "max_entries: is of type float"),
    ("fork", (), {"name": 7}, "name: is of type int"),
    ("fork", (), {"name": "\0"}, "name: holds a NUL byte"),
    ("start_from", ("/upper",), {}, "snapshot: is of type str; give an object of type Snapshot"),
]


@pytest.fixture
def nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a request was sent")

    monkeypatch.setattr(Requests, "send_locked", refuse)


@pytest.mark.parametrize(("method", "arguments", "options", "problem"), CALLS)
def test_of_a_sandbox(
    box: Sandbox,
    nothing_is_sent: None,
    method: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    problem: str,
) -> None:
    with pytest.raises(InvalidInput, match=f"^{problem}") as caught:
        getattr(box, method)(*arguments, **options)
    assert "\n" not in str(caught.value)

    async def call() -> None:
        await getattr(AsyncSandbox(box), method)(*arguments, **options)

    with pytest.raises(InvalidInput, match=f"^{problem}"):
        asyncio.run(call())


STARTS: list[tuple[dict[str, Any], str]] = [
    *ENVIRONMENTS,
    ({"layers": "/layer"}, "layers: is of type str; give a sequence"),
    ({"layers": [7]}, "layers: is of type int"),
    ({"layers": None}, "layers: is of type NoneType"),
    ({"scratch": None}, "scratch: is of type NoneType; give a path"),
    ({"scratch": "/\0"}, "scratch: holds a NUL byte"),
    ({"profile": {"network": "host"}}, "profile: is of type dict; give an object of type Profile"),
    ({"profile": {}}, "profile: is of type dict"),
    ({"idmap": "root"}, "idmap: is of type str; give an object of type IdMap"),
    ({"name": 7}, "name: is of type int"),
    ({"start_timeout": None}, "start_timeout: is None; give seconds above 0"),
    ({"start_timeout": "9"}, "start_timeout: is of type str"),
]


@pytest.mark.parametrize(("options", "problem"), STARTS)
def test_of_a_start(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{problem}"):
        Sandbox.start(**{"layers": [], "scratch": tmp_path, **options})
    assert not [*tmp_path.iterdir()]


def test_paths_of_the_host_may_be_strings(start, scratch: Path) -> None:
    assert start(scratch=str(scratch)).run("echo x").stdout == b"x\n"


PROCESS: list[tuple[Callable[[Any], object], str]] = [
    (lambda process: process.wait("1"), "timeout: is of type str"),
    (lambda process: process.wait(-1), "timeout: is -1"),
    (lambda process: process.wait(math.nan), "timeout: is nan"),
    (lambda process: process.send_signal("TERM"), "number: is of type str; give the number"),
    (lambda process: process.send_signal(65), "number: is 65"),
    (lambda process: process.send_signal(-9), "number: is -9"),
    (lambda process: process.resize("24", 80), "rows, columns: is of type str"),
    (lambda process: process.resize(24, 1 << 16), "rows, columns: is 65536"),
]


def test_of_a_process(box: Sandbox) -> None:
    with box.popen("sleep 1000", pty=True) as process:
        for call, problem in PROCESS:
            with pytest.raises(InvalidInput, match=f"^{problem}"):
                call(process)
        assert process.poll() is None


def test_of_a_session(box: Sandbox) -> None:
    texts = [row for row in COMMANDS if not isinstance(row[0], list)]
    with box.session() as session:
        for command, problem in ((["true"], "command: is of type list; give shell text"), *texts):
            with pytest.raises(InvalidInput, match=f"^{problem}"):
                session.run(command)
        for options, problem in OUTPUTS:
            with pytest.raises(InvalidInput, match=f"^{problem}"):
                session.run("true", **options)
        assert session.run("echo x").stdout == b"x\n"


def test_of_an_instance(box: Sandbox, nothing_is_sent: None) -> None:
    instance = Instance(box, head_tree="", store=None, idmap=None)
    for patch, problem in ((b"", "is of type bytes; .*decode"), ("\ud800", "has half a character")):
        with pytest.raises(InvalidInput, match=f"^patch: {problem}"):
            instance.apply_patch(patch)
    for paths, problem in (
        ("setup.py", "paths: is of type str; give a sequence"),
        ([b"setup.py"], "paths: element 0 is of type bytes"),
        (["a\0"], "paths: element 0 holds a NUL byte"),
        (["../a"], "path: '../a' is not a path of the repository"),
    ):
        with pytest.raises(InvalidInput, match=f"^{problem}"):
            instance.restore(paths)
    for options in ({"max_bytes": -1}, {"user": 1.5}):
        with pytest.raises(InvalidInput):
            instance.read_file("/f", **options)


class Name(str, enum.Enum):  # noqa: UP042 - whose str() is not its value
    A = "echo $A"


class Number(enum.IntEnum):
    MODE = 0o600


def test_subclasses_count_as_what_they_are(box: Sandbox) -> None:
    assert box.run(Name.A, env={"A": Name.A}).stdout == b"echo $A\n"
    assert box.run(["echo", Name.A], timeout=Number.MODE).stdout == b"echo $A\n"
    box.write_file("/root/f", bytearray(b"x"), mode=Number.MODE)
    box.write_file("/root/g", memoryview(b"0123")[::2], mode=Number.MODE)
    assert box.run("cat /root/f /root/g; stat -c %a /root/f").stdout == b"x02600\n"
    assert box.run("cat", stdin=memoryview(b"abc")).stdout == b"abc"
    box.write_file("/root/f", "\udcff")  # as Python reads a byte that is no UTF-8
    assert box.read_file("/root/f") == b"\xff"
