"""Two instances on a packed base that is a single program: an image of them takes a second."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minisandbox.idmap import call_mapped, current, remove_tree
from minisandbox.records.layer import LayerKind, LayerRef
from minisandbox.records.manifest import Base
from minisandbox.runtime import Cache, Instance
from minisandbox.store import NodeStore, Store, gitobjects
from small_projects import DATE, write_manifest

#: What every program of these instances is.
_PROGRAMS = ("sh", "cat", "env", "grep", "ls", "pwd", "sort", "id", "sleep", "mkdir")

_TESTS = """\
say() { echo "$1 - $2"; }
[ "$(cat hello.txt)" = hello ] && say "ok 1" greets || say "not ok 1" greets
[ "$(cat count.txt)" = NUMBER ] && say "ok 2" counts || say "not ok 2" counts
[ -e gone.txt ] && say "not ok 3" "is gone" || say "ok 3" "is gone"
"""


#: When what is checked out was committed; one lies in each instance.
COMMITTED = 1_500_000_000


def committed(number: int) -> tuple[str, bytes]:
    """The name and the file of the commit that is checked out."""
    content = (
        b"tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\n"
        b"author A <a@b> 1400000000 +0000\n"
        b"committer A <a@b> %d +0000\n\ncommitter A <a@b> 1300000000 +0000\n" % (COMMITTED + number)
    )
    return gitobjects.name_of(b"commit", content).hex(), gitobjects.loose(b"commit", content)


def _write(root: Path, busybox: Path) -> None:
    texts: dict[str, str] = {
        "base/etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
        "base/etc/group": "root:x:0:\n",
        # Services are started by a bash, of which this one needs no more than any shell has.
        "service/usr/bin/bash": '#!/bin/sh\nexec /bin/sh "$@"\n',
        "service/opt/services/one/start": "#!/bin/sh\necho started > /var/tmp/service\n",
        "source/testbed/.git/HEAD": "ref: refs/heads/main\n",
        "source/testbed/hello.txt": "hello\n",
        "source/testbed/gone.txt": "this is not to be seen\n",
        "source/testbed/tests.sh": _TESTS.replace("NUMBER", "1"),
    }
    for number in (1, 2):
        texts[f"instance-{number}/testbed/count.txt"] = f"{number}\n"
        texts[f"instance-{number}/testbed/.git/description"] = "made by hand\n"
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    for number in (1, 2):
        name, commit = committed(number)
        fan = root / f"instance-{number}/testbed/.git/objects" / name[:2]
        fan.mkdir(parents=True)
        (fan / name[2:]).write_bytes(commit)
    programs = root / "base/usr/bin"
    programs.mkdir(parents=True)
    shutil.copy(busybox, programs / "busybox")
    for name in ("base/usr/bin/busybox", "service/usr/bin/bash", "service/opt/services/one/start"):
        (root / name).chmod(0o755)
    for name in _PROGRAMS:
        (programs / name).symlink_to("busybox")
    (root / "base/bin").symlink_to("usr/bin")
    for number in (1, 2):
        os.mknod(root / f"instance-{number}/testbed/gone.txt", 0o020000, os.makedev(0, 0))


class PackedProject:
    """Two instances of one source; remove it with ``close``."""

    names = ("made__small-1", "made__small-2")
    #: One more, which has a service.
    serving = "made__small-3"
    #: Layers that both have, and at which height of an image its own lies.
    shared = 2
    height = 1

    def __init__(self, folder: Path) -> None:
        found = shutil.which("busybox")
        if found is None:
            pytest.skip("needs busybox (package busybox-static)")
        self.folder = folder
        idmap = current()
        trees = folder / "trees"
        call_mapped(idmap, partial(_write, trees, Path(found)))
        self.store = Store(folder / "store")
        self.node = NodeStore(folder / "node", idmap)
        kinds: dict[str, LayerKind] = {
            "base": "base",
            "service": "service",
            "source": "source",
            "instance-1": "instance",
            "instance-2": "instance",
        }
        packed = {
            name: self.store.add(kind, trees / name, date=DATE, idmap=idmap)
            for name, kind in kinds.items()
        }
        self._layers: dict[str, tuple[LayerRef, ...]] = {
            name: (packed["base"], packed["source"], packed[f"instance-{number}"])
            for number, name in enumerate(self.names, 1)
        }
        base, *others = self._layers[self.names[1]]
        self._layers[self.serving] = (base, packed["service"], *others)
        self._numbers = dict(zip(self._layers, (1, 2, 2), strict=True))

    def close(self) -> None:
        remove_tree(self.node.root, self.node.idmap)
        remove_tree(self.folder / "trees", self.node.idmap)

    def cache(self, *, without_base: bool = False, **changes: Any) -> Cache:
        """A cache with all instances."""
        rows = [
            {
                "instance_id": name,
                "layers": layers[without_base:],
                "base": Base(kind="small", arch=os.uname().machine),
                "base_commit": "0" * 40,
                "head_commit": committed(self._numbers[name])[0],
                "test_command": "sh tests.sh",
            }
            | changes
            for name, layers in self._layers.items()
        ]
        write_manifest(self.folder, rows)
        return Cache(self.folder, self.store, self.node)

    def start(self, name: str) -> Instance:
        """A fresh instance."""
        return self.cache().materialize(name)
