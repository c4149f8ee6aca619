"""The filters of system calls, run as the kernel would run them, on both architectures."""

from __future__ import annotations

import errno
import itertools
import re
import struct

import pytest

from minisandbox import linux
from minisandbox.errors import HostUnsupported
from minisandbox.sandbox import Profile
from minisandbox.sandbox.seccomp import bpf, notify, numbers, policy

X86_64, AARCH64, I386, ARM = 0xC000003E, 0xC00000B7, 0x40000003, 0x40000028
ARCHITECTURES = {"x86_64": X86_64, "aarch64": AARCH64}
POINTER = 0x7F00_0000_1000
UPPER = 0xDEAD_BEEF_0000_0000

ALLOW, NOTIFY, KILL = 0x7FFF0000, 0x7FC00000, 0x80000000
GROUPS = (policy.ALLOWED, policy.NAMESPACES, policy.REFUSED, policy.ABSENT)
CHECKED = frozenset({"clone", "ioctl", "personality", "socket", "socketpair"})

Arguments = tuple[int, ...]


def trace(program: bytes, architecture: int, number: int, arguments: Arguments) -> list[int]:
    """The offsets that the kernel would load, one by one, and last what it would answer."""
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("=IIQ6Q", number, architecture, 0, *padded)
    code = [*struct.iter_unpack("=HBBI", program)]
    steps: list[int] = []
    accumulator, at = 0, 0
    while True:
        operation, when_true, when_false, constant = code[at]
        at += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, constant)[0]
            steps.append(constant)
        elif operation == 0x05:
            at += constant
        elif operation in (0x15, 0x35, 0x45):
            holds = {
                0x15: accumulator == constant,
                0x35: accumulator >= constant,
                0x45: accumulator & constant != 0,
            }[operation]
            at += when_true if holds else when_false
        else:
            assert operation == 0x06
            return [*steps, constant]


def verdict(program: bytes, architecture: int, number: int, arguments: Arguments = ()) -> int:
    return trace(program, architecture, number, arguments)[-1]


def fails(number: int) -> int:
    return 0x00050000 | number


def decide(machine: str, name: str, *arguments: int, nested: bool = False) -> int:
    program = policy.compiled(machine, nested=nested)
    return verdict(program, ARCHITECTURES[machine], numbers.NUMBERS[machine][name], arguments)


both = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


@pytest.mark.parametrize(
    ("machine", "known"),
    [
        (
            "x86_64",
            {"read": 0, "ioctl": 16, "socket": 41, "clone": 56, "ptrace": 101, "mount": 165},
        ),
        ("x86_64", {"exit_group": 231, "openat": 257, "unshare": 272, "rseq": 334, "uprobe": 336}),
        ("aarch64", {"io_setup": 0, "ioctl": 29, "mount": 40, "read": 63, "unshare": 97}),
        ("aarch64", {"ptrace": 117, "socket": 198, "clone": 220, "wait4": 260, "bpf": 280}),
        ("x86_64", {"io_uring_setup": 425, "clone3": 435, "mseal": 462, "listns": 470}),
        ("aarch64", {"io_uring_setup": 425, "clone3": 435, "mseal": 462, "listns": 470}),
        *((machine, known) for machine, known in linux._SYSCALLS.items()),
    ],
)
def test_numbers_that_are_known_otherwise(machine: str, known: dict[str, int]) -> None:
    assert {name: numbers.NUMBERS[machine][name] for name in known} == known


@pytest.mark.parametrize(
    ("machine", "gaps"),
    [("x86_64", [(337, 423)]), ("aarch64", [(244, 259), (295, 423)])],
)
def test_no_name_was_lost_or_doubled(machine: str, gaps: list[tuple[int, int]]) -> None:
    taken = sorted(numbers.NUMBERS[machine].values())
    assert len(set(taken)) == len(taken)
    free = set(range(taken[-1] + 1)) - set(taken)
    assert free == {number for first, last in gaps for number in range(first, last + 1)}


def test_each_known_call_is_in_one_group() -> None:
    for one, other in itertools.combinations((*GROUPS, CHECKED), 2):
        assert not one & other
    known = {name for table in numbers.NUMBERS.values() for name in table}
    assert known == frozenset().union(*GROUPS, CHECKED)


@both
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("argument", [0, 2**64 - 1])
def test_each_call_is_answered_as_its_group_says(machine: str, nested: bool, argument: int) -> None:
    answers = {
        **dict.fromkeys(policy.ALLOWED, ALLOW),
        **dict.fromkeys(policy.NAMESPACES, ALLOW if nested else fails(errno.EPERM)),
        **dict.fromkeys(policy.REFUSED, fails(errno.EPERM)),
        **dict.fromkeys(policy.ABSENT, fails(errno.ENOSYS)),
    }
    for name in numbers.NUMBERS[machine].keys() - CHECKED:
        action = decide(machine, name, *(argument,) * 6, nested=nested)
        assert action == answers[name], name


@both
@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("clone3", fails(errno.ENOSYS)),
        ("io_uring_setup", fails(errno.ENOSYS)),
        ("unshare", fails(errno.EPERM)),
        ("setns", fails(errno.EPERM)),
        ("mount", fails(errno.EPERM)),
        ("bpf", fails(errno.EPERM)),
        ("keyctl", fails(errno.EPERM)),
        ("userfaultfd", fails(errno.EPERM)),
        ("open_by_handle_at", fails(errno.EPERM)),
        ("ptrace", ALLOW),
        ("seccomp", ALLOW),
        ("openat2", ALLOW),
    ],
)
def test_the_calls_that_are_argued_about(machine: str, name: str, action: int) -> None:
    assert decide(machine, name) == action


@both
def test_numbers_that_nobody_knows(machine: str) -> None:
    program, known = policy.compiled(machine), set(numbers.NUMBERS[machine].values())
    unknown = {*range(2000), 0x3FFFFFFF, 0x7FFFFFFF, 0xFFFFFFFE, 2**31} - known
    for number in unknown:
        assert verdict(program, ARCHITECTURES[machine], number) == fails(errno.ENOSYS), number


def test_calls_of_x32() -> None:
    program = policy.compiled("x86_64")
    for number in range(1000):
        assert verdict(program, X86_64, 0x40000000 | number) == fails(errno.ENOSYS), number


@both
def test_a_call_that_a_tracer_has_answered(machine: str) -> None:
    program = policy.compiled(machine)
    assert verdict(program, ARCHITECTURES[machine], 0xFFFFFFFF) == ALLOW


@both
@pytest.mark.parametrize("nested", [False, True])
def test_programs_of_other_architectures_are_ended(machine: str, nested: bool) -> None:
    program = policy.compiled(machine, nested=nested)
    for architecture in {X86_64, AARCH64, I386, ARM, 0, 2**32 - 1} - {ARCHITECTURES[machine]}:
        for number in (*range(500), 0xFFFFFFFF):
            assert verdict(program, architecture, number) == KILL


#: What fork, threads and vfork ask for: SIGCHLD, VM, FS, FILES, SIGHAND, THREAD, SETTLS and so on.
FORK, THREAD, SPAWN = 0x1200011, 0x3D0F00, 0x4111
EPERM, EAFNOSUPPORT = fails(errno.EPERM), fails(errno.EAFNOSUPPORT)
EPROTONOSUPPORT = fails(errno.EPROTONOSUPPORT)

ARGUMENTS: list[tuple[str, Arguments, int]] = [
    *(("clone", (flags,), ALLOW) for flags in (0, 17, FORK, THREAD, SPAWN, UPPER | THREAD)),
    *(("clone", (1 << bit | 17,), EPERM) for bit in (17, *range(25, 31))),
    ("clone", (UPPER | linux.CLONE_NEWUSER,), EPERM),
    ("clone", (THREAD | linux.CLONE_NEWNET,), EPERM),
    *(("ioctl", (0, request), ALLOW) for request in (0, 0x5401, 0x5411, 0x5413, 0x541B, 0x5424)),
    *(("ioctl", (0, request), EPERM) for request in (0x5412, 0x541C, 0x5423)),
    *(("ioctl", (0, UPPER | request), EPERM) for request in (0x5412, 0x541C, 0x5423)),
    ("ioctl", (0x5412, 0x5401, 0x5412), ALLOW),
    *(("personality", (one,), ALLOW) for one in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF, 2**64 - 1)),
    *(("personality", (one,), EPERM) for one in (1, 0x40000, 0x40008, 0x8000000, 0x100000)),
    ("personality", (UPPER,), ALLOW),
    ("personality", (UPPER | 0x40000,), EPERM),
]
for _name in ("socket", "socketpair"):
    ARGUMENTS += [
        *((_name, (family, 1, 0), ALLOW) for family in (1, 2, 10, UPPER | 2)),
        *((_name, (2, kind, protocol), ALLOW) for kind, protocol in ((1, 6), (2, 17), (3, 255))),
        *((_name, (16, 3, protocol), ALLOW) for protocol in (0, 4, 15, 16, UPPER | 15)),
        *((_name, (16, 3, protocol), EPROTONOSUPPORT) for protocol in (6, 9, 12, 21, UPPER | 9)),
        *(
            (_name, (family, 1, 0), EAFNOSUPPORT)
            for family in (*range(3, 10), *range(11, 16), *range(17, 50), 2**32 - 1, UPPER | 38)
        ),
    ]


@both
@pytest.mark.parametrize(("name", "arguments", "action"), ARGUMENTS)
def test_arguments(machine: str, name: str, arguments: Arguments, action: int) -> None:
    assert decide(machine, name, *arguments) == action
    nested = decide(machine, name, *arguments, nested=True)
    assert nested == (ALLOW if name == "clone" else action)


@both
def test_calls_are_decided_in_a_few_steps_and_by_number_alone(machine: str) -> None:
    program = policy.compiled(machine)
    assert len(program) // 8 < 300
    for name in policy.ALLOWED & numbers.NUMBERS[machine].keys():
        *loads, _ = trace(program, ARCHITECTURES[machine], numbers.NUMBERS[machine][name], ())
        # Then the kernel knows beforehand that it need not run the filter.
        assert loads == [bpf.ARCHITECTURE, bpf.NUMBER], name


def test_trees_that_are_longer_than_a_jump() -> None:
    starts = [(7 * number, bpf.fail(number)) for number in range(1000)]
    program = bpf.assemble(bpf.load(bpf.NUMBER, bpf.by_range(starts)))
    for number in (*range(0, 7000, 13), 6999):
        assert verdict(program, X86_64, number) == fails(number // 7)
    assert verdict(program, X86_64, 2**32 - 1) == fails(999)


def test_machines_whose_numbers_are_unknown() -> None:
    with pytest.raises(HostUnsupported, match=r"riscv64.*aarch64 and x86_64"):
        policy.compiled("riscv64")
    assert notify.report_connections("riscv64") == b""


def test_the_policy_is_part_of_a_profiles_identity() -> None:
    assert Profile().identity()["syscalls"] == policy.digest()
    assert re.fullmatch("sha256:[0-9a-f]{64}", policy.digest())
    nested = Profile(nested=True)
    assert nested.identity()["syscalls"] == policy.digest(nested=True) != policy.digest()
    assert Profile().digest() != nested.digest()


REPORTS = [
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


@pytest.mark.parametrize(("what", "architecture", "number", "arguments", "reported"), REPORTS)
def test_what_the_reporting_filter_reports(
    what: str, architecture: int, number: int, arguments: Arguments, reported: bool
) -> None:
    machine = "aarch64" if architecture == AARCH64 else "x86_64"
    action = verdict(notify.report_connections(machine), architecture, number, arguments)
    assert action == (NOTIFY if reported else ALLOW), what
