"""What the monitors inside a sandbox tell the client, and what they refuse."""

from __future__ import annotations

import errno

from minisandbox.sandbox import accounts, wire

TYPE_CHECKING = False  # the typing module costs every start some milliseconds
if TYPE_CHECKING:
    import socket
    from typing import Any


class Refusal(Exception):
    """A request that cannot be done; goes to the client as errno, operation and path."""

    def __init__(self, number: int, operation: str, path: str) -> None:
        self.number = number
        self.operation = operation
        self.path = path
        super().__init__(operation)


def answer(channel: socket.socket, kind: str, *fields: str) -> None:
    """Send a packet that nobody may be waiting for any more."""
    try:
        wire.send(channel, kind, *fields)
    except OSError:
        pass  # the client is gone; nobody is left to be told


def exit_code(status: int) -> str:
    """What a shell would show for a child that :func:`processes.reap` collected."""
    return str(status if status >= 0 else 128 - status)


def settle_account(request: dict[str, Any], ids: int) -> accounts.Account:
    """The account a command is to run with; its HOME goes into the request's environment.

    Raises :class:`Refusal` for one that cannot be taken, ``OSError`` for one that is unknown.
    """
    try:
        account = accounts.find(request["user"])
    except OSError as error:
        unknown = error.filename or str(request["user"])
        raise Refusal(errno.ENOENT, "find the user or group", unknown) from error
    if ids == 1 and (account.uid or account.gid):
        raise Refusal(
            errno.EINVAL, "run as another user with a single-id map", str(request["user"])
        )
    request["env"].setdefault("HOME", account.home)
    return account
