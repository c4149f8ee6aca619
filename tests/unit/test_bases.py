"""Packed bases: what they are said to be, where their packages come from, what becomes of them."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from minisandbox import atomic
from minisandbox.build import base, stage
from minisandbox.build.bases import definition, joining, locking, packages
from minisandbox.build.bases.definition import Lock, PackedBase
from minisandbox.build.bases.selection import HostBase, base_plans
from minisandbox.build.planning.config import parse_config
from minisandbox.errors import InvalidInput, MiniSandboxError, StageFailed
from minisandbox.records import codec
from minisandbox.records.plan import BasePlan, DebianPackage
from minisandbox.records.stages import BaseRecord, Failure
from minisandbox.store import NodeStore, default_node_root

ROOT = Path(__file__).parents[2]
BASES = ROOT / "envs/bases"

EMPTY = {"date": "", "architecture": "", "packages": [], "base": [], "extras": {}}
PLACELESS = {"name": "a", "version": "", "archive": "", "path": "", "size": 1}


def package(name: str, content: bytes = b"") -> DebianPackage:
    digest = hashlib.sha256(content).hexdigest()
    return DebianPackage(name, "1.0", "debian", f"pool/{name}_1.0_all.deb", len(content), digest)


def lock_of(*names: str, extras: Mapping[str, tuple[str, ...]] | None = None) -> Lock:
    extras = extras or {}
    everything = {*names, *(name for further in extras.values() for name in further)}
    listed = tuple(package(name, name.encode()) for name in sorted(everything))
    return Lock("20260101T000000Z", "amd64", listed, names, extras)


def described() -> definition.Definition:
    return definition.Definition(
        os="debian",
        os_version="12",
        libc="glibc 2.36",
        keyring="k",
        archives=(definition.Archive("debian", ("bookworm",)),),
        mirrors=("http://one/{archive}/{path}", "http://two/{date}/{archive}/{path}"),
        packages=("a",),
        extras=("c",),
        aliases={"c-dev": "c"},
    )


class TestWhatABaseIs:
    def test_the_bases_that_are_shipped_can_be_read(self) -> None:
        shipped = sorted(path.stem for path in BASES.glob("*.yaml"))
        assert shipped == ["debian-12"]
        for name in shipped:
            for path in BASES.glob(f"{name}.*.lock.json"):
                read = codec.decode(Lock, json.loads(path.read_text()), where=str(path))
                asked = definition.read_definition(BASES, name)
                assert read.extras.keys() == set(asked.extras)
                assert set(asked.packages) <= set(read.base)
                assert set(asked.aliases.values()) <= {*read.extras, *read.base}

    def test_every_package_that_verified_rows_ask_for_is_locked(self) -> None:
        # What swebench 4.1.0 installs with apt-get before matplotlib, sphinx, and xarray.
        asked = (
            "imagemagick ffmpeg libfreetype6-dev pkg-config texlive texlive-latex-extra "
            "texlive-fonts-recommended texlive-xetex texlive-luatex cm-super dvipng graphviz"
        )
        lock = codec.decode(
            Lock, json.loads((BASES / "debian-12.amd64.lock.json").read_text()), where="lock"
        )
        shipped = PackedBase("debian-12", definition.read_definition(BASES, "debian-12"), lock)
        assert shipped.further(asked.split())[1] == ()

    def test_a_lock_is_written_as_it_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock = lock_of("a", "b", extras={"c": ("c", "d")})
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        definition.write_lock(tmp_path / "x.amd64.lock.json", lock)
        assert definition.read_lock(tmp_path, "x") == lock

    def test_a_variant_has_what_the_base_lacks(self) -> None:
        packed = PackedBase("x", described(), lock_of("a", "b", extras={"c": ("c", "d")}))
        assert packed.further(["b"]) == ((), ())
        assert packed.further(["c-dev", "z"]) == (("c", "d"), ("z",))
        assert packed.slug(["a", "b"]) == packed.slug() == "x"
        assert packed.slug(["c"]) == packed.slug(["c-dev"]) != "x"
        assert packed.identity(["c"])["packages"] != packed.identity()["packages"]

    def test_another_package_is_another_base(self) -> None:
        one = PackedBase("x", described(), lock_of("a", "b"))
        other = PackedBase("x", described(), lock_of("a", "c"))
        assert one.identity()["packages"] != other.identity()["packages"]

    def test_plans_are_made_for_what_is_asked(self) -> None:
        packed = PackedBase("x", described(), lock_of("a", extras={"c": ("c",)}))
        config = parse_config({"datasets": ["d.yaml"]}, where="config")
        plans = base_plans(packed, [(), ("c",), ("c-dev",), ("z",)], config)
        variant, unknown = packed.slug(["c"]), packed.slug(["z"])
        assert plans.keys() == {"x", variant, unknown}
        assert [item.name for item in plans["x"].packages] == ["a"]
        assert [item.name for item in plans[variant].packages] == ["c"]
        assert (plans["x"].above, plans[variant].above) == ("", "x")
        assert plans[unknown].unknown == ("z",)
        assert base_plans(HostBase({}), [("c",)], config) == {}

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (None, "minisandbox base lock x"),
            ("{", "cannot be read"),
            ("[]", "x.amd64.lock.json"),
            (
                json.dumps({**EMPTY, "base": ["a"]}),
                "has no package a",
            ),
            (
                json.dumps({**EMPTY, "packages": [{**PLACELESS, "sha256": "../../x"}]}),
                "make it again",
            ),
        ],
    )
    def test_a_bad_lock_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, said: str
    ) -> None:
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        if text is not None:
            (tmp_path / "x.amd64.lock.json").write_text(text)
        with pytest.raises(InvalidInput, match=said):
            definition.read_lock(tmp_path, "x")

    def test_a_base_that_is_not_defined_names_those_that_are(self) -> None:
        with pytest.raises(InvalidInput, match="there are host, debian-12"):
            definition.definition_file(BASES, "arch")

    def test_what_no_lock_has_is_a_failed_record(self, tmp_path: Path) -> None:
        plan = plan_of([], mirrors=(), folder=tmp_path, unknown=("frobnicate",))
        codec.write(tmp_path / "plan.json", plan)
        base.run(tmp_path / "plan.json", tmp_path / "record.json", stage.Attempt())
        failure = codec.read(BaseRecord, tmp_path / "record.json").failure
        assert failure is not None
        assert failure.kind == "base"
        assert "frobnicate" in failure.message
        assert "minisandbox base lock x" in failure.hint


@pytest.mark.parametrize(("kind", "told"), [("index", "index"), ("base", "base"), ("x", "base")])
def test_what_stands_on_a_failed_base_says_whose_fault_it_was(kind: str, told: str) -> None:
    failed = replace(stage.new(BaseRecord), status="failed", failure=Failure(kind, "no", "do"))
    with pytest.raises(StageFailed, match="no") as raised:
        stage.refuse_failed_base(failed)
    assert (raised.value.kind, raised.value.hint) == (told, "do")
    assert stage.base_inputs(failed) != stage.base_inputs(replace(failed, failure=None))
    assert stage.base_inputs(None) == {}


def plan_of(
    listed: Sequence[DebianPackage],
    *,
    mirrors: Sequence[str],
    folder: Path,
    unknown: tuple[str, ...] = (),
) -> BasePlan:
    return BasePlan(
        slug="x",
        above="",
        identity={"kind": "x"},
        packages=tuple(listed),
        unknown=unknown,
        mirrors=tuple(mirrors),
        date="20260101T000000Z",
        downloads=str(folder / "downloads"),
        store=str(folder / "store"),
    )


class TestFetching:
    @pytest.fixture
    def served(self, tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
        """A mirror: its address, its folder, and the paths that were asked for."""
        asked: list[str] = []
        folder = tmp_path / "mirror"
        folder.mkdir()

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *arguments: object) -> None:
                super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                asked.append(self.path)

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield f"http://127.0.0.1:{server.server_port}", folder, asked
            server.shutdown()
            thread.join()

    def test_the_next_mirror_is_asked_and_nothing_is_fetched_twice(
        self, served: tuple[str, Path, list[str]], tmp_path: Path
    ) -> None:
        address, folder, asked = served
        wanted = package("a+b", b"content")
        kept = folder / "old/20260101T000000Z/debian/pool"
        kept.mkdir(parents=True)
        (kept / "a+b_1.0_all.deb").write_bytes(b"content")
        mirrors = [address + "/{archive}/{path}", address + "/old/{date}/{archive}/{path}"]
        plan = plan_of([wanted], mirrors=mirrors, folder=tmp_path)
        (path,) = packages.fetch(plan)
        assert path.read_bytes() == b"content"
        asked.clear()
        assert packages.fetch(plan) == [path]
        assert asked == []

    def test_another_file_by_that_name_is_not_taken(
        self, served: tuple[str, Path, list[str]], tmp_path: Path
    ) -> None:
        address, folder, _ = served
        (folder / "debian/pool").mkdir(parents=True)
        (folder / "debian/pool/a_1.0_all.deb").write_bytes(b"evil")
        plan = plan_of(
            [package("a", b"good")], mirrors=[address + "/{archive}/{path}"], folder=tmp_path
        )
        with pytest.raises(StageFailed, match="serves another file") as raised:
            packages.fetch(plan)
        assert raised.value.kind == "index"
        assert not raised.value.transient
        assert not list((tmp_path / "downloads").rglob("*.deb"))

    def test_no_more_is_taken_than_was_promised(
        self, served: tuple[str, Path, list[str]], tmp_path: Path
    ) -> None:
        address, folder, _ = served
        (folder / "debian/pool").mkdir(parents=True)
        (folder / "debian/pool/a_1.0_all.deb").write_bytes(b"x" * 1000)
        plan = plan_of(
            [package("a", b"good")], mirrors=[address + "/{archive}/{path}"], folder=tmp_path
        )
        with pytest.raises(StageFailed, match="serves more than 4 bytes"):
            packages.fetch(plan)

    def test_every_mirror_is_named_that_failed(self, tmp_path: Path) -> None:
        mirrors = ["http://127.0.0.1:1/{path}", "http://localhost:1/{path}"]
        plan = plan_of([package("a", b"x")], mirrors=mirrors, folder=tmp_path)
        with pytest.raises(StageFailed, match=r"127\.0\.0\.1 cannot.*localhost cannot") as raised:
            packages.fetch(plan)
        assert raised.value.transient


def test_no_lock_is_made_without_an_archive_that_apt_did_not_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warning = "W: Failed to fetch http://one/debian-security/InRelease  Could not connect"
    for name in ("apt-get", "apt-cache"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{warning}' >&2\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(MiniSandboxError, match="lists of all archives: W: Failed to fetch"):
        locking.make_lock(described(), "amd64")


def make_deb(
    path: Path,
    files: Mapping[str, bytes | str],
    control: Mapping[str, bytes],
    *,
    same: bool = False,
) -> Path:
    """A binary package: regular files from bytes, hard links from text."""
    fields = "Package: demo\nVersion: 1.0\nArchitecture: amd64\nDescription: d\n more\n"
    fields += "Multi-Arch: same\n" if same else ""
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": _tar({"control": fields.encode(), **control}),
        "data.tar.xz": _tar(files),
    }
    out = b"!<arch>\n"
    for name, content in parts.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        out += content + b"\n" * (len(content) % 2)
    path.write_bytes(out)
    return path


def _tar(files: Mapping[str, bytes | str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.uid, member.uname, member.mode = 8, "mail", 0o4755
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.LNKTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


class TestJoining:
    def joined(self, *paths: Path) -> dict[str, tarfile.TarInfo]:
        data = io.BufferedReader(joining.Joined(paths)).read()
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return {member.name: member for member in archive.getmembers()}

    def test_files_come_where_a_merged_usr_has_them(self, tmp_path: Path) -> None:
        files: dict[str, bytes | str] = {
            "bin/": b"",
            "bin/tool": b"#!",
            "usr/": b"",
            "usr/bin/": b"",
            "usr/bin/other": "./bin/tool",
        }
        found = self.joined(make_deb(tmp_path / "a.deb", files, {}))
        assert found["bin"].issym()
        assert found["bin"].linkname == "usr/bin"
        assert found["usr/bin/tool"].isreg()
        assert found["usr/bin/other"].linkname == "usr/bin/tool"
        assert {member.uid for member in found.values()} == {0}
        assert {member.uname for member in found.values()} == {""}

    def test_licences_stay_and_documentation_goes(self, tmp_path: Path) -> None:
        files: dict[str, bytes | str] = {
            f"usr/share/{name}": b"x"
            for name in (
                "doc/demo/copyright",
                "doc/demo/changelog.gz",
                "man/man1/demo.1.gz",
                "locale/de/LC_MESSAGES/demo.mo",
                "locale/en_GB/LC_MESSAGES/demo.mo",
                "demo/data",
            )
        }
        found = self.joined(make_deb(tmp_path / "a.deb", files, {}))
        kept = {name for name in found if name.startswith("usr/share") and found[name].isreg()}
        assert kept == {
            "usr/share/doc/demo/copyright",
            "usr/share/locale/en_GB/LC_MESSAGES/demo.mo",
            "usr/share/demo/data",
        }

    def test_dpkg_is_told_what_it_would_know(self, tmp_path: Path) -> None:
        control = {
            "conffiles": b"/etc/demo.conf\n",
            "triggers": b"interest-noawait /usr/lib/demo\nactivate-noawait x\ninterest demo\n",
            "preinst": b"#!/bin/sh\n",
        }
        deb = make_deb(tmp_path / "a.deb", {"etc/demo.conf": b"x=1\n"}, control, same=True)
        told = joining.described(deb)
        assert told.name == "demo:amd64"
        assert told.has_preinst
        assert told.triggers == (("/usr/lib/demo", "demo:amd64/noawait"), ("demo", "demo:amd64"))
        assert told.stanza.startswith("Package: demo\nStatus: install ok unpacked\n")
        assert "Description: d\n more\n" in told.stanza
        digest = hashlib.md5(b"x=1\n", usedforsecurity=False).hexdigest()
        assert told.stanza.endswith(f"Conffiles:\n /etc/demo.conf {digest}\n")
        assert told.conffiles == ("/etc/demo.conf",)
        found = self.joined(deb)
        assert found["var/lib/dpkg/info/demo:amd64.preinst"].mode == 0o755
        assert "var/lib/dpkg/info/demo:amd64.list" in found

    def test_dpkg_is_left_to_place_what_is_set_aside(self, tmp_path: Path) -> None:
        control = {"conffiles": f"{tmp_path}/etc/demo.d/hook\n".encode()}
        deb = make_deb(tmp_path / "a.deb", {"etc/demo.d/hook": b"x=1\n"}, control)
        told = joining.described(deb, placed=False)
        assert told.stanza.endswith(f"Conffiles:\n {tmp_path}/etc/demo.d/hook newconffile\n")
        (tmp_path / "etc/demo.d").mkdir(parents=True)
        (tmp_path / "etc/demo.d/hook").write_bytes(b"x=1\n")
        (tmp_path / "conffiles").write_text("".join(f"{name}\n" for name in told.conffiles))
        script = Path(joining.__file__).with_name("set_aside.sh")
        subprocess.run(["bash", "-eu", script, tmp_path], check=True)
        assert [path.name for path in (tmp_path / "etc/demo.d").iterdir()] == ["hook.dpkg-new"]


class TestBuilding:
    """Packages that a lock names and nobody should have put there."""

    def failure(self, folder: Path, *debs: Path) -> Failure:
        listed: list[DebianPackage] = []
        for number, deb in enumerate(debs):
            content = deb.read_bytes()
            wanted = replace(package(f"p{number}", content), path=f"pool/{deb.name}")
            listed.append(wanted)
            fetched = folder / "downloads" / wanted.sha256 / deb.name
            fetched.parent.mkdir(parents=True, exist_ok=True)
            fetched.write_bytes(content)
        codec.write(folder / "plan.json", plan_of(listed, mirrors=(), folder=folder))
        base.run(folder / "plan.json", folder / "record.json", stage.Attempt())
        failure = codec.read(BaseRecord, folder / "record.json").failure
        assert failure is not None
        return failure

    @pytest.mark.parametrize(
        "content", [b"", b"no archive", b"!<arch>\n", b"!<arch>\n" + b"x" * 99]
    )
    def test_what_is_no_package_is_named(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "demo.deb").write_bytes(content)
        failure = self.failure(tmp_path, tmp_path / "demo.deb")
        assert failure.kind == "base"
        assert failure.message.startswith("demo.deb is no package that can be read: ")

    @pytest.mark.parametrize("name", ["../../out", "usr/../../out"])
    def test_a_package_that_leaves_the_base_is_refused(self, tmp_path: Path, name: str) -> None:
        for files, control in (({name: b"x"}, {}), ({}, {f"../../../../../{name}": b"x"})):
            folder = tmp_path / ("control" if control else "data")
            folder.mkdir()
            failure = self.failure(folder, make_deb(folder / "a.deb", files, control))
            assert failure.kind == "base"
            assert "goes up with .." in failure.message

    @pytest.mark.parametrize("name", ["\udcff", "\u00fc", "x" * 200])
    def test_names_are_those_of_a_merged_usr_however_they_are_written(
        self, tmp_path: Path, name: str
    ) -> None:
        found = TestJoining().joined(make_deb(tmp_path / "a.deb", {f"bin/{name}": b"x"}, {}))
        assert f"usr/bin/{name}" in found

    def test_what_a_killed_build_unpacked_is_gone_with_the_next(self, tmp_path: Path) -> None:
        scratch = NodeStore(default_node_root()).scratch
        left, used = scratch / ".base-left", scratch / ".base-used"
        for folder in (left, used):
            (folder / "usr").mkdir(parents=True)
        (tmp_path / "demo.deb").write_bytes(b"")
        with atomic.locked(used.with_suffix(".lock")):
            self.failure(tmp_path, tmp_path / "demo.deb")
            assert not left.exists()
            assert used.exists()
        shutil.rmtree(used)
