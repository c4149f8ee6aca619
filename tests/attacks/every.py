"""Loads all modules of attacks, which fill the table."""

from attacks import (
    descriptors,
    devices,
    files,
    ipc,
    mounts,
    network,
    privileges,
    processes,
    settings,
    syscalls,
)
from attacks.table import TABLE

#: Key of the line that says how an attack ended.
MARK = "outcome of the attack"

GROUPS = {
    module.__name__.rpartition(".")[2]: (module.__doc__ or "").splitlines()[0].rstrip(".")
    for module in (
        files,
        descriptors,
        mounts,
        processes,
        ipc,
        network,
        devices,
        settings,
        privileges,
        syscalls,
    )
}

__all__ = ["GROUPS", "MARK", "TABLE"]
