"""Making the layers of services: each in a build sandbox of its own, without the environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from minisandbox.build.index.egress import IndexAccess
from minisandbox.build.services import Service
from minisandbox.build.workshop import TOOLS, Workshop
from minisandbox.errors import StageFailed
from minisandbox.records.layer import LayerRef
from minisandbox.records.lock import IndexFile
from minisandbox.records.plan import EnvironmentPlan
from minisandbox.records.stages import InterpreterRecord
from minisandbox.runtime.services import SERVICES
from minisandbox.sandbox import Bind
from minisandbox.store import Store


@dataclass(frozen=True)
class ServiceLayer:
    """A packed service, and the files of the index that it was made of."""

    layer: LayerRef
    files: tuple[IndexFile, ...]


def make_service(
    wanted: Service,
    plan: EnvironmentPlan,
    below: Sequence[LayerRef],
    interpreter: InterpreterRecord,
    *,
    store: Store,
    log: Path,
    lock: tuple[IndexFile, ...] | None,
) -> ServiceLayer:
    """Install a service on a base and an interpreter, and pack it; raises ``StageFailed``."""
    from uv import find_uv_bin

    assert interpreter.layer is not None
    if not SpecifierSet(wanted.python).contains(interpreter.python):
        raise StageFailed(
            "environment",
            f"service {wanted.name} needs Python {wanted.python}, and the environment has "
            f"{interpreter.python}",
            hint="remove it from 'services' in the recipe",
        )
    folder = f"{SERVICES}/{wanted.name}"
    python = f"{folder}/venv/bin/python"
    what = f"service {wanted.name}"
    with Workshop(
        [*below, interpreter.layer],
        store=store,
        network=plan.network,
        log=log,
        name=f"{plan.slug}-{wanted.name}",
        binds=(Bind(source=Path(find_uv_bin()), target=f"{TOOLS}/bin/uv"),),
        index=IndexAccess(Path(plan.index_cache), lock=lock),
    ) as shop:
        base = f"{interpreter.prefix}/bin/python3"
        listing = "/run/requirements.txt"
        for name, text in wanted.files.items():
            shop.sandbox.write_file(f"{folder}/{name}", text, mode=0o755)
        shop.sandbox.write_file(listing, "".join(f"{item}\n" for item in wanted.packages))
        # There is no wheelhouse here, and uv insists on one that it was told of.
        uv = ["env", "-u", "UV_FIND_LINKS", "uv", "pip", "install", "--python", python]
        install = [*uv, "--no-deps", "--no-progress"]
        for command in (
            [base, "-m", "venv", "--without-pip", f"{folder}/venv"],
            [*install, "-r", listing],
            [python, "-I", f"{folder}/{wanted.prepare}"],
        ):
            shop.run(
                command,
                failure="environment",
                what=what,
                purpose="services",
                cwd=folder,
                timeout=plan.timeout,
            )
        files = shop.network_use().files
        return ServiceLayer(shop.pack("service"), files)
