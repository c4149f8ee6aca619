"""Layer stacks: what shows through, what is hidden, and that edits stay where they are made."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from minisandbox.errors import InvalidInput, SandboxDied
from minisandbox.idmap import IdMap, call_mapped
from minisandbox.sandbox import Profile, Sandbox


def test_upper_layers_cover_lower_ones(start, make_layer) -> None:
    low = make_layer({"testbed/a": "low", "testbed/b": "low"})
    high = make_layer({"testbed/b": "high"})
    box = start(low, high)
    assert box.run("cat /testbed/a /testbed/b").stdout == b"lowhigh"


def test_two_sandboxes_over_the_same_layers(start, make_layer) -> None:
    layer = make_layer({"testbed/a": "0"})
    one, other = start(layer), start(layer)
    assert one.run("echo 1 > /testbed/a; rm -rf /etc/ssl; echo x > /testbed/new").exit_code == 0
    assert other.run("cat /testbed/a; ls /testbed").stdout == b"0a\n"
    assert (layer / "testbed/a").read_text() == "0"


def test_files_of_lower_layers_can_be_changed_in_every_way(start, make_layer) -> None:
    layer = make_layer({"testbed/dir/a": "a", "testbed/dir/b": "b", "testbed/c": "c"})
    box = start(layer)
    script = """
    set -e
    cd /testbed
    rm -r dir && mkdir dir && [ -z "$(ls -A dir)" ]
    mv c d && cp d c && ln d e && chmod 700 d && ln -s d f
    cat f e
    """
    result = box.run(script)
    assert (result.exit_code, result.stdout) == (0, b"cc"), result.text


def test_whiteouts_hide_lower_files(start, make_layer, idmap: IdMap, tmp_path: Path) -> None:
    low = make_layer({"testbed/gone": "x", "testbed/kept": "y", "testbed/dir/old": "z"})
    first = start(low)
    first.run("rm /testbed/gone && rm -r /testbed/dir && mkdir /testbed/dir && > /testbed/dir/new")
    upper = first.seal()
    again = start(low, upper)
    assert again.run("cd /testbed && ls . dir").stdout == b".:\ndir\nkept\n\ndir:\nnew\n"


def test_renaming_a_directory_of_a_lower_layer(start, make_layer, idmap: IdMap) -> None:
    layer = make_layer({"testbed/dir/a": "a"})
    rename = ["python3", "-c", "import os; os.rename('/testbed/dir', '/testbed/moved')"]
    result = start(layer).run(rename)
    if idmap.kind == "root":
        assert result.exit_code == 0, result.text
    else:
        assert "Invalid cross-device link" in result.stderr_text
    # mv copies where the kernel cannot rename, as in Docker.
    assert start(layer).run("mv /testbed/dir /testbed/moved && cat /testbed/moved/a").stdout == b"a"


def test_without_redirects_a_rename_copies(start, make_layer) -> None:
    layer = make_layer({"testbed/dir/a": "a"})
    box = start(layer, profile=Profile(redirect_dir=False))
    rename = ["python3", "-c", "import os; os.rename('/testbed/dir', '/testbed/moved')"]
    assert "Invalid cross-device link" in box.run(rename).stderr_text


def test_seal_leaves_the_upper_directory_until_close(start, make_layer, idmap: IdMap) -> None:
    box = start(make_layer({"testbed/a": "0"}))
    box.run("echo 1 > /testbed/new; sleep 1000 &")
    pid = box.pid
    upper = box.seal()
    assert not os.path.exists(f"/proc/{pid}")
    listing = call_mapped(idmap, partial(os.listdir, upper / "testbed"))
    assert listing == ["new"]
    assert not box.alive
    with pytest.raises(SandboxDied, match="sealed"):
        box.run("true")
    box.close()
    assert not upper.exists()


def test_many_layers_with_awkward_paths(start, make_layer, scratch: Path, tmp_path: Path) -> None:
    layers = [make_layer({f"testbed/{number}": str(number)}) for number in range(120)]
    moved: list[Path] = []
    for number, layer in enumerate(layers):
        place = tmp_path / f"{'long' * 30}:,\\{number}"
        layer.rename(place)
        moved.append(place)
    assert start(*moved).run("ls /testbed | wc -l").stdout == b"120\n"


def test_paths_of_layers_are_the_kernels_to_follow(
    start, make_layer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a link, ``..`` is not what is written before it."""
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    make_layer({"etc/x": "right"}).rename(tmp_path / "elsewhere" / "layer")
    make_layer({"etc/x": "wrong"}).rename(tmp_path / "layer")
    (tmp_path / "link").symlink_to("elsewhere/deep")
    assert start(tmp_path / "link/../layer").run("cat /etc/x").stdout == b"right"
    monkeypatch.chdir(tmp_path)
    assert start(Path("link/../layer")).run("cat /etc/x").stdout == b"right"


def test_layers_must_be_directories(scratch: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a directory"):
        Sandbox.start([tmp_path / "missing"], scratch=scratch)
    with pytest.raises(InvalidInput, match="too many"):
        Sandbox.start([tmp_path] * 500, scratch=scratch)


def test_equal_bases_are_built_once(start, scratch: Path) -> None:
    start(), start()
    assert len(list(scratch.glob("base-*"))) == 1
    start(profile=Profile(hostname="other"))
    assert len(list(scratch.glob("base-*"))) == 2
