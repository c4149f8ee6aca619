"""What an install compiled on its way is left out; nothing else is, and libraries still work."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox.build.checkouts.checkout import make_checkout
from minisandbox.build.checkouts.slimming import slim
from minisandbox.build.workshop import Workshop
from minisandbox.sandbox import Limits
from minisandbox.store import Store

#: As distutils does it, with the flags of CPython.
COMPILE = r"""
temp=build/temp.linux-x86_64-3.9
odd="$(printf 'odd\nname')"
mkdir -p "$temp/pkg" "$temp/$odd" build/lib pkg
gcc -g -fPIC -c answer.c -o $temp/pkg/answer.o
cp $temp/pkg/answer.o "$temp/$odd/"
cp $temp/pkg/answer.o mine.o
gcc -g -shared $temp/pkg/answer.o -o build/lib/answer.so
cp build/lib/answer.so pkg/answer.cpython-39-x86_64-linux-gnu.so
cp build/lib/answer.so "$(printf 'new\nline.so.1')"
chmod 555 pkg/answer.cpython-39-x86_64-linux-gnu.so
echo 'no library' > text.so
ln -s pkg/answer.cpython-39-x86_64-linux-gnu.so link.so
ln -s /etc/passwd out.so
"""
SECTIONS = "readelf -S -W {0} | grep -c debug_ || true"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    upstream = tmp_path / "upstream"
    (upstream / "build/temp.linux-x86_64-3.9").mkdir(parents=True)
    (upstream / "answer.c").write_text("int answer(void) { return 42; }\n")
    (upstream / ".gitignore").write_text("build/\n*.so\n*.o\n")
    command = ["gcc", "-g", "-shared", "-fPIC", "answer.c", "-o"]
    subprocess.run([*command, "tracked.so"], cwd=upstream, check=True)
    (upstream / "build/temp.linux-x86_64-3.9/tracked.o").write_bytes(b"an object")
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    for words in (["init", "-q", "."], ["add", "-f", "-A"], [*identity, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *words], cwd=upstream, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=upstream, check=True, capture_output=True, text=True
    )
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(tmp_path / "node"))
    store, log = Store(tmp_path / "store"), tmp_path / "log"
    checkout = make_checkout(
        upstream / ".git",
        head.stdout.strip(),
        history="none",
        store=store,
        log=log,
        name="slim",
        url="here",
        clone="here",
        limits=Limits(),
    )
    with Workshop([checkout.layer], store=store, network="none", log=log, name="slim") as opened:
        yield opened


def said(shop: Workshop, command: str) -> str:
    result = shop.sandbox.run(command, cwd="/testbed", merge_stderr=True)
    assert result.exit_code == 0, result.text
    return result.text.strip()


def test_what_was_compiled_on_the_way_is_left_out(shop: Workshop) -> None:
    said(shop, COMPILE)
    library = "pkg/answer.cpython-39-x86_64-linux-gnu.so"
    assert int(said(shop, SECTIONS.format(library))) > 2
    tracked = said(shop, "sha256sum tracked.so")
    slim(shop)
    objects = ["./build/temp.linux-x86_64-3.9/tracked.o", "./mine.o"]
    assert sorted(said(shop, "find . -name '*.o'").splitlines()) == objects
    for path in (library, "build/lib/answer.so", "new*line.so.1"):
        assert said(shop, SECTIONS.format(path)) == "0"
    assert said(shop, f"stat -c %a {library}; cat text.so") == "555\nno library"
    assert said(shop, "sha256sum tracked.so") == tracked
    assert said(shop, "readlink link.so out.so").splitlines() == [library, "/etc/passwd"]
    load = f"import ctypes; print(ctypes.CDLL('/testbed/{library}').answer())"
    assert said(shop, f'python3 -c "{load}"') == "42"
    written = shop.log.read_text()
    assert "bytes of object files left out" in written
    assert "bytes for debuggers left out" in written
    assert int(said(shop, SECTIONS.format("tracked.so"))) > 2


def test_what_others_than_setuptools_look_at_again_stays(shop: Workshop) -> None:
    said(shop, COMPILE)
    kept = """
        cd build/temp.linux-x86_64-3.9
        mkdir -p cmake/CMakeFiles/answer.dir lib ninja/sub
        touch cmake/CMakeCache.txt ninja/build.ninja
        cp pkg/answer.o cmake/CMakeFiles/answer.dir/; cp pkg/answer.o ninja/sub/
        cp pkg/answer.o lib/member.o; ar rcs lib/libanswer.a lib/member.o
        cp ../lib/answer.so ../../payload.so; echo payload >> ../../payload.so
        printf '\\177ELF and no more' > ../../broken.so
    """
    said(shop, kept)
    before = said(shop, "sha256sum payload.so broken.so")
    slim(shop)
    found = said(shop, "cd build/temp.*; find . -name '*.o' | sort").splitlines()
    objects = ["cmake/CMakeFiles/answer.dir/answer.o", "lib/member.o", "ninja/sub/answer.o"]
    assert found == [f"./{path}" for path in [*objects, "tracked.o"]]
    assert said(shop, "sha256sum payload.so broken.so") == before
    assert said(shop, "find . -name '*.slim'") == ""


def test_a_second_time_nothing_is_written(shop: Workshop) -> None:
    said(shop, COMPILE)
    slim(shop)
    said(shop, "touch /tmp/then; sleep 0.1")
    slim(shop)
    assert said(shop, "find . -newer /tmp/then -not -path './.git/*'") == ""


def test_where_nothing_was_compiled_nothing_is_said(shop: Workshop) -> None:
    slim(shop)
    assert "left out" not in shop.log.read_text()
