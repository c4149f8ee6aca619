"""How addresses read in the record of connections, and that the record is bounded."""

from __future__ import annotations

import socket
import struct

import pytest

from minisandbox.sandbox.watching import MOST_ADDRESSES, OTHERS, Attempt, Record, describe


def inet(address: str, port: int) -> bytes:
    return struct.pack("=H", socket.AF_INET) + port.to_bytes(2) + socket.inet_aton(address)


def inet6(address: str, port: int) -> bytes:
    packed = socket.inet_pton(socket.AF_INET6, address)
    return struct.pack("=H", socket.AF_INET6) + port.to_bytes(2) + bytes(4) + packed + bytes(4)


def unix(path: bytes) -> bytes:
    return struct.pack("=H", socket.AF_UNIX) + path


ADDRESSES = [
    (inet("127.0.0.1", 5432) + bytes(8), "127.0.0.1:5432"),
    (inet("255.255.255.255", 65535), "255.255.255.255:65535"),
    (inet6("::1", 80), "[::1]:80"),
    (inet6("2001:db8::1", 443)[:24], "[2001:db8::1]:443"),
    (unix(b"/run/nscd/socket\0garbage"), "unix:/run/nscd/socket"),
    (unix(b"/no/end"), "unix:/no/end"),
    (unix(b"\0abstract"), "unix:@abstract"),
    (unix(b"\0a\0b\n\xff\\"), "unix:@a\\x00b\\x0a\\xff\\x5c"),
    (unix(b"@looks-abstract"), "unix:\\x40looks-abstract"),
    (unix(b""), "unix:"),
    (struct.pack("=HHII", socket.AF_NETLINK, 0, 0, 0), "netlink"),
    (struct.pack("=H", 17) + bytes(18), "family 17"),
    (struct.pack("=H", 0) + bytes(14), "family 0"),
    (inet("127.0.0.1", 80)[:7], "family 2"),
    (inet6("::1", 80)[:23], "family 10"),
    (b"\2", "unreadable"),
    (b"", "unreadable"),
]


@pytest.mark.parametrize(("address", "text"), ADDRESSES, ids=[text for _, text in ADDRESSES])
def test_how_addresses_read(address: bytes, text: str) -> None:
    assert describe(address) == text


def test_each_address_is_kept_once_in_order() -> None:
    record = Record()
    for address in ("b", "a", "b"):
        record.add(address)
    assert record.attempts() == (Attempt("b", 2), Attempt("a", 1))


def test_a_record_is_bounded() -> None:
    record = Record()
    for number in range(MOST_ADDRESSES + 5):
        record.add(f"192.0.2.1:{number}")
    record.add("192.0.2.1:0")
    attempts = record.attempts()
    assert len(attempts) == MOST_ADDRESSES + 1
    assert attempts[0] == Attempt("192.0.2.1:0", 2)
    assert attempts[-1] == Attempt(OTHERS, 5)


def test_a_record_that_goes_on_is_bounded_as_one() -> None:
    first, second = Record(), Record()
    for number in range(MOST_ADDRESSES + 5):
        first.add(f"192.0.2.1:{number}")
    for attempt in first.attempts():
        second.add(attempt.address, attempt.count)
    assert second.attempts() == first.attempts()
    second.add("192.0.2.1:0")
    second.add("198.51.100.1:1")
    assert second.attempts()[0].count == 2
    assert second.attempts()[-1] == Attempt(OTHERS, 6)
