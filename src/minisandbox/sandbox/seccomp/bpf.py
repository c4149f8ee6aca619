"""Decision trees over a system call, as programs for the kernel's classic packet filter machine.

A tree is a sequence of instructions every way through which ends with an answer, so trees nest
without labels: a test is followed by the tree for "no" and then by the one for "yes". The machine
has one register, which :func:`load` sets. Layouts are those of linux/filter.h and linux/seccomp.h
on little-endian machines. Of the calls that a filter always allows, whatever their arguments,
kernels since 5.11 keep a list and do not run it: only instructions used here may decide that
(kernel/seccomp.c).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

#: Operation, how many instructions to skip when true and when false, constant.
Instruction = tuple[int, int, int, int]
Tree = tuple[Instruction, ...]

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_SKIP = 0x05  # BPF_JMP | BPF_JA
_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_IF_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
_FURTHEST = 255

# Offsets into struct seccomp_data, whose arguments have 64 bits each, low half first.
NUMBER, ARCHITECTURE, _ARGUMENTS = 0, 4, 16


def low_half(argument: int) -> int:
    """Where :func:`load` finds the lower 32 bits of an argument, counted from 0."""
    return _ARGUMENTS + 8 * argument


def high_half(argument: int) -> int:
    """Where :func:`load` finds the upper 32 bits of an argument, counted from 0."""
    return low_half(argument) + 4


def _answer(action: int) -> Tree:
    return ((_RETURN, 0, 0, action),)


ALLOW = _answer(0x7FFF0000)
#: Asks whoever holds the listener.
NOTIFY = _answer(0x7FC00000)
#: Ends all threads of the process with SIGSYS.
KILL = _answer(0x80000000)


def fail(number: int) -> Tree:
    """The call is not made and fails with errno ``number``."""
    return _answer(0x00050000 | number)


def load(offset: int, then: Tree) -> Tree:
    """Go on with the 32 bits at ``offset`` in the register."""
    return ((_LOAD, 0, 0, offset), *then)


def if_equal(constant: int, yes: Tree, no: Tree) -> Tree:
    """``yes`` where the register is ``constant``."""
    return _branch(_IF_EQUAL, constant, yes, no)


def if_any_bit(bits: int, yes: Tree, no: Tree) -> Tree:
    """``yes`` where the register has any of ``bits``."""
    return _branch(_IF_ANY_BIT, bits, yes, no)


def _branch(test: int, constant: int, yes: Tree, no: Tree) -> Tree:
    if len(no) <= _FURTHEST:
        return ((test, len(no), 0, constant), *no, *yes)
    return ((test, 0, 1, constant), (_SKIP, 0, 0, len(no)), *no, *yes)


def by_range(starts: Sequence[tuple[int, Tree]]) -> Tree:
    """The tree of the last start that the register reaches; starts ascend from 0."""
    if len(starts) == 1:
        return starts[0][1]
    middle = len(starts) // 2
    return _branch(
        _IF_AT_LEAST, starts[middle][0], by_range(starts[middle:]), by_range(starts[:middle])
    )


def assemble(tree: Tree) -> bytes:
    """An array of ``struct sock_filter``."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in tree)
