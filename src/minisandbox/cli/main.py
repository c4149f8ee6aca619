"""Entry point: parse, dispatch, turn errors into one sentence and an exit code.

0 ok, 1 ours, 2 usage, 75 try again, 70 a bug (with traceback); ``run`` and ``shell`` give the
command's own code, and 125 where the sandbox itself failed, as docker does.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from minisandbox import __version__
from minisandbox.cli import bases, builds, caches, doctoring, grading, images, recordings, stores
from minisandbox.errors import EXIT_BUG, EXIT_FAILED, EXIT_OK, MiniSandboxError

#: What docker and env answer when they, not the command, failed.
EXIT_SANDBOX = 125

_RUNS_A_COMMAND = ("run", "shell")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (`>&-`)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    parser = _parser()
    arguments = parser.parse_args(argv)
    command: Callable[[argparse.Namespace], int] | None = getattr(arguments, "function", None)
    if command is None:
        parser.print_help()
        return EXIT_OK
    runs_a_command = arguments.command in _RUNS_A_COMMAND
    try:
        return command(arguments)
    except MiniSandboxError as error:
        print(f"minisandbox: {error}", file=sys.stderr)
        return EXIT_SANDBOX if runs_a_command else error.exit_code
    except BrokenPipeError:
        # The reader went away (`| head`); python must not complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        print("minisandbox: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"minisandbox: {_os_error(error)}", file=sys.stderr)
        return EXIT_SANDBOX if runs_a_command else EXIT_FAILED
    except Exception:  # noqa: BLE001 - the last resort: say that it is our fault
        traceback.print_exc()
        print(
            "minisandbox: this is a bug in minisandbox; please report it with the lines above",
            file=sys.stderr,
        )
        return EXIT_BUG


def _os_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="minisandbox",
        description="Executable checkouts for software-engineering agents, without containers.",
    )
    parser.add_argument("--version", action="version", version=f"minisandbox {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in (caches, grading, doctoring, recordings, stores, images, bases, builds):
        module.add_commands(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
