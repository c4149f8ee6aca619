"""The instances stage: checkout on top of the environment, install inside the sandbox, smoke test,
pack; or a bug put into what was built so of its healthy commit.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minisandbox import keys
from minisandbox.build import batches, stage
from minisandbox.build.build_files import fetch_files, put
from minisandbox.build.checkouts.bugs import METHOD, plant
from minisandbox.build.checkouts.checkout import (
    INDEX,
    commit_install,
    make_checkout,
    scripts_digest,
)
from minisandbox.build.checkouts.lending import lent_history
from minisandbox.build.checkouts.rows import complete, release_row
from minisandbox.build.checkouts.scm_versions import pretended_versions
from minisandbox.build.checkouts.slimming import slim
from minisandbox.build.checkouts.submodules import mirrored, submodules_at
from minisandbox.build.index import locks
from minisandbox.build.index.egress import IndexAccess
from minisandbox.build.index.wheelhouse import pack_wheelhouse
from minisandbox.build.system_packages import named_in_failures
from minisandbox.build.workshop import TOOLS, Workshop
from minisandbox.errors import InvalidInput, StageFailed
from minisandbox.evaluate.grading import Grader, GraderFailed, GraderUnavailable, TestFiles
from minisandbox.evaluate.judging import grader_of_recipe, task_of_plan
from minisandbox.evaluate.patches import patched_paths
from minisandbox.records import codec
from minisandbox.records.plan import BatchPlan, InstancePlan
from minisandbox.records.stages import (
    CloneRecord,
    EnvironmentRecord,
    FoundRow,
    InstanceRecord,
    InstancesRecord,
)
from minisandbox.runtime.instance import TESTBED
from minisandbox.runtime.profiles import limits_from
from minisandbox.sandbox import Bind, Limits
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
    commits: Mapping[str, InstanceRecord]
    store: Store
    folder: Path
    earlier: locks.InstanceLocks | None
    limits: Limits

    @functools.cached_property
    def grader(self) -> Grader:
        return grader_of_recipe(self.plan.recipe, tools=Path(self.plan.tools))

    @functools.cached_property
    def test_files(self) -> Mapping[str, TestFiles | GraderFailed]:
        """The files of the tests of all bugs, asked for once, when one is needed."""
        tasks = [task_of_plan(item) for item in self.plan.instances if item.bug]
        try:
            return self.grader.test_files(tasks)
        except GraderUnavailable as error:
            raise StageFailed("grader", str(error), transient=error.transient) from error


def run(
    plan_path: Path,
    environment_path: Path,
    clone_paths: Sequence[Path],
    record_path: Path,
    attempt: stage.Attempt,
    *,
    commit_paths: Sequence[Path] = (),
    lock_path: Path | None = None,
) -> stage.Ended:
    """``minisandbox build instances``; ``commit_paths`` are records of this stage that hold the
    healthy commits which bugs are put into, ``lock_path`` is the record of an earlier build, whose
    index files are used and no others.
    """
    plan = codec.read(BatchPlan, plan_path)
    clones = [codec.read(CloneRecord, path) for path in clone_paths]
    missing = {keys.slug(item.repo) for item in plan.instances} - {clone.key for clone in clones}
    if missing:
        raise InvalidInput("--clone", f"the record of {', '.join(sorted(missing))} is not given")
    commits = {
        record.key: record
        for path in commit_paths
        for record in codec.read(InstancesRecord, path).instances
    }
    if unknown := {item.healthy for item in plan.instances if item.bug} - commits.keys():
        raise InvalidInput("--commit", f"the record of {', '.join(sorted(unknown))} is not given")
    batch = _Batch(
        plan=plan,
        commits=commits,
        environment=codec.read(EnvironmentRecord, environment_path),
        clones={clone.key: clone for clone in clones},
        store=Store(Path(plan.store)),
        folder=record_path.parent,
        earlier=locks.InstanceLocks(lock_path or Path(plan.lock), plan)
        if lock_path or plan.lock
        else None,
        limits=limits_from(plan.limits, where=str(plan_path)),
    )
    members = [
        batches.Member(
            key=instance.instance_id,
            inputs=_inputs(batch, instance),
            log=_log(batch, instance),
            work=functools.partial(_build_bug if instance.bug else _build, batch, instance),
        )
        for instance in plan.instances
    ]
    return batches.run_batch(
        InstanceRecord,
        InstancesRecord,
        record_path,
        members,
        name="instances",
        environment=plan.environment,
        attempt=attempt,
        store=batch.store,
    )


def _log(batch: _Batch, instance: InstancePlan) -> Path:
    return batch.folder / "logs" / f"{instance.instance_id}.build.log"


def _inputs(batch: _Batch, instance: InstancePlan) -> str:
    """Everything that decides an instance's layers, and nothing that only its validation reads."""
    if instance.bug:
        return _inputs_of_bug(batch, instance)
    recipe = batch.plan.recipe
    clone = batch.clones[keys.slug(instance.repo)]
    release = instance.release
    commits = (
        [clone.commits.get(release.before), clone.commits.get(release.after)] if release else []
    )
    failures = [clone.failure, batch.environment.failure]
    missing = batch.environment.missing_packages
    return keys.digest_of(
        {
            "instance_id": instance.instance_id,
            "base_commit": instance.base_commit,
            "release": codec.encode(release) if release else None,
            "commits": commits,
            "environment": [layer.digest for layer in batch.environment.layers],
            "failures": [[item.kind, item.message] for item in failures if item is not None],
            "install": [
                recipe.install,
                list(recipe.imports),
                dict(recipe.env),
                list(recipe.test_paths),
                recipe.test,
            ],
            "history": batch.plan.history,
            "network": batch.plan.network,
            "date": recipe.date,
            "lock": _lock_text(batch, instance),
            "smoke": [recipe.parser, recipe.grader],
            "scripts": scripts_digest(),
            **({"submodules": list(recipe.submodules)} if recipe.submodules else {}),
            # Wherever it comes from, it is the same file.
            **(
                {"files": [[file.sha256, file.path] for file in recipe.files]}
                if recipe.files
                else {}
            ),
            **({"missing_packages": list(missing)} if missing else {}),
        }
    )


def _inputs_of_bug(batch: _Batch, instance: InstancePlan) -> str:
    """What decides the layer of a bug."""
    recipe, healthy = batch.plan.recipe, batch.commits[instance.healthy]
    failure = healthy.failure
    return keys.digest_of(
        {
            "instance_id": instance.instance_id,
            "bug": instance.bug,
            "commit": [layer.digest for layer in healthy.layers],
            "env": dict(healthy.env),
            "failure": [failure.kind, failure.message] if failure else None,
            "rebuild": [recipe.rebuild, dict(recipe.env)] if recipe.rebuild else None,
            # They say which files are hidden.
            "tests": [instance.fail_to_pass, instance.pass_to_pass, dict(batch.grader.identity)],
            "scripts": [METHOD, scripts_digest(), scripts_digest("bugs")],
        }
    )


def _build_bug(batch: _Batch, instance: InstancePlan) -> InstanceRecord:
    """A bug in its healthy commit, with nothing installed anew."""
    healthy, recipe, log = batch.commits[instance.healthy], batch.plan.recipe, _log(batch, instance)
    if healthy.failure is not None:
        raise StageFailed(healthy.failure.kind, healthy.failure.message, hint=healthy.failure.hint)
    tests = batch.test_files[instance.instance_id]
    if isinstance(tests, GraderFailed):
        raise StageFailed("grader", tests.reason)
    with Workshop(
        healthy.layers,
        store=batch.store,
        network="none",
        log=log,
        name=instance.instance_id,
        env={**healthy.env, **recipe.env},
        limits=batch.limits,
    ) as shop:
        clock = stage.Clock()
        planted = plant(
            shop,
            instance.bug,
            hidden=tests.fail_to_pass,
            rebuild=recipe.rebuild,
            timeout=batch.plan.timeout,
        )
        seconds = clock.seconds
        if recipe.rebuild:
            slim(shop)
        hidden = patched_paths(planted.test_patch)
        if both := sorted({*patched_paths(instance.bug)} & {*hidden}):
            raise StageFailed(
                "patch", f"the bug changes {both[0]}, which holds tests that are to find it"
            )
        layer = shop.pack("bug", newer=frozenset({INDEX}))
        shop.seconds["bug"] = seconds
    trusted = planted.tracked & {*tests.pass_to_pass} - {*hidden}
    return stage.new(
        InstanceRecord,
        base_commit=healthy.base_commit,
        head_commit=planted.head.commit,
        head_tree=planted.head.tree,
        layers=(*healthy.layers, layer),
        env=healthy.env,
        network=shop.network_use(),
        **shop.ran_under,
        found=FoundRow(
            base_commit=healthy.base_commit,
            patch="",
            test_patch=planted.test_patch,
            problem_statement="",
            trusted_files=tuple(sorted(trusted)),
        ),
        stage_seconds=shop.seconds,
        tools=stage.versions(["swe-minisandbox"]),
    )


def _build(batch: _Batch, instance: InstancePlan) -> InstanceRecord:
    environment, recipe, log = batch.environment, batch.plan.recipe, _log(batch, instance)
    if environment.failure is not None:
        kind = environment.failure.kind
        kind = kind if kind in ("base", "interpreter") else "environment"
        raise StageFailed(kind, environment.failure.message, hint=environment.failure.hint)
    clone = batch.clones[keys.slug(instance.repo)]
    if clone.failure is not None:
        raise StageFailed(clone.failure.kind, clone.failure.message, hint=clone.failure.hint)
    row = release_row(instance, recipe, clone)
    given = fetch_files(recipe.files, Path(batch.plan.files_cache))
    clock = stage.Clock()
    commit = complete(instance, row).base_commit
    submodules = submodules_at(Path(clone.mirror), commit, recipe.submodules)
    checkout = make_checkout(
        Path(clone.mirror),
        commit,
        submodules=mirrored(submodules, clone),
        history=batch.plan.history,
        store=batch.store,
        log=log,
        name=instance.instance_id,
        url=clone.url,
        clone=clone.key,
        limits=batch.limits,
    )
    seconds = {"checkout": clock.seconds}
    below = (*environment.layers, checkout.layer)
    mirror = Bind(source=Path(clone.mirror).resolve(), target=f"{TOOLS}/mirror")
    with (
        named_in_failures(environment.missing_packages),
        Workshop(
            below,
            store=batch.store,
            network=batch.plan.network,
            log=log,
            name=instance.instance_id,
            binds=(mirror,),
            env={"SOURCE_DATE_EPOCH": str(checkout.date), **recipe.env},
            index=_index(batch, instance),
            limits=batch.limits,
        ) as shop,
    ):
        with lent_history(shop, mirror.target, checkout.commit) as kept:
            absent = put(shop, given)
            if recipe.install.strip():
                shop.run(
                    recipe.install,
                    failure="install",
                    what="the install command",
                    purpose="install",
                    cwd=TESTBED,
                    timeout=batch.plan.timeout,
                    hint="see 'install' in the recipe",
                )
                slim(shop)
        served = shop.network_use().files
        wheels = [(file, shop.index_file(file)) for file in served]
        env = pretended_versions(shop, served=served, installed=environment.packages)
        _smoke(shop, batch)
        kept.restore(shop)  # the repository's code ran again
        head = commit_install(shop, date=checkout.date)
        use = shop.network_use()
        layer = shop.pack("instance", newer=frozenset({INDEX}), without=absent)
        seconds |= shop.seconds
    wheelhouse = pack_wheelhouse(
        wheels, store=batch.store, log=log, name=instance.instance_id, limits=batch.limits
    )
    return stage.new(
        InstanceRecord,
        base_commit=checkout.commit,
        head_commit=head.commit,
        head_tree=head.tree,
        layers=(*below, *([wheelhouse] if wheelhouse else []), layer),
        env=env,
        missing_packages=environment.missing_packages,
        network=use,
        **shop.ran_under,
        reach=batch.plan.network,
        found=row,
        stage_seconds=seconds,
        tools=stage.versions(["swe-minisandbox"]),
    )


def _index(batch: _Batch, instance: InstancePlan) -> IndexAccess:
    """What the index holds for one instance; raises ``StageFailed`` where a lock lacks it."""
    files = None
    if batch.earlier is not None:
        files = batch.earlier.of(instance.instance_id).files
    return IndexAccess(Path(batch.plan.index_cache), batch.plan.recipe.date, files)


def _lock_text(batch: _Batch, instance: InstancePlan) -> str:
    """What identifies the lock of an instance; a sentence where there should be one and is not."""
    if batch.earlier is None:
        return ""
    try:
        return batch.earlier.of(instance.instance_id).digest
    except StageFailed as error:
        return str(error)


def _smoke(shop: Workshop, batch: _Batch) -> None:
    """The package imports, and its test runner starts; what the tests say is for the validation to
    find out.
    """
    recipe = batch.plan.recipe
    version = shop.run(
        ["python", "-c", "import sys; print(sys.version.split()[0])"],
        failure="install",
        what="the environment's python",
        purpose="smoke",
        timeout=batch.plan.timeout,
    ).text.strip()
    if version != batch.environment.python:
        raise StageFailed(
            "install", f"the install made Python {version} of {batch.environment.python}"
        )
    if recipe.imports:
        shop.run(
            ["python", "-c", f"import {', '.join(recipe.imports)}"],
            failure="smoke",
            what="importing the package",
            purpose="smoke",
            cwd=TESTBED,
            timeout=batch.plan.timeout,
            env=recipe.env,
        )
    if recipe.grader == "log" and recipe.parser == "pytest":
        collect = f"{recipe.test} --collect-only -q > /tmp/collected 2>&1; code=$?"
        usable = "|".join(map(str, _COLLECTED))
        shop.run(
            f"{collect}; tail -n 20 /tmp/collected; "
            f"case $code in {usable}) ;; *) exit $code ;; esac",
            failure="smoke",
            what="collecting the tests",
            purpose="smoke",
            cwd=TESTBED,
            timeout=batch.plan.timeout,
            env=recipe.env,
            hint=f"see 'test' in the recipe: {shlex.quote(recipe.test)}",
        )
    # What running the code left behind is no part of the install.
    shop.sandbox.run("rm -rf .pytest_cache .hypothesis", cwd=TESTBED, timeout=60)
