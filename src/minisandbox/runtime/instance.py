"""One materialized instance: a sandbox on its layers, with the repository at ``/testbed`` and the
venv active.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from minisandbox.closing import Closing
from minisandbox.idmap import IdMap
from minisandbox.records.layer import LayerRef
from minisandbox.runtime import worktree
from minisandbox.runtime.forwarding import of_sandbox
from minisandbox.runtime.services import has_services, start_services
from minisandbox.runtime.stack import Report, stack, unpacked
from minisandbox.sandbox import Bind, Profile, Reset, Sandbox, Snapshot
from minisandbox.store import NodeStore, Store

#: Where the repository and its environment are inside; the field's scripts and prompts name these
#: paths.
TESTBED = "/testbed"
CONDA = "/opt/miniconda3"
VENV = f"{CONDA}/envs/testbed"
#: Packages that installing the repository again needs, for a time without a network; pip looks here
#: by the configuration of the environment.
WHEELHOUSE = "/opt/wheelhouse"
#: Locales that the base may lack.
LOCALES = "/opt/locales"

_PATH = f"{VENV}/bin:{CONDA}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment_variables(network: str) -> dict[str, str]:
    """What ``conda activate testbed`` would set, and what suits ``network``."""
    # Where there is none, asking again is a waste of minutes. (Not PIP_NO_INDEX: a test may serve
    # an index of its own.)
    offline = {"PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0"} if network == "none" else {}
    return {
        **offline,
        "UV_FIND_LINKS": WHEELHOUSE,
        "LOCPATH": f"{LOCALES}:/usr/lib/locale",
        "PATH": _PATH,
        "VIRTUAL_ENV": VENV,
        "CONDA_PREFIX": VENV,
        "CONDA_DEFAULT_ENV": "testbed",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


class Instance(Closing):
    """A running instance. Use as a context manager; everything done in it is gone when it
    closes.

    Commands and files are those of ``Sandbox``: see there. Commands start in ``/testbed``, with the
    environment active.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        head_tree: str,
        store: Store,
        idmap: IdMap,
        serves: bool = False,
    ) -> None:
        self._serves = serves
        self.sandbox = sandbox
        self.head_tree = head_tree
        self._store = store
        self._idmap = idmap

    run = of_sandbox(Sandbox.run)
    popen = of_sandbox(Sandbox.popen)
    session = of_sandbox(Sandbox.session)
    read_file = of_sandbox(Sandbox.read_file)
    write_file = of_sandbox(Sandbox.write_file)
    upload = of_sandbox(Sandbox.upload)
    download = of_sandbox(Sandbox.download)

    def diff(self) -> bytes:
        """What was changed since the instance was built, as a patch that ``git apply`` takes,
        binary files too.

        Told against the recorded tree, by an index and objects that the inside cannot write:
        commits, resets or a deleted ``.git`` change nothing about it. Ignored files, and what the
        install step made, are not part of it.
        """
        return worktree.diff(self.sandbox, self.head_tree)

    def apply_patch(self, patch: str, *, name: str = "patch") -> None:
        """Apply a unified diff to the work tree; raises ``PatchFailed``, and then the tree is
        unchanged.
        """
        worktree.apply_patch(self.sandbox, patch, name=name)

    def restore(self, paths: Sequence[str]) -> None:
        """Put files back to the recorded tree; those that it does not have are removed."""
        worktree.restore(self.sandbox, self.head_tree, paths)

    def reset(self) -> Reset:
        """Drop everything that was done in it; see ``Sandbox.reset``."""
        done = self.sandbox.reset()
        if self._serves:
            start_services(self.sandbox)
        return done

    def snapshot(self) -> Snapshot:
        """What its files are now; see ``Sandbox.snapshot``."""
        return self.sandbox.snapshot()

    def start_from(self, snapshot: Snapshot) -> Instance:
        """Another instance with the files of a snapshot; this one may be closed."""
        sandbox = self.sandbox.start_from(snapshot, name=self.sandbox.name)
        return _serving(
            Instance(
                sandbox,
                head_tree=self.head_tree,
                store=self._store,
                idmap=self._idmap,
                serves=self._serves,
            )
        )

    def fork(self) -> Instance:
        """Another instance with the same files; what either does from then on, the other does not
        see.
        """
        with self.snapshot() as snapshot:
            return self.start_from(snapshot)

    def checkpoint(self) -> tuple[LayerRef, ...]:
        """Pack what was changed into layers of the cache's store, for ``Cache.materialize(above=)``
        in any process, on any machine.

        One layer for each snapshot that was taken, oldest first, and one for what came after it.
        Raises what :meth:`snapshot` does, ``UnpackableTree`` for what a layer cannot hold (with
        ``Profile(redirect_dir=True)``, a renamed directory of a layer below), ``StoreUnusable``.
        """
        with self.snapshot() as snapshot:
            return tuple(
                self._store.add(
                    "checkpoint",
                    upper,
                    # Not a date of files below: byte-code of theirs would be taken for that of
                    # files edited here.
                    date=int(time.time()),
                    idmap=self._idmap,
                    exclude=_is_not_kept,
                )
                for upper in snapshot.uppers
            )

    def open_shell(self) -> int:
        """An interactive shell on the caller's terminal; returns its exit code."""
        return self.sandbox.open_shell(
            argv=["/bin/bash", "--rcfile", "/opt/miniconda3/etc/minisandbox.bashrc", "-i"],
            env={"MINISANDBOX_NAME": self.sandbox.name},
        )

    def close(self) -> None:
        """End every process and remove every change."""
        self.sandbox.close()


def start_instance(
    layers: Sequence[LayerRef],
    *,
    head_tree: str,
    store: Store,
    node: NodeStore,
    name: str,
    profile: Profile | None = None,
    env: Mapping[str, str] | None = None,
    report: Report | None = None,
) -> Instance:
    """Unpack what this node lacks and start a sandbox on it; raises what ``NodeStore.ensure`` and
    ``Sandbox.start`` do. ``report`` is told what takes long.
    """
    profile = profile or Profile()
    with stack(layers, store=store, node=node, report=report) as stacked:
        # The layer's content is not trusted. What lies in its ``.git`` (an index or objects that
        # are links) is only ever read inside, after the root has changed; ``.git`` itself is looked
        # up on the host.
        base = _pristine_git(layers, node)
        sandbox = Sandbox.start(
            stacked.layers,
            base=stacked.base,
            scratch=node.scratch,
            idmap=node.idmap,
            profile=replace(profile, binds=(*profile.binds, *base)),
            env={**environment_variables(profile.network), **(env or {})},
            cwd=TESTBED,
            name=name,
            lease=stacked.lease,
        )
    serves = has_services(layers)
    return _serving(
        Instance(sandbox, head_tree=head_tree, store=store, idmap=node.idmap, serves=serves)
    )


def _serving(instance: Instance) -> Instance:
    """``instance`` with the services that came with its layers; closes it where one fails."""
    if instance._serves:  # pyright: ignore[reportPrivateUsage]
        try:
            start_services(instance.sandbox)
        except BaseException:
            instance.close()
            raise
    return instance


def _pristine_git(layers: Sequence[LayerRef], node: NodeStore) -> tuple[Bind, ...]:
    """Binds of the ``.git`` of an instance as it was built."""
    trees = {
        layer.kind: unpacked(layer, node)
        for layer in layers
        if layer.kind in ("source", "instance", "bug")
    }
    way, target = "testbed/.git", f"{worktree.BASE}/"
    if "bug" in trees:
        # As one: its whiteouts keep what the layers below hold of the healthy tree from view.
        trees = {"instance": tuple(path for paths in trees.values() for path in paths)}
    return tuple(
        Bind(paths[-1], target + kind, beneath=way, under=tuple(reversed(paths[:-1])))
        for kind, paths in trees.items()
    )


def _is_not_kept(path: str) -> bool:
    """Whether a path is where something is mounted, which is made anew with each start."""
    return path.partition("/")[0] in ("dev", "proc", "sys", "run")
