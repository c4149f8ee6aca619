"""The environment stage: a virtual environment with its dependencies, installed inside the sandbox.

virtualenv makes it where it still supports the interpreter, the interpreter's own ``venv``
elsewhere; uv or pip installs. What was resolved is the lock in the record.
"""

from __future__ import annotations

import datetime
import re
import shlex
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path

from packaging.version import Version

from minisandbox import keys
from minisandbox.build import stage
from minisandbox.build.index import locks
from minisandbox.build.index.egress import IndexAccess
from minisandbox.build.planning.requirement_files import requirements_of
from minisandbox.build.service_layers import make_service
from minisandbox.build.services import service
from minisandbox.build.system_packages import missing_packages, named_in_failures
from minisandbox.build.virtualenv_tool import supports, virtualenv_folder
from minisandbox.build.workshop import TOOLS, Workshop
from minisandbox.errors import StageFailed
from minisandbox.records import codec
from minisandbox.records.layer import LayerRef
from minisandbox.records.lock import IndexFile
from minisandbox.records.plan import EnvironmentPlan
from minisandbox.records.stages import (
    BaseRecord,
    CloneRecord,
    EnvironmentRecord,
    InterpreterRecord,
    NetworkUse,
)
from minisandbox.runtime.instance import CONDA, LOCALES, VENV, WHEELHOUSE
from minisandbox.runtime.profiles import limits_from
from minisandbox.sandbox import Bind
from minisandbox.sandbox.base import base_identity
from minisandbox.store import Store

#: Date of files where a recipe gives none (2020-01-01): which day it was built must not matter.
DEFAULT_DATE = "2020-01-01"

#: Version of how environments are made; a change of what comes out makes every record anew.
_METHOD = 1

#: The oldest interpreter that today's uv can still install for.
UV_SUPPORTS = Version("3.8")

#: Shim file, its place inside, its mode.
_SHIM = (
    ("activate", f"{CONDA}/bin/activate", 0o644),
    ("conda", f"{CONDA}/bin/conda", 0o755),
    ("conda.sh", f"{CONDA}/etc/profile.d/conda.sh", 0o644),
    ("bashrc", f"{CONDA}/etc/minisandbox.bashrc", 0o644),
    ("pip.conf", f"{VENV}/pip.conf", 0o644),
)
_LOCALES = "locales.sh"


def run(
    plan_path: Path,
    interpreter_path: Path,
    clone_paths: Sequence[Path],
    record_path: Path,
    attempt: stage.Attempt,
    *,
    base_path: Path | None = None,
    lock_path: Path | None = None,
) -> stage.Ended:
    """``minisandbox build environment``; ``base_path`` is the record of a packed base,
    ``lock_path`` that of an earlier build, whose index files are used and no others.
    """
    plan = codec.read(EnvironmentPlan, plan_path)
    base = codec.read(BaseRecord, base_path) if base_path is not None else None
    interpreter = codec.read(InterpreterRecord, interpreter_path)
    clones = [codec.read(CloneRecord, path) for path in clone_paths]
    store = Store(Path(plan.store))
    log = record_path.with_suffix(".log")
    lock, no_lock = _lock_of(plan, lock_path)
    missing = missing_packages(plan.base, plan.system_packages)
    inputs = keys.digest_of(
        {
            "method": _METHOD,
            "key": plan.key,
            "interpreter": interpreter.layer.digest if interpreter.layer else None,
            **stage.base_inputs(base),
            "shim": _shim_digest(),
            "lock": lock.digest if lock else str(no_lock or ""),
            "clones": [
                [clone.failure.kind, clone.failure.message] for clone in clones if clone.failure
            ],
            **({"missing_packages": list(missing)} if missing else {}),
        }
    )

    def work() -> EnvironmentRecord:
        log.unlink(missing_ok=True)
        stage.refuse_failed_base(base)
        if interpreter.failure is not None:
            raise StageFailed(
                "interpreter", interpreter.failure.message, hint=interpreter.failure.hint
            )
        below = _check_base(plan, base)
        if no_lock is not None:
            raise no_lock
        if lock is not None:
            lock.check_python(interpreter.python)
        listed = requirements_of(plan, clones)
        files = lock.files if lock else None
        with (
            named_in_failures(missing),
            _workshop(plan, below, interpreter, store, log, files) as shop,
        ):
            record = _build(
                shop, plan, below, interpreter, (*listed.packages, *plan.packages), lock
            )
        made = [
            make_service(service(name), plan, below, interpreter, store=store, log=log, lock=files)
            for name in plan.services
        ]
        return replace(
            record,
            dropped=(*plan.dropped, *listed.dropped),
            missing_packages=missing,
            layers=(*record.layers, *(item.layer for item in made)),
            network=_with_files(record.network, [file for item in made for file in item.files]),
        )

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


def _with_files(use: NetworkUse, files: Sequence[IndexFile]) -> NetworkUse:
    """What the environment asked of the index, and its services did: a rebuild needs all of it."""
    return replace(use, files=tuple(dict.fromkeys((*use.files, *files))))


def _lock_of(
    plan: EnvironmentPlan, path: Path | None
) -> tuple[locks.Lock | None, StageFailed | None]:
    """The lock to build from, or why it cannot be had, which is for the record to say."""
    if path is None and not plan.lock:
        return None, None
    try:
        return locks.environment_lock(path or Path(plan.lock), plan), None
    except StageFailed as error:
        return None, error


def _check_base(plan: EnvironmentPlan, base: BaseRecord | None) -> tuple[LayerRef, ...]:
    """The layers of a packed base. Where the host is the base, what is compiled here is compiled
    against this machine: it has to be the one planned for.
    """
    if plan.base.get("kind") != "host":
        if base is None or base.base != plan.base:
            raise StageFailed(
                "base", f"this is not the record of the base {plan.base.get('kind')} planned for"
            )
        return base.layers
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
    return ()


def _shim_digest() -> str:
    return keys.digest_of([_shim_text(name) for name in (*(item[0] for item in _SHIM), _LOCALES)])


def _shim_text(name: str) -> str:
    return (resources.files("minisandbox.build") / "shim" / name).read_text(encoding="utf-8")


def _build(
    shop: Workshop,
    plan: EnvironmentPlan,
    below: Sequence[LayerRef],
    interpreter: InterpreterRecord,
    packages: Sequence[str],
    lock: locks.Lock | None,
) -> EnvironmentRecord:
    assert interpreter.layer is not None
    _create_venv(shop, interpreter)
    _furnish(shop, interpreter)
    for command in plan.pre_install:
        shop.run(
            command,
            failure="environment",
            what=f"pre_install `{command}`",
            timeout=plan.timeout,
            env=plan.env,
        )
    python = Version(interpreter.python)
    _modernise(shop, plan, python)
    if plan.complete:
        # Source releases among the others are built with these versions, not with newer ones.
        _install(shop, plan, python, [item for item in packages if _BUILDERS.match(item)])
    _install(shop, plan, python, packages)
    _install(shop, plan, python, plan.pip_packages)
    resolved = _list_packages(shop)
    if lock is not None:
        lock.check(resolved)
    _check_paths(shop)
    use = shop.network_use()
    layer = shop.pack("environment")
    return stage.new(
        EnvironmentRecord,
        python=interpreter.python,
        prefix=interpreter.prefix,
        base=plan.base,
        **shop.ran_under,
        packages=resolved,
        lock_key=plan.lock_key,
        reach=plan.network,
        network=use,
        layers=(*below, interpreter.layer, layer),
        stage_seconds=shop.seconds,
        tools=stage.versions(["virtualenv", "uv", "swe-minisandbox"]),
    )


@contextmanager
def _workshop(
    plan: EnvironmentPlan,
    below: Sequence[LayerRef],
    interpreter: InterpreterRecord,
    store: Store,
    log: Path,
    files: tuple[IndexFile, ...] | None,
) -> Generator[Workshop]:
    from uv import find_uv_bin

    if interpreter.layer is None:
        raise StageFailed("interpreter", f"the record of Python {plan.python} names no layer")
    binds = (
        Bind(source=virtualenv_folder(Path(plan.tools)), target=f"{TOOLS}/virtualenv"),
        Bind(source=Path(find_uv_bin()), target=f"{TOOLS}/bin/uv"),
    )
    with Workshop(
        [*below, interpreter.layer],
        store=store,
        network=plan.network,
        log=log,
        name=plan.slug,
        binds=binds,
        env={"SOURCE_DATE_EPOCH": str(unix_date(plan.date or DEFAULT_DATE))},
        index=IndexAccess(Path(plan.index_cache), plan.date, files),
        limits=limits_from(plan.limits, where=f"plan of environment {plan.slug}"),
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


def _furnish(shop: Workshop, interpreter: InterpreterRecord) -> None:
    """What scripts written for a conda environment expect of this one."""
    for name, target, mode in _SHIM:
        shop.sandbox.write_file(target, _shim_text(name), mode=mode)
    # conda's python finds its packages through whichever link it is started by; that of a virtual
    # environment only through its own. tox-current-env, for one, links to it from elsewhere. The
    # interpreter below serves this one environment, so it may always see it.
    site = f"{{prefix}}/lib/python{'.'.join(interpreter.python.split('.')[:2])}/site-packages"
    shop.sandbox.write_file(
        f"{site.format(prefix=interpreter.prefix)}/testbed.pth",
        f"import site; site.addsitedir({site.format(prefix=VENV)!r})\n",
    )
    shop.run(
        ["/bin/sh", "-eus", "--", LOCALES, WHEELHOUSE],
        stdin=_shim_text(_LOCALES).encode(),
        failure="environment",
        what="making the locales",
        purpose="venv",
        timeout=60,
        quiet=True,
    )


_BUILDERS = re.compile(r"(pip|setuptools|wheel)\b(?!-)", re.IGNORECASE)

#: pip, before its options; what it compiles would only be left out of the layer.
_PIP = (f"{VENV}/bin/python", "-m", "pip", "install", "--no-compile", "--progress-bar", "off")


def _modernise(shop: Workshop, plan: EnvironmentPlan, python: Version) -> None:
    """Replace what an old interpreter brings along: it is older than the formats of packages."""
    if plan.network == "none" or supports(str(python)):
        return
    shop.run(
        [*_PIP, "--upgrade", "pip", "setuptools", "wheel"],
        failure="environment",
        what="upgrading pip",
        purpose="install",
        timeout=plan.timeout,
    )


def _install(
    shop: Workshop, plan: EnvironmentPlan, python: Version, packages: Sequence[str]
) -> None:
    if not packages:
        return
    if plan.installer == "uv" and python >= UV_SUPPORTS:
        argv = ["uv", "pip", "install", "--python", f"{VENV}/bin/python", "--no-progress"]
        if plan.date and plan.network == "host":
            argv += ["--exclude-newer", plan.date]
    else:
        argv = list(_PIP)
        if plan.date and plan.network == "host":
            argv += _pip_date(shop, plan.date)
    if plan.complete:
        argv.append("--no-deps")
    listing = "/run/requirements.txt"
    shop.sandbox.write_file(listing, "".join(f"{package}\n" for package in packages))
    shop.run(
        [*argv, "-r", listing],
        failure="environment",
        what="installing the packages",
        purpose="install",
        timeout=plan.timeout,
        env=plan.env,
        hint=_package_hint(plan),
    )


def _package_hint(plan: EnvironmentPlan) -> str:
    """What to look at where packages cannot be installed."""
    hint = "see 'packages' in the recipe"
    if plan.date and plan.network != "none":
        # Installers say of a release that is too new only that there is none.
        hint += f"; what was uploaded after its 'date', {plan.date}, is not there for it"
    return hint


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


def _list_packages(shop: Workshop) -> tuple[str, ...]:
    listing = shop.run(
        [f"{VENV}/bin/python", "-m", "pip", "list", "--format=freeze"],
        failure="environment",
        what="listing the packages",
        purpose="list",
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
