"""``ls``, ``show``, ``run``, ``shell``: looking at a cache and working in its instances."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from minisandbox.cli.subparsers import Subparsers
from minisandbox.cli.waiting import waiting_line
from minisandbox.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, InvalidInput
from minisandbox.records import codec
from minisandbox.records.manifest import ManifestRow, Tally
from minisandbox.sizes import readable_size

if TYPE_CHECKING:
    from minisandbox.runtime import Instance
    from minisandbox.sandbox import Sandbox

_LOADER_FIELDS = (
    "problem_statement",
    "hints_text",
    "patch",
    "test_patch",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
    "log_tail",
)


def add_commands(commands: Subparsers) -> None:
    """Register the commands of this module."""
    ls = commands.add_parser("ls", help="list the instances of a cache")
    _cache_option(ls)
    ls.add_argument("--status", choices=("ok", "failed"), help="only those")
    ls.add_argument("--json", action="store_true", help="one JSON object a line")
    ls.add_argument("--strict", action="store_true", help="exit with 1 unless every instance is ok")
    ls.set_defaults(function=list_instances)

    show = commands.add_parser("show", help="show one instance")
    _cache_option(show)
    show.add_argument("id")
    show.add_argument("--json", action="store_true", help="the whole row as JSON")
    show.add_argument("--field", help="one field of the row, as it is")
    show.set_defaults(function=show_instance)

    run = commands.add_parser(
        "run",
        help="run a command in a fresh instance",
        usage="minisandbox run [options] ID -- COMMAND ...",
    )
    _cache_option(run)
    _image_option(run)
    _sandbox_options(run)
    run.add_argument(
        "--timeout", type=float, help="seconds until the command and all it started are ended"
    )
    run.add_argument(
        "--diff", type=Path, help="write what the command changed to this file, as a patch"
    )
    run.add_argument("id")
    run.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="after --; one word is shell text",
    )
    run.set_defaults(function=run_command)

    shell = commands.add_parser("shell", help="open an interactive shell in a fresh instance")
    _cache_option(shell)
    _image_option(shell)
    _sandbox_options(shell)
    shell.add_argument("id")
    shell.set_defaults(function=open_shell)


def _cache_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache", default="results", type=Path, help="folder of the manifest (default: results)"
    )


def _image_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--image", action="store_true", help="ID is an image that was imported (`oci import`)"
    )
    parser.add_argument("--user", help="who runs it (default: root, or the image's user)")


def _sandbox_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--network", choices=("none", "host"), default="none", help="default: none")
    parser.add_argument("--gold", action="store_true", help="apply the instance's gold patch first")
    parser.add_argument(
        "--tests", action="store_true", help="apply the instance's test patch first"
    )
    parser.add_argument("--patch", type=Path, help="apply this patch first")


def list_instances(arguments: argparse.Namespace) -> int:
    """``minisandbox ls``."""
    from minisandbox.runtime import open_cache

    cache = open_cache(arguments.cache)
    lines: list[tuple[str, ...]] = []
    tally = Tally()
    for row in cache.rows():
        tally.add(row)
        if arguments.status and row.status != arguments.status:
            continue
        if arguments.json:
            print(json.dumps(_brief(row), ensure_ascii=False))
        else:
            lines.append(_line(row))
    counts = tally.counts
    if not arguments.json:
        print_table([("INSTANCE", "STATUS", "PYTHON", "LAYERS", "TESTS", "GOLD", "REASON"), *lines])
        print(f"\n{counts}")
    return EXIT_FAILED if arguments.strict and counts.failed else EXIT_OK


def _brief(row: ManifestRow) -> dict[str, object]:
    data = codec.encode(row)
    return {
        key: value for key, value in data.items() if key not in _LOADER_FIELDS and key != "packages"
    }


def _line(row: ManifestRow) -> tuple[str, ...]:
    gold = {True: "resolved", False: "unresolved", None: "-"}[row.gold_resolved]
    tests = f"{len(row.FAIL_TO_PASS)}+{len(row.PASS_TO_PASS)}" if row.FAIL_TO_PASS else "-"
    size = readable_size(sum(layer.size for layer in row.layers)) if row.layers else "-"
    reason = f"[{row.reason_kind}] {row.reason}" if row.reason else ""
    return (row.instance_id, row.status, row.python or "-", size, tests, gold, reason)


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Columns as wide as their widest cell; the first row is their heads."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def show_instance(arguments: argparse.Namespace) -> int:
    """``minisandbox show``."""
    from minisandbox.runtime import open_cache

    row = open_cache(arguments.cache).row(arguments.id)
    data = codec.encode(row)
    if arguments.json:
        print(json.dumps(data, indent=1, ensure_ascii=False))
    elif arguments.field:
        if arguments.field not in data:
            raise InvalidInput(
                "--field", f"{arguments.field!r} is not a field", f"fields: {', '.join(data)}"
            )
        value = data[arguments.field]
        print(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    else:
        _print_row(row)
    return EXIT_OK


def _print_row(row: ManifestRow) -> None:
    pairs: list[tuple[str, str]] = [
        ("instance", f"{row.instance_id} ({row.dataset})"),
        ("status", row.status),
        ("repository", f"{row.repo} at {row.base_commit[:12]}"),
        ("environment", row.environment),
        ("python", f"{row.python} at {row.python_prefix}"),
        (
            "tests",
            (
                f"{len(row.FAIL_TO_PASS)} fail to pass, {len(row.PASS_TO_PASS)} pass to pass "
                f"({row.tests_source})"
            ),
        ),
        ("test command", row.test_command),
        ("sandbox", _sandbox(row)),
    ]
    if row.status == "failed":
        pairs.insert(2, ("reason", f"[{row.reason_kind}, stage {row.failed_stage}] {row.reason}"))
    for name, value in pairs:
        print(f"{name + ':':17}{value}")
    for layer in row.layers:
        print(f"{'layer:':17}{layer.kind:12} {readable_size(layer.size):>9}  {layer.digest}")
    if row.gold_resolved is not None:
        times = f", {row.validate_runs} runs each" if row.validate_runs > 1 else ""
        print(
            f"{'validation:':17}gold {_word(row.gold_resolved)} in {row.gold_seconds} s, "
            f"empty patch {_word(bool(row.empty_resolved))} in {row.empty_seconds} s{times}"
        )
    for name in row.flaky_tests:
        print(f"{'flaky:':17}{name}")
    for name, log in codec.encode(row.logs).items():
        if log:
            print(f"{name + ' log:':17}{log}")
    if row.log_tail:
        print("\n" + row.log_tail)
    if row.problem_statement:
        print("\n" + row.problem_statement.strip())


def _sandbox(row: ManifestRow) -> str:
    """What its sandboxes have that others do not."""
    from minisandbox.runtime import profile_of
    from minisandbox.sandbox import Limits

    profile, usual = profile_of(row), Limits().identity()
    said = [name for name in ("nested", "blackhole") if getattr(profile, name)]
    for name, value in profile.limits.identity().items():
        if value != usual[name]:
            said.append(f"no limit on {name}" if value is None else f"{name} {value}")
    return ", ".join(said) or "as usual"


def _word(resolved: bool) -> str:
    return "resolved" if resolved else "not resolved"


def run_command(arguments: argparse.Namespace) -> int:
    """``minisandbox run``: output as the command wrote it, its exit code, 124 after a time-out."""
    from minisandbox.sandbox import Sandbox

    separated = arguments.words[:1] == ["--"]
    words: list[str] = arguments.words[1:] if separated else arguments.words
    if not separated and words and words[0].startswith("-"):
        print(f"minisandbox run: {words[0]} has to stand before the instance", file=sys.stderr)
        return EXIT_USAGE
    if not words:
        print("minisandbox run: no command given; put it after --", file=sys.stderr)
        return EXIT_USAGE
    with _started(arguments) as started, _piped_input() as stdin:
        result = started.run(
            words[0] if len(words) == 1 else words,
            stdin=stdin,
            user=arguments.user,
            timeout=arguments.timeout,
            max_output=0,
            on_output=_print_piece,
        )
        if result.timed_out:
            print(f"minisandbox: ended after {arguments.timeout:g} s", file=sys.stderr)
        if arguments.diff and not isinstance(started, Sandbox):
            from minisandbox import atomic

            atomic.write_bytes(arguments.diff, started.diff())
    return result.exit_code


@contextmanager
def _piped_input() -> Generator[int | None]:
    """A pipe that standard input is copied to; None where that is a terminal or closed."""
    # Not by looking at descriptor 0: where it was closed, something of ours has that number now.
    if sys.__stdin__ is None or os.isatty(0):
        yield None
        return
    read_end, write_end = os.pipe()
    # A daemon: the command may end long before its input does.
    threading.Thread(target=_feed, args=(write_end,), daemon=True).start()
    try:
        yield read_end
    finally:
        os.close(read_end)


def _feed(write_end: int) -> None:
    try:
        while data := os.read(0, 1 << 16):
            view = memoryview(data)
            while view:
                view = view[os.write(write_end, view) :]
    except OSError:
        pass  # the command ended without reading it all, or what is read from broke
    finally:
        os.close(write_end)


def _print_piece(stream: str, data: bytes) -> None:
    out = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
    out.write(data)
    out.flush()


def open_shell(arguments: argparse.Namespace) -> int:
    """``minisandbox shell``."""
    with _started(arguments) as started:
        return started.open_shell()


def _started(arguments: argparse.Namespace) -> Instance | Sandbox:
    if not arguments.image:
        return _instance(arguments)
    from minisandbox.runtime import open_image
    from minisandbox.sandbox import Profile

    for option in ("gold", "tests", "patch", "diff"):
        if getattr(arguments, option, None):
            raise InvalidInput(
                f"--{option}", "is for an instance, and an image has no repository of its own"
            )
    image = open_image(arguments.id, arguments.cache)
    with waiting_line() as report:
        return image.start(
            profile=Profile(network=arguments.network), user=arguments.user, report=report
        )


def _instance(arguments: argparse.Namespace) -> Instance:
    from minisandbox.runtime import open_cache, profile_of

    cache = open_cache(arguments.cache)
    row = cache.row(arguments.id)
    with waiting_line() as report:
        profile = replace(profile_of(row), network=arguments.network)
        instance = cache.materialize(arguments.id, profile=profile, report=report)
    try:
        if arguments.gold:
            instance.apply_patch(row.patch, name="gold patch")
        if arguments.patch:
            try:
                text = arguments.patch.read_text(encoding="utf-8", errors="surrogateescape")
            except OSError as error:
                raise InvalidInput(
                    str(arguments.patch), f"cannot be read ({error.strerror})"
                ) from None
            instance.apply_patch(text, name=str(arguments.patch))
        if arguments.tests:
            instance.apply_patch(row.test_patch, name="test patch")
    except BaseException:
        instance.close()
        raise
    return instance
