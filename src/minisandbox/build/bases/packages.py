"""Packages of a distribution's archive, fetched once and checked against the lock's digests."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from minisandbox.build import fetching
from minisandbox.errors import StageFailed
from minisandbox.records.plan import BasePlan, DebianPackage

#: Archives ask for few connections at a time.
_CONNECTIONS = 4


def fetch(plan: BasePlan) -> list[Path]:
    """The files of a plan's packages, in its order; those that are there whole are not fetched.

    Raises ``StageFailed`` of kind ``index``, transient where a server or the network may do better
    next time.
    """
    total = sum(package.size for package in plan.packages)
    with (
        tqdm(desc=f"packages of {plan.slug}", total=total, unit="B", unit_scale=True) as bar,
        ThreadPoolExecutor(_CONNECTIONS) as pool,
    ):

        def one(package: DebianPackage) -> Path:
            path = _fetch(package, plan)
            bar.update(package.size)
            return path

        jobs = [pool.submit(one, package) for package in plan.packages]
        try:
            return [job.result() for job in jobs]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch(package: DebianPackage, plan: BasePlan) -> Path:
    path = Path(plan.downloads) / package.sha256 / package.path.rpartition("/")[2]
    places = addresses(package, plan.mirrors, plan.date)
    try:
        return fetching.fetch(places, path, sha256=package.sha256, most=package.size)
    except fetching.Unfetched as error:
        raise StageFailed(
            "index",
            f"the package {package.name} {package.version} cannot be fetched: {error}",
            hint="check the network, and 'mirrors' of the base; "
            "if the archive has moved on, make its lock again",
            transient=error.passing,
        ) from None


def addresses(package: DebianPackage, mirrors: Sequence[str], date: str) -> list[str]:
    """Where a package may be had, in the order of the mirrors."""
    return [
        mirror.format(archive=package.archive, path=package.path, date=date) for mirror in mirrors
    ]
