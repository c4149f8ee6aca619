"""Images of others run in our sandboxes as they would elsewhere; instances become images and come
back as what they were.
"""

from __future__ import annotations

import datetime
import gzip
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from images import PLATFORM, Layout, archive_of, digest, docker_archive
from minisandbox.cli.main import main
from minisandbox.errors import ImageRefused, InvalidInput, LayerDamaged, SandboxFileError
from minisandbox.idmap import IdMap, current, remove_tree, single
from minisandbox.oci import export_instances, import_image, media
from minisandbox.oci.exporting import tag_of
from minisandbox.records.image import ImageRecord
from minisandbox.runtime import Image, open_image
from minisandbox.sandbox import Sandbox
from minisandbox.store import NodeStore, Store
from packed_project import COMMITTED, PackedProject
from small_projects import DATE
from tars import directory, entry, file, hard_link, symlink, tar

IDMAPS = [current()] if current().kind == "single" else [current(), single()]
BOTTOM = tar(
    directory("bin"), directory("d"), file("d/below", b"below"), file("f", b"1"), file("g", b"1")
)
TOP = tar(file("d/.wh.below"), file("d/above", b"above"), file("f", b"2"))


@pytest.fixture(params=IDMAPS, ids=lambda idmap: idmap.kind)
def idmap(request: pytest.FixtureRequest) -> IdMap:
    return request.param


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for idmap in (current(), single()):
        remove_tree(tmp_path / "node", idmap)


def take(place: Path, path: Path, **options: Any) -> ImageRecord:
    return import_image(path, place / "results", Store(place / "results/store"), **options)


def start(place: Path, image: ImageRecord, idmap: IdMap | None = None, **options: Any) -> Sandbox:
    node = NodeStore(place / "node", idmap or current())
    return Image(image, Store(place / "results/store"), node).start(**options)


def read(box: Sandbox, *names: str) -> list[bytes | None]:
    found: list[bytes | None] = []
    for name in names:
        try:
            found.append(box.read_file(name))
        except SandboxFileError:
            found.append(None)
    return found


WAYS: dict[str, Callable[[Path], Path]] = {
    "folder": lambda place: Layout([BOTTOM, TOP]).write(place / "image"),
    "tar": lambda place: Layout([BOTTOM, TOP]).write_tar(place / "image.tar"),
    "plain": lambda place: Layout([BOTTOM, TOP], pack=bytes, kind=media.LAYER).write(
        place / "image"
    ),
    "zstd": lambda place: Layout(
        [BOTTOM, TOP], pack=zstandard.compress, kind=f"{media.LAYER}+zstd"
    ).write(place / "image"),
    # Engines tell by the first bytes, and layers that say another thing exist.
    "zstd-that-says-gzip": lambda place: Layout([BOTTOM, TOP], pack=zstandard.compress).write(
        place / "image"
    ),
    # As lazily pulled ones are: a member of gzip for each file, or frames and a table of them.
    "gzip-members": lambda place: Layout(
        [BOTTOM, TOP], pack=lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:])
    ).write(place / "image"),
    "zstd-frames": lambda place: Layout(
        [BOTTOM, TOP],
        pack=lambda data: (
            zstandard.compress(data[:700])
            + zstandard.compress(data[700:])
            + bytes.fromhex("502a4d18 04000000 01020304")
        ),
    ).write(place / "image"),
    "docker-types": lambda place: Layout(
        [BOTTOM, TOP], kind="application/vnd.docker.image.rootfs.diff.tar.gzip"
    ).write(place / "image"),
    "docker-archive": lambda place: _write(place, archive_of(docker_archive([BOTTOM, TOP]))),
    "docker-archive-gz": lambda place: _write(
        place, gzip.compress(archive_of(docker_archive([BOTTOM, TOP])))
    ),
    "oci-archive-zst": lambda place: _write(
        place, zstandard.compress(archive_of(Layout([BOTTOM, TOP]).members()))
    ),
    "index-in-index": lambda place: _several(place),
    "platforms-of-one-name": lambda place: _several(place, outer=True),
    # What may be fetched from elsewhere is here all the same.
    "foreign": lambda place: Layout(
        [BOTTOM, TOP], kind="application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
    ).write(place / "image"),
    "urls": lambda place: _with_urls(Layout([BOTTOM, TOP])).write(place / "image"),
    # As `docker save` writes an image that has several tags.
    "tagged-twice": lambda place: _tagged(place, "made:1", "again:2"),
    "with-its-signature": lambda place: _signed(place),
}


def _write(place: Path, data: bytes) -> Path:
    (place / "image.tar").write_bytes(data)
    return place / "image.tar"


def _with_urls(image: Layout) -> Layout:
    for layer in image.manifest["layers"]:
        layer["urls"] = ["https://example.com/layer"]
    return image


def _tagged(place: Path, *names: str) -> Path:
    image = Layout([BOTTOM, TOP])
    image.finish()
    entries = [{**image.entry, "annotations": {media.REF_NAME: name}} for name in names]
    image.files["index.json"] = json.dumps({"manifests": entries}).encode()
    return image.write(place / "image")


def _signed(place: Path) -> Path:
    image = Layout([BOTTOM, TOP])
    image.finish()
    other = image.add_json(media.MANIFEST, {"config": image.add_json("text/x", {}), "layers": []})
    account = {**other, "artifactType": "application/vnd.example.signature"}
    about = image.add("application/xml", b"<about/>")
    image.files["index.json"] = json.dumps({"manifests": [account, about, image.entry]}).encode()
    return image.write(place / "image")


def _several(place: Path, *, outer: bool = False) -> Path:
    """For several platforms, and what builders say of how they built it; in an index of their own,
    or each by the same name in the ``outer`` one.
    """
    image = Layout([BOTTOM, TOP])
    image.finish()
    other = Layout([tar(file("other"))])
    other.config["architecture"] = "s390x"
    other.finish()
    image.blobs |= other.blobs
    unknown = {"os": "unknown", "architecture": "unknown"}
    entries = [
        {**other.entry, "platform": {"os": "linux", "architecture": "s390x"}},
        {**other.entry, "platform": unknown},
        {**image.entry, "platform": {**PLATFORM, "variant": "v8"}},
    ]
    if outer:
        named = [{**entry, "annotations": {media.REF_NAME: "made:1"}} for entry in entries]
        image.files["index.json"] = json.dumps({"manifests": named}).encode()
        return image.write(place / "image")
    inner = image.add_json(media.INDEX, {"manifests": entries})
    named = {**inner, "annotations": {media.REF_NAME: "made:1"}}
    image.files["index.json"] = json.dumps({"manifests": [named]}).encode()
    return image.write(place / "image")


@pytest.mark.parametrize("way", WAYS)
def test_every_form_of_an_image_is_the_same_sandbox(place: Path, way: str) -> None:
    image = take(place, WAYS[way](place))
    assert (image.name, image.reference) == ("made-1", "made:1")
    assert [layer.diff_id for layer in image.layers] == [digest(BOTTOM), digest(TOP)]
    with start(place, image) as box:
        assert read(box, "/d/below", "/d/above", "/f", "/g") == [None, b"above", b"2", b"1"]
        # What engines bring to every image.
        hosts, name = read(box, "/etc/hosts", "/etc/hostname")
        assert b"127.0.0.1\tlocalhost testbed" in (hosts or b"")
        assert name == b"testbed\n"


def test_many_layers_stack_in_their_order(place: Path) -> None:
    layers = [
        tar(
            file("last", b"%d" % number),
            file(f"only/{number}", b"x"),
            *([file(f"only/.wh.{number - 1}")] if number % 2 else []),
        )
        for number in range(100)
    ]
    with start(place, take(place, Layout(layers).write(place / "image"))) as box:
        assert box.read_file("/last") == b"99"
        assert read(box, "/only/0", "/only/1", "/only/98", "/only/99") == [None, b"x", None, b"x"]


def test_a_layer_that_occurs_twice_says_what_it_says_where_it_is_last(place: Path) -> None:
    again = tar(file("f", b"again"), file("d/.wh.below"), file("e/x", b"x"), file("e/.wh..wh..opq"))
    between = tar(file("f", b"between"), file("d/below", b"new"), file("e/y", b"y"))
    path = Layout([BOTTOM, again, between, again]).write(place / "image")
    image = take(place, path)
    assert len(image.layers) == 4
    with start(place, image) as box:
        assert read(box, "/f", "/d/below", "/e/x", "/e/y", "/g") == [
            b"again",
            None,
            b"x",
            None,
            b"1",
        ]


def test_docker_has_links_in_the_place_of_layers_that_it_wrote(place: Path) -> None:
    names = [f"{number:064x}/layer.tar" for number in range(3)]
    members = docker_archive([BOTTOM, TOP, BOTTOM], paths=names)
    del members[names[2]]
    data = tar(
        *(file(name, content) for name, content in members.items()),
        symlink(names[2], f"../{0:064x}/layer.tar"),
    )
    with start(place, take(place, _write(place, data))) as box:
        assert read(box, "/d/below", "/f") == [b"below", b"1"]


def test_one_of_several_images_is_taken_by_name(place: Path) -> None:
    first, second = Layout([BOTTOM]), Layout([TOP], reference="registry.example/other:2")
    for image in (first, second):
        image.finish()
    first.blobs |= second.blobs
    index = {"manifests": [first.entry, second.entry]}
    first.files["index.json"] = json.dumps(index).encode()
    path = first.write(place / "image")
    assert take(place, path, reference="registry.example/other:2").name == "other-2"
    assert take(place, path, reference="1").name == "made-1"
    assert take(place, path, reference="2", name="mine").name == "mine"
    assert take(place, path, reference="other:2").name == "other-2"
    assert take(place, path, reference=second.entry["digest"]).name == "other-2"
    with pytest.raises(ImageRefused, match="no image 'third', but made:1, registry"):
        take(place, path, reference="third")


def test_an_image_is_called_by_the_name_it_was_asked_for(place: Path) -> None:
    path = _tagged(place, "made:1", "again:2")
    assert take(place, path, reference="again:2").name == "again-2"
    data = archive_of(docker_archive([BOTTOM], tags=["made:1", "again:2"]))
    assert take(place, _write(place, data), reference="again:2").reference == "again:2"


@pytest.mark.parametrize(
    ("reference", "file", "name"),
    [
        ("registry.example:5000/team/made", "x.tar", "made"),
        ("registry.example/made:latest", "x.tar", "made"),
        ("latest", "made.tar", "made"),
        ("", "made.oci.tar.gz", "made"),
        ("", "made-1.2.tar.zst", "made-1.2"),
    ],
)
def test_a_name_says_which_image_it_is(
    place: Path, reference: str, file: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout([BOTTOM], reference=reference)
    assert take(place, layout.write_tar(place / file)).name == name
    folder = layout.write(place / "made" / "made")
    monkeypatch.chdir(folder)
    if reference in ("", "latest"):
        assert take(place, Path()).name == "made"


def test_an_image_that_makes_room_for_another_is_told(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["oci", "import", "--cache", str(place / "results"), "--name", "mine"]
    for layer, told in ((BOTTOM, False), (BOTTOM, False), (TOP, True)):
        before = next((place / "results/images").glob("*"), None)
        old = json.loads(before.read_text())["digest"] if before else ""
        path = Layout([layer]).write(place / digest(layer)[-8:])
        assert main([*words, str(path)]) == 0
        assert (f"  in the place of {old}, which" in capsys.readouterr().out) == told


def test_what_runs_on_every_processor_is_taken_first(place: Path) -> None:
    images = [Layout([layer]) for layer in (TOP, BOTTOM)]
    for image in images:
        image.finish()
    special, usual = images
    usual.blobs |= special.blobs
    entries = [
        {**special.entry, "platform": {**PLATFORM, "variant": "v9"}},
        {**usual.entry, "platform": PLATFORM},
    ]
    outer = usual.add_json(media.INDEX, {"manifests": entries})
    usual.files["index.json"] = json.dumps({"manifests": [outer]}).encode()
    image = take(place, usual.write(place / "image"))
    assert [layer.diff_id for layer in image.layers] == [digest(BOTTOM)]


def test_layers_that_are_there_are_not_read_again(place: Path) -> None:
    take(place, Layout([BOTTOM]).write(place / "first"))
    second = Layout([BOTTOM, TOP], reference="made:2").write(place / "second")
    packed = gzip.compress(BOTTOM, mtime=0)
    (second / "blobs/sha256" / digest(packed).partition(":")[2]).unlink()
    assert take(place, second).layers[0].diff_id == digest(BOTTOM)


def test_files_keep_what_they_are(place: Path, idmap: IdMap) -> None:
    layer = tar(
        entry("own", tarfile.DIRTYPE, mode=0o750, uid=1000, gid=2000),
        file("own/file", b"x", mode=0o640, uid=1000, gid=65534, mtime=1_500_000_000),
        hard_link("own/second", "own/file"),
        symlink("own/link", "file"),
        file("x" * 90 + "/" + "y" * 90 + "/" + "z" * 90, b"long"),
    )
    image = take(place, Layout([layer]).write(place / "image"))
    assert image.layers[0].owned == 2
    node = NodeStore(place / "node", idmap)
    said: list[str] = []
    with start(place, image, idmap, report=said.append) as box:
        assert box.read_file("/own/link") == b"x"
        assert box.read_file("/" + "x" * 90 + "/" + "y" * 90 + "/" + "z" * 90) == b"long"
        folder = node.path(image.layers[0].layer.digest)
        status = os.stat(folder / "own" / "file") if os.getuid() == 0 else None
    if status is not None:
        assert (status.st_nlink, status.st_mtime, status.st_mode & 0o777) == (
            2,
            1_500_000_000,
            0o640,
        )
        if idmap.count > 1:
            assert (status.st_uid, status.st_gid) == (idmap.host_uid(1000), idmap.host_gid(65534))
    told = [line for line in said if "single id" in line]
    assert told == (
        ["2 files of other users are root's: this user has a single id"] if idmap.count == 1 else []
    )


_PROGRAMS = ("sh", "id", "pwd", "env", "cat", "ls", "stat", "sort", "tr")


def with_shell(folder: Path) -> bytes:
    """A layer with programs, and users to run them."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("needs busybox (package busybox-static)")
    links = [symlink(f"bin/{name}", "busybox") for name in _PROGRAMS]
    return tar(
        file("bin/busybox", Path(busybox).read_bytes(), mode=0o755),
        *links,
        file("etc/passwd", b"root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"),
        file("etc/group", b"root:x:0:\napp:x:1000:\nwww:x:33:\nmore:x:44:app\n"),
        entry("home/app", tarfile.DIRTYPE, mode=0o700, uid=1000, gid=1000),
    )


CONFIG = {
    "Env": ["PATH=/bin", "GREETING=hello world"],
    "WorkingDir": "/home/app",
    "User": "app:app",
    "Entrypoint": ["sh", "-c"],
    "Cmd": ["exit 5"],
}


def test_commands_find_what_the_image_says(place: Path, idmap: IdMap) -> None:
    image = take(place, Layout([with_shell(place)], config=CONFIG).write(place / "image"))
    assert (image.entrypoint, image.cmd) == (("sh", "-c"), ("exit 5",))
    if idmap.count == 1:
        with pytest.raises(InvalidInput, match="runs as 'app:app', and the sandboxes of this user"):
            start(place, image, idmap)
        with start(place, image, idmap, user=0) as box:
            assert box.run("id -u; pwd; echo $GREETING").text == "0\n/home/app\nhello world\n"
        return
    with start(place, image, idmap) as box:
        wanted = "1000\n/home/app\nhello world\n/home/app\n"
        assert box.run("id -u; pwd; echo $GREETING; echo $HOME").text == wanted
        assert box.run(["id", "-u"], user="root").text == "0\n"
        with box.fork() as other:
            assert other.run(["id", "-u"]).text == "1000\n"
        box.reset()
        assert box.run(["id", "-u"]).text == "1000\n"
    with start(place, image, idmap, user="root", cwd="/", env={"GREETING": "bye"}) as box:
        assert box.run("id -u; pwd; echo $GREETING").text == "0\n/\nbye\n"


@pytest.mark.parametrize(
    ("user", "ids"),
    [
        ("app", "1000 1000 1000 44"),
        ("1000", "1000 1000 1000 44"),
        ("app:www", "1000 33 33"),
        ("1000:50", "1000 50 50"),
        # An account that the image does not list is in the group of root, as in any engine: what is
        # made for arbitrary numbers gives its files to that group.
        ("1001", "1001 0 0"),
        ("1001:", "1001 0 0"),
        ("1001:33", "1001 33 33"),
        ("0:www", "0 33 33"),
        (":www", "0 33 33"),
    ],
)
def test_a_user_is_understood_as_engines_do(place: Path, user: str, ids: str) -> None:
    if current().count == 1:
        pytest.skip("needs a range of ids")
    image = take(place, Layout([with_shell(place)], config={"User": user}).write(place / "image"))
    with start(place, image) as box:
        assert box.run("echo $(id -u; id -g; id -G | tr ' ' '\\n' | sort -u)").text == f"{ids}\n"


@pytest.mark.parametrize("user", ["ghost", "app:ghost"])
def test_who_is_not_in_the_image_is_named(place: Path, user: str) -> None:
    if current().count == 1:
        pytest.skip("needs a range of ids")
    image = take(place, Layout([with_shell(place)], config={"User": user}).write(place / "image"))
    with start(place, image) as box:
        with pytest.raises(SandboxFileError, match="cannot find the user or group ghost"):
            box.run("true")
        assert box.run("id -u", user=0).text == "0\n"


def test_a_home_that_the_image_names_is_that_of_all_users(place: Path, idmap: IdMap) -> None:
    config = {"Env": ["PATH=/bin", "HOME=/opt/app"], "User": "app"}
    image = take(place, Layout([with_shell(place)], config=config).write(place / "image"))
    users = ["root"] if idmap.count == 1 else ["root", "app"]
    with start(place, image, idmap, user=users[-1]) as box:
        assert [box.run("echo $HOME", user=name).text for name in users] == ["/opt/app\n"] * len(
            users
        )


def test_a_working_directory_is_made_where_there_is_none(place: Path, idmap: IdMap) -> None:
    for workdir, mode in (("/not/there/yet", "755"), ("/home/app", "700")):
        config = {"WorkingDir": workdir, "Env": ["PATH=/bin"]}
        path = Layout([with_shell(place)], config=config).write(place / workdir.replace("/", "-"))
        with start(place, take(place, path), idmap) as box:
            for _ in range(2):
                assert box.run("pwd; stat -c %a .").text == f"{workdir}\n{mode}\n"
                box.reset()


def test_the_command_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(place / "node"))
    config = {**CONFIG, "User": ""}
    layers = [with_shell(place), tar(entry("null", b"3"))]
    path = Layout(layers, config=config).write(place / "image")
    results = str(place / "results")
    assert main(["oci", "import", str(path), "--cache", results, "--name", "small"]) == 0
    said = capfdbinary.readouterr().out.decode()
    assert "small  2 layers" in said
    assert "  layer 2: 1 devices left out, first 'null'" in said
    assert main(["oci", "ls", "--cache", results]) == 0
    assert b"made:1" in capfdbinary.readouterr().out
    assert main(["run", "--cache", results, "--image", "small", "--", "pwd; exit 3"]) == 3
    assert capfdbinary.readouterr().out == b"/home/app\n"
    assert main(["run", "--cache", results, "--image", "smaller", "--", "pwd"]) == 125
    assert b"did you mean small?" in capfdbinary.readouterr().err
    assert main(["run", "--cache", results, "--image", "--gold", "small", "--", "pwd"]) == 125
    assert b"--gold: is for an instance" in capfdbinary.readouterr().err
    assert main(["run", "--cache", results, "--image", "../x", "--", "pwd"]) == 125
    assert b"cannot be the name" in capfdbinary.readouterr().err
    with open_image("small", results).start(user=0) as box:
        assert box.run("id -u").text == "0\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackedProject]:
    made = PackedProject(tmp_path_factory.mktemp("project"))
    yield made
    made.close()


def test_an_export_is_the_same_whoever_makes_it(project: PackedProject, tmp_path: Path) -> None:
    cache = project.cache()
    names = project.names
    first, *_ = (export_instances(cache, names, tmp_path / name) for name in ("one", "two"))
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}
        for name in ("one", "two")
    )
    assert one == two
    assert [image.tag for image in first] == [tag_of(name) for name in names]
    index = json.loads(one["index.json"])
    assert [item["annotations"][media.REF_NAME] for item in index["manifests"]] == [
        "made_1776_small-1",
        "made_1776_small-2",
    ]
    # What both instances stand on is there once: their own layers, four below, and four documents.
    assert len(one) - 2 == 2 + project.shared + 1 + 4
    assert not list(tmp_path.glob(".*"))


def test_an_image_is_as_old_as_the_commit_in_it(project: PackedProject, tmp_path: Path) -> None:
    shutil.copytree(project.store.root, tmp_path / "packed")
    assert main(["store", "pack", "--store", str(tmp_path / "packed")]) == 0
    for number, (head, store) in enumerate(
        [({}, project.store), ({}, Store(tmp_path / "packed")), ({"head_commit": "f" * 40}, None)]
    ):
        cache = project.cache(**head)
        cache.store = store or project.store
        export_instances(cache, project.names, tmp_path / str(number))
        created = [
            datetime.datetime.fromisoformat(config["created"]).timestamp()
            for config in _configurations(tmp_path / str(number))
        ]
        # Where no layer holds the commit it is the date of the files.
        assert created == ([DATE, DATE] if head else [COMMITTED + 1, COMMITTED + 2])


def _configurations(layout: Path) -> list[dict[str, Any]]:
    def read(descriptor: dict[str, Any]) -> dict[str, Any]:
        blob = layout / "blobs/sha256" / descriptor["digest"].partition(":")[2]
        return json.loads(blob.read_bytes())

    manifests = json.loads((layout / "index.json").read_bytes())["manifests"]
    return [read(read(manifest)["config"]) for manifest in manifests]


def test_an_exported_instance_comes_back_as_what_it_was(
    project: PackedProject, place: Path
) -> None:
    cache = project.cache()
    row = cache.row(project.names[0])
    export_instances(cache, [row.instance_id], place / "layout")
    image = take(place, place / "layout")
    # Nothing had to be changed: its layers are those of the cache, by digest.
    assert [layer.digest for layer in row.layers] == [
        part.layer.digest for number, part in enumerate(image.layers) if number != project.height
    ]
    assert not [note for part in image.layers for note in part.notes]
    with start(place, image) as box, project.start(row.instance_id) as instance:
        command = "sh tests.sh; pwd; env | grep -v TESTBED_PID | sort"
        there, here = box.run(command), instance.run(command)
        assert there.text == here.text
        assert "ok 1 - greets" in there.text
    with pytest.raises(InvalidInput, match="is there already"):
        export_instances(cache, [row.instance_id], place / "layout")


def test_what_no_image_can_say_is_said(
    project: PackedProject, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project.cache(blackhole=True)
    target = str(place / "layout")
    words = ["oci", "export", "--cache", str(project.folder), "-o", target, "*-1"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{target}:made_1776_small-1  ")
    assert lines[1:] == ["  its tests were validated with 'blackhole', which no image can say"]
    for pattern, said in {"no-*": "covers no instance", "made__small-9": "did you mean"}.items():
        assert main([*words[:-2], str(place / "other"), pattern]) != 0
        assert said in capsys.readouterr().err


def test_a_relative_folder_is_one_of_here(
    project: PackedProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (image,) = export_instances(project.cache(), [project.serving], Path("layout"))
    imported = import_image(Path("layout"), Path("results"), Store(Path("results/store")))
    assert imported.digest == image.digest
    assert imported.entrypoint == ("/opt/services/start-all",)


def test_layers_in_packs_are_the_same_content(project: PackedProject, place: Path) -> None:
    cache, (name, other) = project.cache(), project.names
    export_instances(cache, [name, other], place / "loose")
    shutil.copytree(project.store.root, place / "packed")
    cache.store = Store(place / "packed")
    assert main(["store", "pack", "--store", str(place / "packed")]) == 0
    # Some layers of a pack lie no longer beside it.
    assert not all(cache.store.path(layer.digest).exists() for layer in cache.row(name).layers)
    for target in ("first", "second"):
        export_instances(cache, [name, other], place / target)
    assert (place / "first/index.json").read_bytes() == (place / "second/index.json").read_bytes()
    reference = tag_of(name)
    loose, packed = (take(place, place / way, reference=reference) for way in ("loose", "first"))
    assert loose.layers == packed.layers


def test_gzip_is_the_same_content(project: PackedProject, place: Path) -> None:
    cache, name = project.cache(), project.names[0]
    for compression in ("zstd", "gzip"):
        export_instances(cache, [name], place / compression, compression=compression)
    first, second = (
        take(place, place / compression, name=compression) for compression in ("zstd", "gzip")
    )
    assert first.layers == second.layers
    assert first.digest != second.digest


def test_a_damaged_layer_leaves_no_layout(project: PackedProject, place: Path) -> None:
    store = Store(place / "store")
    shutil.copytree(project.store.root, store.root)
    cache = project.cache()
    cache.store = store
    damaged = store.path(cache.row(project.names[0]).layers[-1].digest)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged.chmod(0o644)
    damaged.write_bytes(data)
    with pytest.raises(LayerDamaged):
        export_instances(cache, [project.names[0]], place / "layout")
    assert sorted(path.name for path in place.iterdir()) == ["store"]


def test_what_stands_on_the_host_is_no_image(project: PackedProject, tmp_path: Path) -> None:
    cache = project.cache(without_base=True)
    with pytest.raises(InvalidInput, match="which no image can bring; build it on a packed base"):
        export_instances(cache, [project.names[0]], tmp_path / "layout")


@pytest.mark.parametrize(
    ("instance_id", "tag"),
    [
        ("django__django-11099", "django_1776_django-11099"),
        ("sqlparse-0.4.4", "sqlparse-0.4.4"),
        ("a_1776_b", r"a-1776-b-[0-9a-f]{12}"),
        ("conan-io__conan.86f29e13.lm__x", r"conan-io_1776_conan\.86f29e13\.lm_1776_x"),
        ("a/b:c", r"a-b-c-[0-9a-f]{12}"),
        ("../x", r"x-[0-9a-f]{12}"),
        ("..", r"instance-[0-9a-f]{12}"),
        ("x" * 500, r"x{100}-[0-9a-f]{12}"),
        ("é\n", r"instance-[0-9a-f]{12}"),
    ],
)
def test_an_id_is_a_name_that_tools_take(instance_id: str, tag: str) -> None:
    assert re.fullmatch(tag, tag_of(instance_id))
    assert media.REF.fullmatch(tag_of(instance_id))
    assert tag_of(instance_id) != tag_of(instance_id + "x")
