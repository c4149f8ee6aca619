"""The filter that reports connections, as a table of calls, and how addresses read in a record."""

from __future__ import annotations

import socket
import struct

import pytest

from minisandbox.sandbox import seccomp
from minisandbox.sandbox.watching import MOST_ADDRESSES, OTHERS, Attempt, Record, describe

X86_64, AARCH64, I386 = 0xC000003E, 0xC00000B7, 0x40000003
POINTER = 0x7F00_0000_1000


def verdict(program: bytes, architecture: int, number: int, arguments: tuple[int, ...]) -> int:
    """What the kernel would do: the three instructions that the filter is made of."""
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("=iIQ6Q", number, architecture, 0, *padded)
    code = [*struct.iter_unpack("=HBBI", program)]
    accumulator, at = 0, 0
    while True:
        operation, when_true, when_false, constant = code[at]
        at += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, constant)[0]
        elif operation == 0x15:
            at += when_true if accumulator == constant else when_false
        else:
            assert operation == 0x06
            return constant


CALLS = [
    ("connect", X86_64, 42, (3, POINTER, 16), True),
    ("connect with no address", X86_64, 42, (3, 0, 0), True),
    ("sendto", X86_64, 44, (3, POINTER, 1, 0, POINTER, 16), True),
    ("sendto, low half", X86_64, 44, (3, POINTER, 1, 0, 0x1000, 16), True),
    ("sendto, high half", X86_64, 44, (3, POINTER, 1, 0, 1 << 40, 16), True),
    ("send", X86_64, 44, (3, POINTER, 1, 0, 0, 16), False),
    ("sendmsg", X86_64, 46, (3, POINTER, 0), False),
    ("read", X86_64, 0, (3, POINTER, 16), False),
    ("a number of the other architecture", X86_64, 203, (3, POINTER, 16), False),
    ("a program of 32 bits", I386, 42, (3, POINTER, 16), False),
    ("connect", AARCH64, 203, (3, POINTER, 16), True),
    ("sendto", AARCH64, 206, (3, POINTER, 1, 0, POINTER, 16), True),
    ("send", AARCH64, 206, (3, POINTER, 1, 0, 0, 0), False),
    ("a number of the other architecture", AARCH64, 42, (3, POINTER, 16), False),
]


@pytest.mark.parametrize(("what", "architecture", "number", "arguments", "reported"), CALLS)
def test_what_the_filter_reports(
    what: str, architecture: int, number: int, arguments: tuple[int, ...], reported: bool
) -> None:
    machine = "aarch64" if architecture == AARCH64 else "x86_64"
    action = verdict(seccomp.report_connections(machine), architecture, number, arguments)
    assert action == (seccomp.ACTION_NOTIFY if reported else seccomp.ACTION_ALLOW), what


def test_no_filter_for_machines_whose_numbers_are_unknown() -> None:
    assert seccomp.report_connections("riscv64") == b""


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
