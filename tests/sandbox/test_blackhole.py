"""Packets that vanish: connections to addresses outside time out, and local ones are as ever."""

from __future__ import annotations

import pytest

from minisandbox.errors import InvalidInput
from minisandbox.sandbox import Profile

#: What became of a connection, within a second.
CONNECT = """
import errno, socket, sys
s = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
s.settimeout(1)
try:
    s.connect((sys.argv[1], 80))
except TimeoutError:
    print("timed out")
except OSError as error:
    print(errno.errorcode[error.errno])
"""
OUTSIDE = ("10.255.255.1", "192.0.2.1", "8.8.8.8")


def connect(box, address: str) -> str:
    return box.run(["python3", "-c", CONNECT, address]).text.strip()


@pytest.mark.parametrize("address", OUTSIDE)
def test_connections_outside_time_out(start, address: str) -> None:
    assert connect(start(profile=Profile(blackhole=True)), address) == "timed out"


@pytest.mark.parametrize("address", OUTSIDE)
def test_without_it_they_fail_at_once(start, address: str) -> None:
    assert connect(start(), address) == "ENETUNREACH"


def test_local_addresses_answer(start) -> None:
    box = start(profile=Profile(blackhole=True))
    assert connect(box, "127.0.0.1") == "ECONNREFUSED"
    served = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
connection, _ = server.accept()
client.sendall(b"heard")
print(connection.recv(10).decode())
"""
    assert box.run(["python3", "-c", served]).text == "heard\n"


def test_datagrams_vanish(start) -> None:
    box = start(profile=Profile(blackhole=True))
    send = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.5)
print(s.sendto(b"name?", ("8.8.8.8", 53)), s.getsockname()[0])
try:
    s.recv(100)
except TimeoutError:
    print("no answer")
"""
    # The address of its own that programs find by connecting to anywhere is one that is there.
    result = box.run(["python3", "-c", send])
    assert result.text.splitlines()[1:] == ["no answer"], result.text


def test_it_stays_after_a_reset_and_in_a_fork(start) -> None:
    box = start(profile=Profile(blackhole=True))
    box.reset()
    assert connect(box, OUTSIDE[0]) == "timed out"
    with box.snapshot() as snapshot, box.start_from(snapshot) as other:
        assert connect(other, OUTSIDE[0]) == "timed out"


def test_no_program_inside_can_undo_it(start) -> None:
    box = start(profile=Profile(blackhole=True))
    box.run("ip route del default 2>/dev/null; ip link set lo down 2>/dev/null; true")
    assert connect(box, OUTSIDE[0]) == "timed out"


def test_one_sandbox_does_not_make_another_such(start) -> None:
    first, second = start(profile=Profile(blackhole=True)), start()
    assert connect(first, OUTSIDE[0]) == "timed out"
    assert connect(second, OUTSIDE[0]) == "ENETUNREACH"


def test_connections_are_recorded_all_the_same(start) -> None:
    box = start(profile=Profile(blackhole=True, watch=True))
    connect(box, OUTSIDE[0])
    assert OUTSIDE[0] in str(box.attempts())


def test_the_hosts_network_has_none() -> None:
    with pytest.raises(InvalidInput, match="blackhole needs a network of its own"):
        Profile(network="host", blackhole=True)


def test_it_is_a_part_of_the_profile() -> None:
    assert Profile(blackhole=True).digest() != Profile().digest()
