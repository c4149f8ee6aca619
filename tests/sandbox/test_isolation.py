"""What a sandbox shows of the host, as tables of commands and what they must say."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from pathlib import Path

import pytest

from minisandbox.errors import InvalidInput
from minisandbox.sandbox import Bind, Profile, Sandbox

#: (what is claimed, script): the script must end with 0.
CLAIMS = [
    ("root inside", '[ "$(id -u):$(id -g):$(whoami)" = 0:0:root ]'),
    ("home", '[ "$HOME" = /root ] && cd && touch x && rm x'),
    ("locale", "python3 -c \"import sys; assert sys.getfilesystemencoding() == 'utf-8'\""),
    (
        "no terminal is promised",
        '[ "$TERM" = dumb ] && [ "$PAGER" = cat ] && [ "$GIT_PAGER" = cat ]',
    ),
    ("LC_ALL is unset", '[ -z "${LC_ALL+set}" ]'),
    ("/home is empty", '[ -z "$(ls -A /home)" ]'),
    ("/root is empty", '[ -z "$(ls -A /root)" ]'),
    ("/tmp is empty", '[ -z "$(ls -A /tmp)" ]'),
    ("/usr is read-only", "! touch /usr/x 2>/dev/null"),
    ("/usr cannot be remounted", "! mount -o remount,rw /usr 2>/dev/null"),
    ("masks cannot be lifted", "! umount /proc/keys 2>/dev/null"),
    ("nor from a nested namespace", "! unshare -rm umount /proc/keys 2>/dev/null"),
    ("nor uncovered by a new /proc", "! unshare -rmpf mount -t proc none /mnt 2>/dev/null"),
    ("no file system can be mounted", "! mount -t tmpfs none /mnt 2>/dev/null"),
    ("PID 1 leads nowhere", "! ls /proc/1/root 2>/dev/null"),
    ("modes of temporary directories", '[ "$(stat -c %a /tmp /dev/shm /var/tmp | uniq)" = 1777 ]'),
    ("/etc can be changed", "echo 127.0.0.1 here >> /etc/hosts && getent hosts here"),
    ("only own processes", '[ "$(ls /proc | grep -c "^[0-9]*$")" -lt 20 ] && [ -d /proc/1 ]'),
    ("no path of the host in PID 1", "! tr '\\0' '\\n' < /proc/1/cmdline | grep -q /"),
    (
        "PID 1 is closed to us",
        "! (cat /proc/1/environ || cat /proc/1/maps || readlink /proc/1/fd/0)",
    ),
    ("no descriptor but the three", '[ "$(ls /proc/self/fd | tr "\\n" " ")" = "0 1 2 3 " ]'),
    ("/proc/sys is read-only", "! echo 1 2>/dev/null > /proc/sys/kernel/panic"),
    ("/proc/sysrq-trigger is", "! echo h 2>/dev/null > /proc/sysrq-trigger"),
    ("kernel memory is masked", "[ ! -s /proc/kcore ] && [ ! -s /proc/keys ]"),
    ("no new privileges", "grep -q 'NoNewPrivs:.1' /proc/self/status"),
    ("no CAP_SYS_ADMIN", "! grep -Eq 'CapEff:.*[2367abef].....$' /proc/self/status"),
    ("host name", '[ "$(hostname)" = testbed ] && [ "$(cat /etc/hostname)" = testbed ]'),
    (
        "devices",
        "for d in null zero full random urandom tty ptmx; do test -c /dev/$d || exit 1; done",
    ),
    ("no other devices", "[ ! -e /dev/kmsg ] && [ ! -e /dev/mem ]"),
    ("device nodes cannot be made", "! mknod /root/null c 1 3 2>/dev/null"),
    ("streams by name", "echo x > /dev/stdout && echo y > /dev/stderr && cat < /dev/stdin"),
    ("umask", '[ "$(umask)" = 0022 ]'),
    ("cgroup namespace", "! grep -vq ':/$' /proc/self/cgroup"),
    ("signals have their defaults", "yes | head -1 >/dev/null; [ ${PIPESTATUS[0]} = 141 ]"),
    ("mount table names no host path", "! grep -E 'overlay.*lowerdir=/' /proc/self/mountinfo"),
]


@pytest.mark.parametrize(
    "script", [script for _, script in CLAIMS], ids=[name for name, _ in CLAIMS]
)
def test_claim(box: Sandbox, script: str) -> None:
    result = box.run(script)
    assert result.exit_code == 0, result.text


def test_capabilities_are_few(box: Sandbox) -> None:
    status = box.read_file("/proc/self/status")  # a monitor's: it holds what its commands do not
    assert b"NoNewPrivs:\t1" in status
    line = box.run("grep CapEff /proc/self/status").stdout_text
    held = int(line.split()[1], 16)
    assert not held & (1 << 21 | 1 << 19 | 1 << 12), "SYS_ADMIN, SYS_PTRACE or NET_ADMIN"


def test_files_of_the_host_are_invisible(box: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host")
    for path in (secret, Path(__file__), Path("/boot"), Path("/var/lib/dpkg")):
        assert box.run(["test", "-e", str(path)]).exit_code == 1


def test_no_process_of_the_host_is_visible(box: Sandbox) -> None:
    listing = box.run(["cat", "/proc/1/cmdline"]).stdout
    assert listing.startswith(b"minisandbox-init\0")
    assert box.run(f"kill -0 {box.pid}").exit_code != 0 or box.pid < 100


def test_descriptors_of_the_host_stay_outside(start, tmp_path: Path) -> None:
    with open(tmp_path / "open", "w+") as held:
        os.set_inheritable(held.fileno(), True)
        box = start()
        listing = box.run("ls -l /proc/self/fd").stdout_text
    assert "open" not in listing


def test_nothing_of_a_sandbox_stays_open_outside(start) -> None:
    start().run("true")  # whatever is opened once for the process
    before = len(os.listdir("/proc/self/fd"))
    with start() as box:
        box.run("echo x; sleep 60 & exit 1", stdin=b"x")
        box.write_file("/tmp/a", b"x")
        assert box.read_file("/tmp/a") == b"x"
        box.run("sleep 60", timeout=0.1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_loopback_of_the_host_is_unreachable(box: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        result = box.run(["python3", "-c", probe])
    assert "ConnectionRefusedError" in result.stderr_text


def test_abstract_sockets_of_the_host_are_unreachable(box: Sandbox) -> None:
    name = f"minisandbox-test-{os.getpid()}-{threading.get_ident()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        probe = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        result = box.run(["python3", "-c", probe])
    assert "ConnectionRefusedError" in result.stderr_text


def test_host_network_is_there_by_name_only(start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        box = start(profile=Profile(network="host"))
        assert box.run(["python3", "-c", probe]).exit_code == 0


def test_binds(start, tmp_path: Path) -> None:
    shared, read_only = tmp_path / "a,b:c", tmp_path / "file"
    shared.mkdir()
    shared.chmod(0o777)
    read_only.write_text("content")
    binds = (Bind(shared, "/mnt/shared", writable=True), Bind(read_only, "/etc/given"))
    box = start(profile=Profile(binds=binds))
    assert box.run("echo x > /mnt/shared/x && cat /etc/given").stdout == b"content"
    assert (shared / "x").read_text() == "x\n"
    assert box.run("echo y > /etc/given").exit_code != 0
    assert box.run("id -u > /dev/null; stat -c %U /mnt/shared/x").stdout == b"root\n"


def test_bind_problems_are_told_before_the_start(start, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        start(profile=Profile(binds=(Bind(tmp_path / "missing", "/mnt/x"),)))
    with pytest.raises(InvalidInput, match="absolute path"):
        Bind(tmp_path, "../x")


def test_layers_cannot_redirect_mounts(start, make_layer, tmp_path: Path) -> None:
    layer = make_layer({"x": "1"})
    os.symlink("/etc", layer / "proc")
    with pytest.raises(InvalidInput, match="replaces this directory"):
        start(layer)


def test_profile_identity_is_the_same_on_every_host() -> None:
    one = Profile(binds=(Bind(Path("/a"), "/x"), Bind(Path("/b"), "/w", writable=True)))
    other = Profile(binds=(Bind(Path("/c"), "/w", writable=True), Bind(Path("/d"), "/x")))
    assert one.identity() == other.identity()
    assert one.digest() == other.digest() != Profile().digest()
    assert "/a" not in repr(one.identity())
    assert Profile().digest() != Profile(network="host").digest()


@pytest.mark.parametrize("options", [{"network": "some"}, {"hostname": "a b"}, {"hostname": ""}])
def test_profiles_that_make_no_sense(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        Profile(**options)


def test_temporary_directory_is_not_the_hosts(box: Sandbox) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        assert box.run(["test", "-e", file.name]).exit_code == 1
