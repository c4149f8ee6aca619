"""What attacks are run against: this project's sandbox, and other recipes for the same purpose."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from attacks import harness
from attacks.harness import Host, Outcome
from minisandbox.idmap import IdMap
from minisandbox.sandbox import Sandbox

#: Runs attacks, by name, against a contender.
Run = Callable[[Sequence[str]], Mapping[str, Outcome]]

#: The interpreter inside: the host's, which all contenders have.
PYTHON = "/usr/bin/python3"
_SECONDS = 120


def _forked(box: Sandbox) -> Sandbox:
    return box.fork()


def _reset(box: Sandbox) -> Sandbox:
    box.reset()
    return box


#: What a sandbox can have become when it attacks, besides new.
LIVES: Mapping[str, Callable[[Sandbox], Sandbox]] = {"forked": _forked, "reset": _reset}


@contextmanager
def minisandbox(
    host: Host,
    scratch: Path,
    idmap: IdMap | None = None,
    *,
    life: Callable[[Sandbox], Sandbox] = lambda box: box,
    user: str | None = None,
) -> Generator[Run]:
    """Two sandboxes of this project; one attacks, as ``user`` inside."""
    with ExitStack() as stack:
        start = partial(Sandbox.start, [], scratch=scratch, idmap=idmap)
        first, other = (stack.enter_context(start()) for _ in range(2))
        box = stack.enter_context(life(first))
        for each in (box, other):
            each.write_file(harness.PLACE, harness.packed())
        token, command = harness.actor_argv(PYTHON, harness.PLACE, "/root")
        said = "/tmp/said"
        script = f"{shlex.join(command)} > {said} 2>&1 & until [ -s {said} ]; do sleep 0.02; done"
        other.run(script, timeout=_SECONDS)
        neighbour = harness.actor_of(other.read_file(said), token)
        # A command's parent is its monitor.
        facts = host.facts(neighbour, [1, -1])

        def run(names: list[str], terminal: bool) -> bytes:
            words = harness.argv(PYTHON, harness.PLACE, facts, names)
            if terminal:
                return _from_a_terminal(words, scratch)
            return box.run(words, timeout=_SECONDS, merge_stderr=True, user=user).stdout

        yield partial(harness.run_all, run=run)


_CLIENT = f"""\
import sys
from pathlib import Path
from minisandbox.sandbox import Sandbox
with Sandbox.start([], scratch=Path(sys.argv[1])) as box:
    box.write_file({harness.PLACE!r}, Path(sys.argv[2]).read_bytes())
    done = box.run(sys.argv[3:], timeout={_SECONDS}, merge_stderr=True)
sys.stdout.buffer.write(done.stdout)
"""


def _from_a_terminal(words: Sequence[str], scratch: Path) -> bytes:
    """Run in a sandbox whose client has a controlling terminal."""
    packed = scratch / "attacks.pyz"
    packed.write_bytes(harness.packed())
    client = [sys.executable, "-c", _CLIENT, str(scratch), str(packed), *words]
    return harness.execute(client, terminal=True)


def _programs(
    host: Host,
    stack: ExitStack,
    wrap: Callable[[str, Sequence[str]], list[str]],
    guardians: Sequence[int],
) -> Run:
    """A contender that starts anew for each command; ``wrap`` gets the sandbox's name."""
    token, command = harness.actor_argv(PYTHON, harness.PLACE, "/root")
    neighbour = stack.enter_context(harness.talking(wrap("other", command), token))
    facts = host.facts(neighbour, guardians)

    def run(names: list[str], terminal: bool) -> bytes:
        words = wrap("box", harness.argv(PYTHON, harness.PLACE, facts, names))
        return harness.execute(words, terminal, host.leaked)

    return partial(harness.run_all, run=run)


_PUBLISHED = """\
set -e
root=$1; shift
for name in usr dev proc sys tmp; do mount --rbind /$name $root/$name; done
exec chroot $root "$@"
"""


@contextmanager
def published_recipe(host: Host, folder: Path) -> Generator[Run]:
    """The published system's recipe as its paper describes it: as root, a mount namespace, the
    host's directories bound, chroot.
    """
    with ExitStack() as stack:
        for name in ("box", "other"):
            root = folder / name
            for part in (
                "usr",
                "dev",
                "proc",
                "sys",
                "tmp",
                "etc",
                "root",
                "opt",
                "run",
                "var/tmp",
            ):
                (root / part).mkdir(parents=True)
            for link in ("bin", "sbin", "lib", "lib64"):
                if os.path.islink(f"/{link}"):
                    (root / link).symlink_to(os.readlink(f"/{link}"))
            for file in ("passwd", "group", "hosts", "ld.so.cache"):
                shutil.copy(f"/etc/{file}", root / "etc")
            (root / harness.PLACE.lstrip("/")).write_bytes(harness.packed())

        def wrap(name: str, words: Sequence[str]) -> list[str]:
            enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _PUBLISHED, "sh"]
            return [*enter, str(folder / name), *words]

        # PID 1 and the parent are the host's, which no test may touch; the actor stands for them.
        yield _programs(host, stack, wrap, [host.actor.pid])


_BUBBLEWRAP = (
    *("--unshare-all", "--die-with-parent", "--new-session", "--uid", "0", "--gid", "0"),
    *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
    *("--ro-bind", "/etc/passwd", "/etc/passwd", "--dir", "/root"),
)


@contextmanager
def bubblewrap(host: Host, folder: Path) -> Generator[Run]:
    """bubblewrap as its manual shows it, everything unshared."""
    with ExitStack() as stack:
        packed = folder / "attacks.pyz"
        packed.write_bytes(harness.packed())

        def wrap(name: str, words: Sequence[str]) -> list[str]:
            return ["bwrap", *_BUBBLEWRAP, "--ro-bind", str(packed), harness.PLACE, *words]

        yield _programs(host, stack, wrap, [1])


class _Podman:
    """An engine with a storage of its own."""

    def __init__(self, folder: Path) -> None:
        places = ["--root", str(folder / "storage"), "--runroot", str(folder / "run")]
        self.command = ["podman", *places, "--cgroup-manager=cgroupfs"]

    def call(self, *words: str) -> None:
        """Run podman; raises ``CalledProcessError``."""
        subprocess.run(
            [*self.command, *words], stdin=subprocess.DEVNULL, capture_output=True, check=True
        )


@contextmanager
def podman(host: Host, folder: Path) -> Generator[Run]:
    """podman as root with its defaults, but without a network."""
    engine = _Podman(folder)
    image = folder / "image"
    _python_tree(image)
    tar = folder / "image.tar"
    subprocess.run(["tar", "-cf", tar, "-C", image, "."], check=True)
    with ExitStack() as stack:
        engine.call("import", str(tar), "attacks")
        stack.callback(engine.call, "rmi", "--force", "attacks")
        limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
        for name in ("box", "other"):
            options = ("--name", name, "--network", "none", *limits)
            engine.call("run", "-d", *options, "attacks", "/usr/bin/sleep", "99999")
            stack.callback(engine.call, "rm", "--force", "--time", "0", name)

        def wrap(name: str, words: Sequence[str]) -> list[str]:
            return [*engine.command, "exec", name, *words]

        # PID 1 is the container's own program, and nothing of the engine is inside.
        yield _programs(host, stack, wrap, [])


def _python_tree(root: Path) -> None:
    """What of the host's /usr the attacks need: Python, a few programs, and their libraries."""
    programs = ["cat", "env", "sleep", "su", "sh", Path(PYTHON).resolve().name]
    for name in programs:
        found = str(shutil.which(name, path="/usr/bin:/usr/sbin:/bin"))
        _copy_with_libraries(found, root)
    version = f"python3.{_minor()}"
    shutil.copytree(
        f"/usr/lib/{version}",
        root / "usr/lib" / version,
        ignore=shutil.ignore_patterns("__pycache__", "test", "dist-packages", "config-*"),
    )
    for module in (root / "usr/lib" / version / "lib-dynload").glob("*.so"):
        _copy_libraries(str(module), root)
    (root / "usr/bin/python3").symlink_to(Path(PYTHON).resolve().name)
    for link in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / link).mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(f"usr/{link}")
    for part in ("dev", "proc", "sys", "tmp", "etc", "root", "opt", "run", "var/tmp"):
        (root / part).mkdir(parents=True)
    shutil.copy("/usr/lib/os-release", root / "usr/lib")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / harness.PLACE.lstrip("/")).write_bytes(harness.packed())


def _minor() -> str:
    done = subprocess.run([PYTHON, "-V"], capture_output=True, text=True, check=True)
    return done.stdout.split(".")[1]


def _copy_with_libraries(program: str, root: Path) -> None:
    real = Path(program).resolve()
    target = root / "usr/bin" / Path(program).name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(real, target)
    _copy_libraries(str(real), root)


def _copy_libraries(program: str, root: Path) -> None:
    listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    for word in listing.stdout.split():
        if word.startswith("/") and Path(word).is_file():
            # The host's /lib is a link into /usr, as that of the image is.
            target = root / ("usr" + word if not word.startswith("/usr") else word[1:])
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy(word, target)
