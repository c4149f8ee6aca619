"""Images that were imported: their records, and sandboxes that stand on them alone.

with minisandbox.open_image("ubuntu-22.04").start() as box:
    print(box.run("cat /etc/os-release").text)
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from minisandbox import keys
from minisandbox.errors import InvalidInput
from minisandbox.idmap import IdMap
from minisandbox.records import codec
from minisandbox.records.image import ImageRecord
from minisandbox.runtime.cache import store_of
from minisandbox.runtime.stack import Report
from minisandbox.sandbox import Profile, Sandbox, arguments
from minisandbox.store import Lease, NodeStore, Store, default_node_root

#: Below the results folder, a file an image.
FOLDER = "images"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: Bytes of a working directory that is made where an image has none.
_LONGEST_PLACE = 255
#: Raised with each change of what ``_place`` and ``_site`` write.
_SITE_VERSION = 1


def image_path(folder: Path, name: str) -> Path:
    """Where the record of an image is or would be; raises ``InvalidInput`` for what is no name."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"image {name[:200]!r}",
            "cannot be the name of one",
            "use letters, digits, '.', '_' and '-', 128 at most",
        )
    return folder / FOLDER / f"{name}.json"


def images_in(folder: Path) -> Iterator[ImageRecord]:
    """The records of a results folder, by name."""
    for path in sorted((folder / FOLDER).glob("*.json")):
        yield codec.read(ImageRecord, path)


class Image:
    """An imported image: its ``record``, and sandboxes on its layers. Made by ``open_image``."""

    def __init__(self, record: ImageRecord, store: Store, node: NodeStore | None = None) -> None:
        self.record = record
        self.store = store
        self._node = node

    @property
    def node(self) -> NodeStore:
        """The node store of this user, made on first use."""
        if self._node is None:
            self._node = NodeStore(default_node_root())
        return self._node

    @property
    def command(self) -> tuple[str, ...]:
        """The program that the image is made to run."""
        return (*self.record.entrypoint, *self.record.cmd)

    def start(
        self,
        *,
        profile: Profile | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        report: Report | None = None,
    ) -> Sandbox:
        """Start a sandbox whose files are those of the image, with its own ``/usr``.

        Commands find its variables and working directory and run as its user, unless ``env``,
        ``cwd`` and ``user`` say otherwise; its entry point is not run. The first time on a machine
        its layers are unpacked, of which ``report`` is told.

        Raises ``InvalidInput`` where this host has not the user that it wants, and what
        ``NodeStore.ensure`` and ``Sandbox.start`` raise.
        """
        variables = arguments.variables("env", env)
        report = report or (lambda _: None)
        profile = Profile() if profile is None else profile
        arguments.instance_of("profile", profile, Profile)
        record, node = self.record, self.node
        runs_as = self._user(user)
        owned = sum(part.owned for part in record.layers)
        if node.idmap.count == 1 and owned:
            report(f"{owned} files of other users are root's: this user has a single id")
        with node.lease() as lease:
            folders = self._unpack(lease, report)
            return Sandbox.start(
                # Above an empty base: what the image has is as the image has it. What engines make
                # where it has none, its working directory, lies below it, and what they bring to
                # every image (/etc/hosts, ...) above.
                (*_place(node, record.workdir, lease), *folders, _site(node, profile, lease)),
                base=(),
                scratch=node.scratch,
                idmap=node.idmap,
                profile=profile,
                env={**record.env, **variables},
                cwd=cwd or record.workdir,
                user=runs_as,
                name=record.name,
                lease=lease,
            )

    def _unpack(self, lease: Lease, report: Report) -> tuple[Path, ...]:
        folders: dict[str, Path] = {}
        for part in self.record.layers:
            layer = part.layer
            if not self.node.path(layer.digest).is_dir():
                report(f"unpacking an image layer, {layer.unpacked_size / 1e6:,.0f} MB")
            # An overlay takes no directory twice. All that a layer says, it says where it is last.
            folders.pop(layer.digest, None)
            folders[layer.digest] = self.node.ensure(
                self.store, layer.digest, size=layer.unpacked_size, lease=lease
            )
        return tuple(folders.values())

    def _user(self, chosen: str | int | None) -> str | int | None:
        if chosen is not None:
            return chosen
        user, _, group = self.record.user.partition(":")
        if user in ("", "0", "root") and group in ("", "0", "root"):
            return None
        if self.node.idmap.count == 1:
            raise InvalidInput(
                f"image {self.record.name}",
                f"runs as {self.record.user!r}, and the sandboxes of this user have the single id "
                "0",
                "choose user 0, or have a range of ids in /etc/subuid (see docs/hosts.md)",
            )
        return f"{user}:{group}"  # with the colon it is understood as engines do


def open_image(
    name: str, folder: str | Path = "results", *, store: str | Path | None = None
) -> Image:
    """The image ``name`` of a results folder; raises ``InvalidInput`` with the names there are.

    ``store`` overrides where the packed layers are looked for.
    """
    folder = Path(folder)
    try:
        record = codec.read(ImageRecord, image_path(folder, name))
    except FileNotFoundError:
        names = [path.stem for path in (folder / FOLDER).glob("*.json")]
        near = difflib.get_close_matches(name, names, n=3)
        raise InvalidInput(
            f"image {name!r}",
            f"is not in {folder}" + (f", did you mean {', '.join(near)}?" if near else ""),
            "import it with `minisandbox oci import`",
        ) from None
    return Image(record, Store(Path(store) if store else store_of(folder)))


def _place(node: NodeStore, workdir: str, lease: Lease) -> tuple[Path, ...]:
    """A layer with nothing but the working directory; none for the root, and for what only those
    write who want to see what happens.
    """
    parts = [part for part in workdir.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or len(os.fsencode(workdir)) > _LONGEST_PLACE:
        return ()

    def fill(work: Path) -> None:
        for count in range(len(parts) + 1):
            path = work.joinpath(*parts[:count])
            path.mkdir()
            path.chmod(0o755)
            _give(path, node.idmap)

    name = f"place-{keys.short(keys.digest_of([_SITE_VERSION, parts]), 32)}"
    return (node.derive(name, fill, lease=lease),)


def _give(path: Path, idmap: IdMap) -> None:
    """Make a file root's, as the sandbox has it."""
    if idmap.kind == "root":
        os.chown(path, idmap.host_uid(0), idmap.host_gid(0))


def _site(node: NodeStore, profile: Profile, lease: Lease) -> Path:
    """A layer with the files that tell a program where it is."""
    resolv = "# this sandbox has no name servers\n"
    if profile.network == "host":
        try:
            resolv = Path("/etc/resolv.conf").read_text(encoding="utf-8", errors="replace")
        except OSError:
            pass
    texts = {
        "hostname": f"{profile.hostname}\n",
        "hosts": f"127.0.0.1\tlocalhost {profile.hostname}\n"
        f"::1\tlocalhost ip6-localhost {profile.hostname}\n",
        "resolv.conf": resolv,
    }

    def fill(work: Path) -> None:
        (work / "etc").mkdir(parents=True)
        for name, text in texts.items():
            (work / "etc" / name).write_text(text, encoding="utf-8")
            (work / "etc" / name).chmod(0o644)
        for path in (work, work / "etc", *(work / "etc" / name for name in texts)):
            if path.is_dir():
                path.chmod(0o755)
            _give(path, node.idmap)

    name = f"site-{keys.short(keys.digest_of([_SITE_VERSION, texts]), 32)}"
    return node.derive(name, fill, lease=lease)
