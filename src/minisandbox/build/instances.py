"""The instances stage: checkout on top of the environment, install inside the sandbox, smoke test,
pack.

A batch is one job. Each instance that is finished is kept beside the batch's record until that is
written, so that an interrupted batch goes on where it was, and a changed one rebuilds only what
changed.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from minisandbox import keys
from minisandbox.build import stage
from minisandbox.build.checkout import INDEX, commit_install, make_checkout
from minisandbox.build.rows import complete, release_row
from minisandbox.build.workshop import Workshop
from minisandbox.errors import EXIT_OK, StageFailed
from minisandbox.records import codec
from minisandbox.records.plan import BatchPlan, InstancePlan
from minisandbox.records.stages import (
    CloneRecord,
    EnvironmentRecord,
    InstanceRecord,
    InstancesRecord,
)
from minisandbox.runtime.instance import TESTBED
from minisandbox.store import Store

#: Exit codes of ``pytest --collect-only`` that tell of a usable runner: collected, errors in
#: tests, no tests.
_COLLECTED = (0, 2, 5)


@dataclass(frozen=True)
class _Batch:
    """What one job works with."""

    plan: BatchPlan
    environment: EnvironmentRecord
    clones: Mapping[str, CloneRecord]
    store: Store
    folder: Path


def run(
    plan_path: Path,
    environment_path: Path,
    clone_paths: Sequence[Path],
    record_path: Path,
    attempt: stage.Attempt,
) -> stage.Ended:
    """``minisandbox build instances``."""
    plan = codec.read(BatchPlan, plan_path)
    clones = [codec.read(CloneRecord, path) for path in clone_paths]
    batch = _Batch(
        plan=plan,
        environment=codec.read(EnvironmentRecord, environment_path),
        clones={clone.key: clone for clone in clones},
        store=Store(Path(plan.store)),
        folder=record_path.parent,
    )
    inputs = [_inputs(batch, instance) for instance in plan.instances]
    finished = stage.Finished(InstanceRecord, InstancesRecord, record_path, store=batch.store)

    def work() -> InstancesRecord:
        records: list[InstanceRecord] = []
        for instance, digest in tqdm(
            list(zip(plan.instances, inputs, strict=True)),
            desc=f"build {plan.environment}",
            unit="instance",
        ):
            records.append(
                finished.get(instance.instance_id, digest)
                or _make(batch, instance, digest, attempt)
            )
            finished.keep(records[-1])
        return stage.new(InstancesRecord, environment=plan.environment, instances=tuple(records))

    ended = stage.run_stage(
        InstancesRecord,
        record_path,
        stage="instances",
        key=f"{plan.environment}/{plan.slug}",
        inputs=keys.digest_of(inputs),
        log=record_path.with_suffix(".log"),
        work=work,
        attempt=attempt,
        store=batch.store,
    )
    if ended.exit_code == EXIT_OK:
        finished.forget()
    return ended


def _inputs(batch: _Batch, instance: InstancePlan) -> str:
    """Everything that decides an instance's layers, and nothing that only its validation reads."""
    recipe = batch.plan.recipe
    clone = batch.clones.get(keys.slug(instance.repo))
    return keys.digest_of(
        {
            "instance_id": instance.instance_id,
            "base_commit": instance.base_commit,
            "release": codec.encode(instance.release) if instance.release else None,
            "commits": dict(clone.commits) if clone and instance.release else {},
            "clone": codec.encode(clone.failure) if clone and clone.failure else None,
            "environment": [layer.digest for layer in batch.environment.layers],
            "environment_failure": codec.encode(batch.environment.failure)
            if batch.environment.failure
            else None,
            "install": [
                recipe.install,
                list(recipe.imports),
                dict(recipe.env),
                list(recipe.test_paths),
                recipe.test,
            ],
            "history": batch.plan.history,
            "network": batch.plan.network,
        }
    )


def _make(
    batch: _Batch, instance: InstancePlan, inputs: str, attempt: stage.Attempt
) -> InstanceRecord:
    log = batch.folder / "logs" / f"{instance.instance_id}.build.log"

    def work() -> InstanceRecord:
        log.unlink(missing_ok=True)
        return _build(batch, instance, log)

    return stage.make(
        InstanceRecord,
        stage="instances",
        key=instance.instance_id,
        inputs=inputs,
        log=log,
        work=work,
        attempt=attempt,
    )


def _build(batch: _Batch, instance: InstancePlan, log: Path) -> InstanceRecord:
    environment, recipe = batch.environment, batch.plan.recipe
    if environment.failure is not None:
        kind = "interpreter" if environment.failure.kind == "interpreter" else "environment"
        raise StageFailed(kind, environment.failure.message, hint=environment.failure.hint)
    clone = batch.clones.get(keys.slug(instance.repo))
    if clone is None:
        raise StageFailed("internal", f"no clone record was given for {instance.repo}")
    if clone.failure is not None:
        raise StageFailed(clone.failure.kind, clone.failure.message, hint=clone.failure.hint)
    row = release_row(instance, recipe, clone)
    clock = stage.Clock()
    checkout = make_checkout(
        Path(clone.mirror),
        complete(instance, row).base_commit,
        history=batch.plan.history,
        store=batch.store,
        log=log,
        name=instance.instance_id,
        url=clone.url,
    )
    seconds = {"checkout": clock.seconds}
    below = (*environment.layers, checkout.layer)
    with Workshop(
        below,
        store=batch.store,
        network=batch.plan.network,
        log=log,
        name=instance.instance_id,
        env={"SOURCE_DATE_EPOCH": str(checkout.date), **recipe.env},
    ) as shop:
        if recipe.install.strip():
            shop.run(
                recipe.install,
                failure="install",
                what="the install command",
                purpose="install",
                cwd=TESTBED,
                timeout=recipe.timeout,
                hint="see 'install' in the recipe",
            )
        _smoke(shop, batch)
        head = commit_install(shop, date=checkout.date)
        layer = shop.pack("instance", date=checkout.date, newer=frozenset({INDEX}))
        seconds |= shop.seconds
    return stage.new(
        InstanceRecord,
        base_commit=checkout.commit,
        head_commit=head.commit,
        head_tree=head.tree,
        layers=(*below, layer),
        release=row,
        stage_seconds=seconds,
        tools=stage.versions(["swe-minisandbox"]),
    )


def _smoke(shop: Workshop, batch: _Batch) -> None:
    """The package imports, and its test runner starts; what the tests say is for the validation to
    find out.
    """
    recipe = batch.plan.recipe
    if recipe.imports:
        shop.run(
            ["python", "-c", f"import {', '.join(recipe.imports)}"],
            failure="smoke",
            what="importing the package",
            purpose="smoke",
            cwd=TESTBED,
            timeout=recipe.timeout,
            env=recipe.env,
        )
    if recipe.parser == "pytest":
        collect = f"{recipe.test} --collect-only -q > /tmp/collected 2>&1; code=$?"
        usable = "|".join(map(str, _COLLECTED))
        shop.run(
            f"{collect}; tail -n 20 /tmp/collected; "
            f"case $code in {usable}) ;; *) exit $code ;; esac",
            failure="smoke",
            what="collecting the tests",
            purpose="smoke",
            cwd=TESTBED,
            timeout=recipe.timeout,
            env=recipe.env,
            hint=f"see 'test' in the recipe: {shlex.quote(recipe.test)}",
        )
    # What running the code left behind is no part of the install.
    shop.sandbox.run("rm -rf .pytest_cache .hypothesis", cwd=TESTBED, timeout=60)
