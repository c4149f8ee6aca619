"""The environment stage: a virtual environment with its dependencies, installed inside the sandbox.

virtualenv makes it where it still supports the interpreter, the interpreter's own ``venv``
elsewhere; uv or pip installs. What was resolved is the lock in the record.
"""

from __future__ import annotations

import datetime
import re
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from packaging.version import Version

from minisandbox import keys
from minisandbox.build import stage
from minisandbox.build.virtualenv_tool import supports, virtualenv_folder
from minisandbox.build.workshop import TOOLS, Workshop
from minisandbox.errors import StageFailed
from minisandbox.records import codec
from minisandbox.records.plan import EnvironmentPlan
from minisandbox.records.stages import EnvironmentRecord, InterpreterRecord
from minisandbox.runtime.instance import CONDA, VENV
from minisandbox.sandbox import Bind
from minisandbox.sandbox.base import base_identity
from minisandbox.store import Store

#: Date of files where a recipe gives none (2020-01-01): which day it was built must not matter.
DEFAULT_DATE = "2020-01-01"

#: The oldest interpreter that today's uv can still install for.
UV_SUPPORTS = Version("3.8")

#: Shim file, its place inside, its mode.
_SHIM = (
    ("activate", f"{CONDA}/bin/activate", 0o644),
    ("conda", f"{CONDA}/bin/conda", 0o755),
    ("conda.sh", f"{CONDA}/etc/profile.d/conda.sh", 0o644),
    ("bashrc", f"{CONDA}/etc/minisandbox.bashrc", 0o644),
)


def run(
    plan_path: Path, interpreter_path: Path, record_path: Path, attempt: stage.Attempt
) -> stage.Ended:
    """``minisandbox build environment``."""
    plan = codec.read(EnvironmentPlan, plan_path)
    interpreter = codec.read(InterpreterRecord, interpreter_path)
    store = Store(Path(plan.store))
    log = record_path.with_suffix(".log")
    inputs = keys.digest_of(
        {
            "key": plan.key,
            "interpreter": interpreter.layer.digest if interpreter.layer else None,
            "shim": _shim_digest(),
        }
    )

    def work() -> EnvironmentRecord:
        log.unlink(missing_ok=True)
        if interpreter.failure is not None:
            raise StageFailed(
                "interpreter", interpreter.failure.message, hint=interpreter.failure.hint
            )
        _check_base(plan)
        return _build(plan, interpreter, store, log)

    return stage.run_stage(
        EnvironmentRecord,
        record_path,
        stage="environment",
        key=plan.slug,
        inputs=inputs,
        log=log,
        work=work,
        attempt=attempt,
        store=store,
    )


def _check_base(plan: EnvironmentPlan) -> None:
    """What is compiled here is compiled against this machine: it has to be the one planned for."""
    here = base_identity()
    differing = sorted(name for name in here if here[name] != plan.base.get(name))
    if differing:
        name = differing[0]
        raise StageFailed(
            "environment",
            f"this machine is not the base that was planned for: {name} is {here[name]}, "
            f"not {plan.base.get(name)}",
            hint="build on machines of one kind, or plan again on this one",
        )


def _shim_digest() -> str:
    return keys.digest_of([_shim_text(name) for name, _, _ in _SHIM])


def _shim_text(name: str) -> str:
    return (resources.files("minisandbox.build") / "shim" / name).read_text(encoding="utf-8")


def _build(
    plan: EnvironmentPlan, interpreter: InterpreterRecord, store: Store, log: Path
) -> EnvironmentRecord:
    if interpreter.layer is None:
        raise StageFailed("interpreter", f"the record of Python {plan.python} names no layer")
    with _workshop(plan, interpreter, store, log) as shop:
        _create_venv(shop, interpreter)
        for name, target, mode in _SHIM:
            shop.sandbox.write_file(target, _shim_text(name), mode=mode)
        for command in plan.pre_install:
            shop.run(
                command,
                failure="environment",
                what=f"pre_install `{command}`",
                timeout=plan.timeout,
                env=plan.env,
            )
        _install(shop, plan, Version(interpreter.python))
        lock = _lock(shop)
        _check_paths(shop)
        layer = shop.pack("environment", date=unix_date(plan.date or DEFAULT_DATE))
        return stage.new(
            EnvironmentRecord,
            python=interpreter.python,
            prefix=interpreter.prefix,
            base=plan.base,
            profile=shop.profile.digest(),
            lock=lock,
            layers=(interpreter.layer, layer),
            tools=stage.versions(["virtualenv", "uv", "swe-minisandbox"]),
        )


@contextmanager
def _workshop(
    plan: EnvironmentPlan, interpreter: InterpreterRecord, store: Store, log: Path
) -> Generator[Workshop]:
    from uv import find_uv_bin

    assert interpreter.layer is not None
    binds = (
        Bind(source=virtualenv_folder(Path(plan.tools)), target=f"{TOOLS}/virtualenv"),
        Bind(source=Path(find_uv_bin()), target=f"{TOOLS}/bin/uv"),
    )
    with Workshop(
        [interpreter.layer],
        store=store,
        network=plan.network,
        log=log,
        name=plan.slug,
        binds=binds,
        env={"SOURCE_DATE_EPOCH": str(unix_date(plan.date or DEFAULT_DATE))},
    ) as shop:
        yield shop


def _create_venv(shop: Workshop, interpreter: InterpreterRecord) -> None:
    python = f"{interpreter.prefix}/bin/python3"
    if supports(interpreter.python):
        shop.run(
            [
                python,
                "-m",
                "virtualenv",
                "--no-download",
                "--no-periodic-update",
                "--no-vcs-ignore",
                "--app-data",
                "/tmp/virtualenv",
                "--prompt",
                "testbed",
                VENV,
            ],
            env={"PYTHONPATH": f"{TOOLS}/virtualenv"},
            failure="environment",
            what="creating the environment",
            purpose="venv",
            timeout=300,
        )
    else:
        shop.run(
            [python, "-m", "venv", "--prompt", "testbed", VENV],
            failure="environment",
            what="creating the environment",
            purpose="venv",
            timeout=300,
        )


def _install(shop: Workshop, plan: EnvironmentPlan, python: Version) -> None:
    if not plan.packages:
        return
    if plan.installer == "uv" and python >= UV_SUPPORTS:
        argv = ["uv", "pip", "install", "--python", f"{VENV}/bin/python", "--no-progress"]
        if plan.date:
            argv += ["--exclude-newer", plan.date]
    else:
        argv = [
            f"{VENV}/bin/python",
            "-m",
            "pip",
            "install",
            "--no-compile",
            "--progress-bar",
            "off",
        ]
        if plan.date:
            argv += _pip_date(shop, plan.date)
    shop.run(
        [*argv, *plan.packages],
        failure="environment",
        what="installing the packages",
        purpose="install",
        timeout=plan.timeout,
        env=plan.env,
        hint="see 'packages' in the recipe",
    )


def _pip_date(shop: Workshop, date: str) -> list[str]:
    """pip's own upper bound on upload times; older pips have none, and must not pretend."""
    version = shop.sandbox.run([f"{VENV}/bin/python", "-m", "pip", "--version"]).text
    match = re.match(r"pip (\d+)", version)
    if match is None or int(match[1]) < 26:
        raise StageFailed(
            "environment",
            f"{version.split(' from ')[0]} cannot bound upload times, and the recipe has a 'date'",
            hint="remove 'date' and pin the packages",
        )
    return ["--uploaded-prior-to", f"{date}T00:00:00Z"]


def _lock(shop: Workshop) -> tuple[str, ...]:
    listing = shop.run(
        [f"{VENV}/bin/python", "-m", "pip", "list", "--format=freeze"],
        failure="environment",
        what="listing the packages",
        purpose="lock",
        timeout=120,
    )
    lines = [line.strip() for line in listing.text.splitlines()]
    return tuple(sorted(line for line in lines if re.fullmatch(r"[A-Za-z0-9][\w.-]*==\S+", line)))


def _check_paths(shop: Workshop) -> None:
    """No file that steers imports or scripts may speak of a place that only this build had."""
    script = (
        f"cd {shlex.quote(VENV)} && grep -rlIE '{TOOLS}/|/var/cache/minisandbox' "
        "--include='*.pth' --include='pyvenv.cfg' --include='direct_url.json' "
        "--include='*.egg-link' --include='RECORD' --include='__editable__*' . bin; true"
    )
    found = shop.sandbox.run(script, timeout=120).text.split()
    if found:
        raise StageFailed("environment", f"{found[0]} in the environment names a path of the build")


def unix_date(day: str) -> int:
    """Midnight UTC of an ISO date, in unix seconds; never before 1980, which zip files
    cannot say.
    """
    moment = datetime.datetime.fromisoformat(day).replace(tzinfo=datetime.UTC)
    return max(int(moment.timestamp()), 315619200)
