"""The interpreter stage: find (or have uv install) a CPython, and pack it as a layer of its own.

Inside it lives below ``/opt/python/<version>``, so that a node needs no Python for the instances it
runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from minisandbox import keys, process
from minisandbox.build import relocate, stage
from minisandbox.build.workshop import TOOLS, Workshop
from minisandbox.errors import ProcessFailed, StageFailed
from minisandbox.records import codec
from minisandbox.records.layer import LayerRef
from minisandbox.records.plan import InterpreterPlan
from minisandbox.records.stages import BaseRecord, InterpreterRecord
from minisandbox.runtime.stack import CompilingFailed
from minisandbox.sandbox import Bind
from minisandbox.store import Store

#: Seconds for a candidate to say its version, and for uv to install one.
_PROBE_TIMEOUT = 30
_INSTALL_TIMEOUT = 600

_PROBE = (
    "import json, platform, sys; print(json.dumps(["
    "platform.python_implementation(), platform.python_version(), "
    "getattr(sys, 'base_prefix', sys.prefix), "
    "sys.executable]))"
)
#: Modules that some builds lack and a build may yet do without.
_OPTIONAL = ("ctypes", "bz2", "lzma", "sqlite3", "readline")
#: What to do about one that does not run where it was copied to.
_HINT = (
    "if it was built with --enable-shared, its library must be found from $ORIGIN; "
    "if for a newer C library than the base has, take another from 'interpreters'"
)
#: Kinds of failures that say something of one interpreter, and nothing of the next.
_OF_ONE = ("interpreter", "program")


@dataclass(frozen=True)
class Candidate:
    """An interpreter that runs: its version, installation prefix and executable on the host."""

    place: str
    version: str
    prefix: Path
    executable: Path


def run(
    plan_path: Path, record_path: Path, attempt: stage.Attempt, *, base_path: Path | None = None
) -> stage.Ended:
    """``minisandbox build interpreter``; ``base_path`` is the record of a packed base, on which
    the interpreter then has to run.
    """
    plan = codec.read(InterpreterPlan, plan_path)
    base = codec.read(BaseRecord, base_path) if base_path is not None else None
    below = base.layers if base is not None else ()
    store = Store(Path(plan.store))
    log = record_path.with_suffix(".log")
    script = Path(relocate.__file__).read_text(encoding="utf-8")
    inputs = keys.digest_of(
        {"python": plan.python, "places": list(plan.places), "copied_by": script}
        | stage.base_inputs(base)
    )

    def work() -> InterpreterRecord:
        log.unlink(missing_ok=True)
        stage.refuse_failed_base(base)
        return _first_usable(plan, below, store, log)

    return stage.run_stage(
        InterpreterRecord,
        record_path,
        stage="interpreter",
        key=plan.slug,
        inputs=inputs,
        log=log,
        work=work,
        attempt=attempt,
        store=store,
    )


def matches(version: str, request: str) -> bool:
    """Whether ``3.11.7`` is what ``3.11`` or ``>=3.11`` asks for."""
    if re.fullmatch(r"\d+\.\d+(\.\d+)?", request):
        return version == request or version.startswith(request + ".")
    return SpecifierSet(request).contains(version)


def preference(version: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sort key, best first: the lowest minor version (nearest to what a recipe was written for),
    its newest patch.
    """
    release = Version(version).release
    return release[:2], tuple(-part for part in release[2:])


def _first_usable(
    plan: InterpreterPlan, base: Sequence[LayerRef], store: Store, log: Path
) -> InterpreterRecord:
    """The first that can be copied and then runs; the record says which could not, and why."""
    patchelf = _patchelf()
    looked_in: list[str] = []
    refused: list[StageFailed] = []
    for candidate in _candidates(plan, looked_in):
        try:
            return _pack(candidate, looked_in, plan, base, patchelf, store, log)
        except StageFailed as error:
            if error.kind not in _OF_ONE:
                raise
            refused.append(error)
            looked_in.append(f"{candidate.place}: {candidate.executable} ({error.message})")
    if len(refused) == 1:
        raise refused[0]
    if refused:
        told = "; ".join(error.message for error in refused)
        raise StageFailed(
            "interpreter",
            f"no Python {plan.python} of this machine can be used: {told}",
            hint=refused[0].hint,
        )
    raise StageFailed(
        "interpreter",
        f"there is no Python {plan.python} on this machine (looked in {'; '.join(looked_in)})",
        hint=f"install it, for instance with `uv python install {plan.python}`, or name the "
        "folder that holds it in 'interpreters'",
    )


def _candidates(plan: InterpreterPlan, looked_in: list[str]) -> Iterator[Candidate]:
    """What fits, best first; what uv has to install comes last."""
    seen: set[Path] = set()
    for place in plan.places:
        candidates = [
            candidate
            for path in _executables(place, looked_in)
            if (candidate := _probe(place, path))
        ]
        fitting = [item for item in candidates if matches(item.version, plan.python)]
        for candidate in sorted(fitting, key=lambda item: preference(item.version)):
            if candidate.executable not in seen:
                seen.add(candidate.executable)
                yield candidate
    if "uv" in plan.places:
        installed = _install(plan.python, looked_in)
        if installed is not None and installed.executable not in seen:
            yield installed


def _executables(place: str, looked_in: list[str]) -> Iterator[Path]:
    """Python executables in one configured place, each installation once."""
    seen: set[Path] = set()
    for root, pattern in _patterns(place):
        found: list[Path] = []
        try:
            readable = not root.is_dir() or os.access(root, os.R_OK | os.X_OK)
            found += sorted(root.glob(pattern))
        except PermissionError:  # below /root, say, where a variable of another user points
            readable = False
        looked_in.append(f"{place}: {root}/{pattern}" + ("" if readable else " (cannot be read)"))
        for path in found:
            real = path.resolve()
            if (
                real not in seen
                and re.fullmatch(r"python(\d(\.\d+)?)?", path.name)
                and os.access(real, os.X_OK)
            ):
                seen.add(real)
                yield path


def _patterns(place: str) -> Iterator[tuple[Path, str]]:
    home = Path.home()
    if place == "uv":
        data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
        yield Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python"), "*/bin/python3.*"
    elif place == "pyenv":
        yield Path(os.environ.get("PYENV_ROOT") or home / ".pyenv") / "versions", "*/bin/python3.*"
    elif place == "conda":
        roots = [
            home / "miniconda3",
            home / "anaconda3",
            home / "miniforge3",
            Path("/opt/conda"),
            Path("/opt/miniconda3"),
        ]
        if prefix := os.environ.get("CONDA_PREFIX"):
            roots.insert(0, Path(prefix))
        for root in roots:
            yield root, "bin/python3.*"
            yield root, "envs/*/bin/python3.*"
    elif place == "system":
        for folder in ("/usr/bin", "/usr/local/bin", "/bin"):
            yield Path(folder), "python3.*"
    else:
        yield Path(place).expanduser(), "bin/python3*"
        yield Path(place).expanduser(), "*/bin/python3*"


def _probe(place: str, path: Path) -> Candidate | None:
    try:
        done = process.run([path, "-I", "-c", _PROBE], timeout=_PROBE_TIMEOUT, check=False)
        implementation, version, prefix, executable = json.loads(done.stdout)
    except (OSError, ProcessFailed, ValueError):
        return None
    if implementation != "CPython" or not re.fullmatch(r"\d+\.\d+\.\d+", version):
        return None  # a release candidate's byte-code and ABI are not those of the release
    return Candidate(place, version, Path(prefix).resolve(), Path(executable).resolve())


def _install(python: str, looked_in: list[str]) -> Candidate | None:
    """Ask uv for a managed CPython; it needs a network that not every machine has."""
    from uv import find_uv_bin

    request = python if python[0].isdigit() else f"cpython{python}"
    uv = find_uv_bin()
    try:
        process.run([uv, "python", "install", request], timeout=_INSTALL_TIMEOUT)
        found = process.run([uv, "python", "find", "--managed-python", request])
    except (OSError, ProcessFailed) as error:
        said = error.output if isinstance(error, ProcessFailed) else str(error)
        last = " ".join(said.split())[-160:]
        looked_in.append(f"uv: downloads of {request} ({last or 'no answer'})")
        return None
    looked_in.append(f"uv: downloads of {request}")
    return _probe("uv", Path(found.stdout.decode().strip()))


def _pack(
    candidate: Candidate,
    looked_in: Sequence[str],
    plan: InterpreterPlan,
    base: Sequence[LayerRef],
    patchelf: Path,
    store: Store,
    log: Path,
) -> InterpreterRecord:
    target = f"/opt/python/{candidate.version}"
    of_system = candidate.prefix in (Path("/usr"), Path("/"))
    binds = [Bind(source=patchelf, target=f"{TOOLS}/bin/patchelf")]
    inside = str(candidate.executable)
    if not of_system:
        binds.append(Bind(source=candidate.prefix, target=f"{TOOLS}/prefix"))
        inside = f"{TOOLS}/prefix/{candidate.executable.relative_to(candidate.prefix)}"
    script = Path(relocate.__file__).read_bytes()
    with Workshop(
        [], store=store, network="none", log=log, name=f"interpreter-{plan.slug}", binds=binds
    ) as shop:
        shop.run(
            [inside, "-I", "-", target, str(candidate.prefix)],
            stdin=script,
            failure="interpreter",
            what=f"copying {candidate.executable}",
            purpose="copy",
            timeout=600,
            quiet=True,
            env=None if of_system else {"LD_LIBRARY_PATH": f"{TOOLS}/prefix/lib"},
            hint=f"check that {candidate.prefix} is a whole installation that everyone may read",
        )
        layer = shop.pack("interpreter")
    try:
        version, missing = _tried(candidate, [*base, layer], store, log, plan.slug)
    except CompilingFailed as error:  # it is the first thing that a stack has its Python do
        raise StageFailed(
            "interpreter",
            f"the copied Python {candidate.version} of {candidate.prefix} does not run: "
            f"{error.said or error.exit_code}",
            hint=_HINT,
        ) from None
    with log.open("a", encoding="utf-8") as file:
        file.write(f"modules it lacks: {', '.join(missing) or 'none'}\n")
    return stage.new(
        InterpreterRecord,
        python=version,
        prefix=target,
        source=f"{candidate.place}: {candidate.executable}",
        looked_in=tuple(looked_in),
        layer=layer,
    )


def _tried(
    candidate: Candidate, layers: Sequence[LayerRef], store: Store, log: Path, slug: str
) -> tuple[str, list[str]]:
    """What the copied interpreter says of its version, and optional modules that it lacks."""
    python = f"/opt/python/{candidate.version}/bin/python{_minor(candidate)}"
    of_whom = f"the copied Python {candidate.version} of {candidate.prefix}"
    with Workshop(layers, store=store, network="none", log=log, name=f"interpreter-{slug}") as shop:
        runs = shop.run(
            [python, "-I", "-c", "import sys, zlib, venv; print(sys.version.split()[0])"],
            failure="interpreter",
            what=of_whom,
            timeout=60,
            hint=_HINT,
        )
        shop.run(
            [python, "-I", "-c", "import ssl"],
            failure="interpreter",
            what=f"importing ssl, without which nothing can be installed, by {of_whom}",
            timeout=60,
        )
        missing = [name for name in _OPTIONAL if not _has_module(shop, python, name)]
    return runs.text.strip(), missing


def _minor(candidate: Candidate) -> str:
    return ".".join(candidate.version.split(".")[:2])


def _patchelf() -> Path:
    """The patchelf program that is installed with the pipeline."""
    found = shutil.which(
        "patchelf", path=f"{sys.prefix}/bin{os.pathsep}{os.environ.get('PATH', '')}"
    )
    if found is None:
        raise StageFailed(
            "interpreter", "there is no patchelf", hint="install swe-minisandbox[build]"
        )
    return Path(found)


def _has_module(shop: Workshop, python: str, name: str) -> bool:
    return shop.sandbox.run([python, "-I", "-c", f"import {name}"], timeout=60).exit_code == 0
