"""Which file system a directory is on, from this process's table of mounts (proc(5), mountinfo)."""

from __future__ import annotations

import os
import re
from pathlib import Path


def file_system(directory: Path) -> tuple[str, Path]:
    """Type and mount point of the file system that ``directory`` is on.

    A device without an entry of its own, such as that of a btrfs subvolume, is looked up by path.
    Raises ``OSError`` for what does not exist.
    """
    device = os.stat(directory).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    real = directory.resolve()
    by_path = by_device = ("", Path("/"))
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        mount, _, source = line.partition(" - ")
        fields = mount.split(" ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        if not real.is_relative_to(point):
            continue
        found = source.split(" ")[0], point
        # Of several mounts at one place the last one is on top.
        if len(point.parts) >= len(by_path[1].parts):
            by_path = found
        if fields[2] == name and len(point.parts) >= len(by_device[1].parts):
            by_device = found
    return by_device if by_device[0] else by_path
