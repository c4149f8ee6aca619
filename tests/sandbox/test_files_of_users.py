"""Files read and written, and commands run, with the rights of one user of the sandbox."""

from __future__ import annotations

import errno

import pytest

from minisandbox.errors import SandboxFileError
from minisandbox.idmap import IdMap
from minisandbox.sandbox import Sandbox


def refused(call, *arguments: object, **options: object) -> int:
    with pytest.raises(SandboxFileError) as caught:
        call(*arguments, **options)
    return caught.value.errno


def another(idmap: IdMap) -> str | int:
    """A user that is not root, or root itself where nobody else exists."""
    return 1234 if idmap.count > 1 else "root"


def test_mode_bits_count_for_a_named_user(start, idmap: IdMap) -> None:
    box: Sandbox = start()
    user = another(idmap)
    box.write_file("/tmp/mine", b"1", user=user)
    assert box.run("stat -c '%u %a' /tmp/mine").stdout == (
        b"1234 644\n" if idmap.count > 1 else b"0 644\n"
    )
    box.run("chmod 0 /tmp/mine")
    assert refused(box.read_file, "/tmp/mine", user=user) == errno.EACCES
    assert refused(box.write_file, "/tmp/mine", b"2", user=user) == errno.EACCES
    assert box.read_file("/tmp/mine") == b"1"
    box.write_file("/tmp/mine", b"3")
    assert box.read_file("/tmp/mine", user=user) == b"3"


def test_a_user_writes_in_place(start, idmap: IdMap) -> None:
    box: Sandbox = start()
    user = another(idmap)
    box.run("echo old > /tmp/tool; ln /tmp/tool /tmp/same; chmod 777 /tmp/tool")
    box.write_file("/tmp/tool", b"new\n", user=user)
    assert box.run("stat -c '%u %a %h' /tmp/tool; cat /tmp/same").stdout == b"0 777 2\nnew\n"
    box.write_file("/tmp/tool", b"", user=user)
    assert box.read_file("/tmp/same") == b""


def test_what_cannot_be_written_is_named(start, idmap: IdMap) -> None:
    box: Sandbox = start()
    user = another(idmap)
    box.run("mkfifo -m 666 /tmp/fifo; mkdir -m 777 /tmp/folder; ln -s nowhere/x /tmp/link")
    assert refused(box.write_file, "/tmp/folder", b"", user=user) == errno.EISDIR
    assert refused(box.write_file, "/tmp/fifo", b"", user=user) in (errno.EINVAL, errno.ENXIO)
    assert refused(box.write_file, "/tmp/link", b"", user=user) == errno.ENOENT
    assert refused(box.read_file, "/tmp/none", user=user) == errno.ENOENT
    assert refused(box.read_file, "/tmp/none", user="stranger") == errno.ENOENT


def test_only_the_ids_that_exist_can_be_acted_as(start, idmap: IdMap) -> None:
    box: Sandbox = start()
    if idmap.count == 1:
        assert refused(box.write_file, "/tmp/x", b"", user=1234) == errno.EINVAL
        assert box.run("test ! -e /tmp/x").ok
        return
    assert refused(box.read_file, "/etc/shadow", user="nobody") == errno.EACCES
    assert refused(box.write_file, "/etc/passwd", b"", user="nobody") == errno.EACCES
    assert refused(box.write_file, "/srv/a/b", b"", user="nobody") == errno.EACCES
    assert box.read_file("/etc/shadow", user="root").startswith(b"root:")


def test_home_is_that_of_the_user(start, idmap: IdMap) -> None:
    box: Sandbox = start()
    show = ["sh", "-c", "echo $HOME"]
    assert box.run(show).stdout == b"/root\n"
    assert box.run(show, user="root").stdout == b"/root\n"
    if idmap.count == 1:
        return
    box.run("echo 'someone:x:1234:1234::/home/someone:/bin/sh' >> /etc/passwd")
    assert box.run(show, user="someone").stdout == b"/home/someone\n"
    assert box.run(show, user=1234).stdout == b"/home/someone\n"
    assert box.run(show, user=4321).stdout == b"/\n"
    assert box.run(show, user="someone", env={"HOME": "/tmp"}).stdout == b"/tmp\n"


def test_accounts_can_be_added_and_removed(start, idmap: IdMap) -> None:
    if idmap.count == 1:
        return  # a home cannot be given to an id that does not exist
    box: Sandbox = start()
    added = box.run("adduser --disabled-password --comment x someone || useradd -m someone")
    assert added.ok, added.text
    assert box.run("touch ~/file && stat -c %U ~/file", user="someone").stdout == b"someone\n"
    assert box.run("userdel -r someone && test ! -e /home/someone").ok
    assert not box.run("id someone").ok
