"""The base stage: a distribution's packages as layers, made without root and without its own
tools.

The files of all packages become one layer, by the lock alone; what their installation scripts then
write becomes a second one, made in a sandbox on the first. A variant with further packages has the
layers of its base below two of its own.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from functools import partial
from importlib import resources
from pathlib import Path

from minisandbox import archive, atomic, keys
from minisandbox.build import stage
from minisandbox.build.bases import joining
from minisandbox.build.bases.packages import fetch
from minisandbox.build.workshop import LAYER_DATE, Workshop, is_below
from minisandbox.errors import StageFailed, UnsafeArchive
from minisandbox.idmap import remove_tree
from minisandbox.records import codec
from minisandbox.records.layer import LayerRef
from minisandbox.records.plan import BasePlan
from minisandbox.records.stages import BaseRecord
from minisandbox.sandbox import Bind
from minisandbox.store import NodeStore, Store, default_node_root
from minisandbox.store.faults import call_carrying, reachable
from minisandbox.store.locks import tried

_SCRIPT = "configure.sh"
_SET_ASIDE = "set_aside.sh"
_TIMEOUT = 3600
#: How the directory begins in which packages are unpacked, and how the file ends that is locked
#: meanwhile.
_WORK, _LOCK = ".base-", ".lock"
#: Inside, while packages are configured.
_KNOWN = "/run/packages"
#: These change nothing: see the script.
_IDLE = ("/usr/bin/chown", "/usr/bin/chgrp")
#: What says when and where it was built, and what every sandbox gets of its own.
_NOT_PACKED = (
    "dev",
    "etc/.pwd.lock",
    "etc/gitconfig",
    "etc/host.conf",
    "etc/hostname",
    "etc/hosts",
    "etc/inputrc",
    "etc/machine-id",
    "etc/mtab",
    "etc/resolv.conf",
    "proc",
    "root",
    "run",
    "sys",
    "tmp",
    "var/cache",
    "var/lib/apt",
    "var/lib/dpkg/lock",
    "var/lib/dpkg/lock-frontend",
    "var/lib/dpkg/status-old",
    "var/lib/dpkg/triggers/Lock",
    "var/log",
    "var/tmp",
)


def run(
    plan_path: Path, record_path: Path, attempt: stage.Attempt, *, above_path: Path | None = None
) -> stage.Ended:
    """``minisandbox build base``; ``above_path`` is the record of the base that a variant is of."""
    plan = codec.read(BasePlan, plan_path)
    above = codec.read(BaseRecord, above_path) if above_path is not None else None
    store = Store(Path(plan.store))
    log = record_path.with_suffix(".log")
    below = above.layers if above is not None else ()
    inputs = keys.digest_of(
        {
            "identity": dict(plan.identity),
            "above": stage.base_inputs(above),
            "unknown": list(plan.unknown),
        }
    )

    def work() -> BaseRecord:
        log.unlink(missing_ok=True)
        _remove_abandoned(NodeStore(default_node_root()))
        stage.refuse_failed_base(above)
        if plan.unknown:
            raise StageFailed(
                "base",
                f"the lock of {plan.identity['kind']} has no package {', '.join(plan.unknown)}",
                hint=f"add it to 'extras' of the base and run "
                f"`minisandbox base lock {plan.identity['kind']}`",
            )
        return _build(plan, below, store, log)

    return stage.run_stage(
        BaseRecord,
        record_path,
        stage="base",
        key=plan.slug,
        inputs=inputs,
        log=log,
        work=work,
        attempt=attempt,
        store=store,
    )


def _build(plan: BasePlan, below: Sequence[LayerRef], store: Store, log: Path) -> BaseRecord:
    clock = stage.Clock()
    paths = fetch(plan)
    seconds = {"fetch": clock.seconds}
    clock = stage.Clock()
    files = _files(paths, store)
    seconds["unpack"] = clock.seconds
    # Those of a base need each other's configuration, and are set up with all of it in place.
    packages = [joining.described(path, placed=not below) for path in paths]
    with tempfile.TemporaryDirectory(prefix="minisandbox-base-") as folder:
        known, idle = Path(folder, "known"), Path(folder, "idle")
        _write_known(known, packages)
        idle.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
        for path in (Path(folder), known, idle):
            path.chmod(0o755)  # another id reads them
        binds = [Bind(source=known, target=_KNOWN)]
        binds += [Bind(source=idle, target=target) for target in _IDLE]
        with Workshop(
            [*below, files],
            store=store,
            network="none",
            log=log,
            name=f"base-{plan.slug}",
            binds=binds,
            env={
                "DEBIAN_FRONTEND": "noninteractive",
                "DEBCONF_NONINTERACTIVE_SEEN": "true",
                "LC_ALL": "C.UTF-8",
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "SOURCE_DATE_EPOCH": str(LAYER_DATE),
            },
        ) as shop:
            for name in (*([_SET_ASIDE] if below else []), _SCRIPT):
                shop.run(
                    ["/bin/bash", "-eu", "-s", "--", _KNOWN],
                    stdin=_script(name),
                    failure="base",
                    what="configuring the packages",
                    purpose="configure",
                    timeout=_TIMEOUT,
                    quiet=True,
                )
            configured = shop.pack("base", exclude=partial(is_below, _NOT_PACKED))
    return stage.new(
        BaseRecord,
        base=plan.identity,
        packages=tuple(f"{package.name}={package.version}" for package in plan.packages),
        layers=(*below, files, configured),
        stage_seconds={**seconds, **shop.seconds},
        tools=stage.versions(["python-debian", "swe-minisandbox"]),
    )


def _files(paths: Sequence[Path], store: Store) -> LayerRef:
    """The layer that holds the packages' files."""
    node = NodeStore(default_node_root())
    name = f"{_WORK}{keys.short(keys.digest_of([str(path) for path in paths]), 16)}"
    work = node.scratch / name
    with atomic.locked(work.with_suffix(_LOCK)):
        remove_tree(work, node.idmap)  # of a killed build
        try:
            with reachable(node.scratch) as parent:
                # What the archives may do is the unpacker's to say; whether every file is where
                # dpkg looks for it is checked when all are configured.
                sources = [path.absolute() for path in paths]
                unpack = partial(_unpack, sources, parent / work.name, node)
                call_carrying(node.idmap, unpack)
            return store.add("base", work, date=LAYER_DATE, idmap=node.idmap)
        except UnsafeArchive as error:
            raise StageFailed("base", str(error)) from None
        finally:
            remove_tree(work, node.idmap)


def _remove_abandoned(node: NodeStore) -> None:
    """Remove what killed builds of other bases unpacked: nobody holds its lock."""
    for work in node.scratch.glob(f"{_WORK}*"):
        if work.suffix != _LOCK:
            with tried(work.with_suffix(_LOCK)) as held:
                if held:
                    remove_tree(work, node.idmap)


def _unpack(paths: Sequence[Path], target: Path, node: NodeStore) -> None:
    stream = io.BufferedReader(joining.Joined(paths), 1 << 20)
    archive.unpack(stream, target, idmap=node.idmap, archive="the packages of a base")


def _write_known(folder: Path, packages: Sequence[joining.Package]) -> None:
    folder.mkdir()
    triggers = [f"{name} {package}" for item in packages for name, package in item.triggers]
    # The accounts that other scripts look up come first.
    preinst = sorted(
        (item.name for item in packages if item.has_preinst),
        key=lambda name: (name != "base-passwd", name),
    )
    texts = {
        "status": "".join(f"{item.stanza}\n" for item in packages),
        "triggers": "".join(f"{line}\n" for line in triggers),
        "preinst": "".join(f"{name}\n" for name in preinst),
        "conffiles": "".join(f"{name}\n" for item in packages for name in item.conffiles),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o644)


def _script(name: str) -> bytes:
    return (resources.files("minisandbox.build.bases") / name).read_bytes()
