"""Packages of a distribution's archive, fetched once and checked against the lock's digests."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import requests
from tqdm import tqdm

from minisandbox import atomic, keys
from minisandbox.errors import StageFailed
from minisandbox.records.plan import BasePlan, DebianPackage

#: Seconds for the connection, and between two pieces of an answer.
_TIMEOUT = (20.0, 60.0)
#: Archives ask for few connections at a time.
_CONNECTIONS = 4
_PIECE = 1 << 20


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
    if path.is_file() and keys.file_sha256(path) == package.sha256:
        return path
    problems: list[str] = []
    passing = False
    for address in addresses(package, plan.mirrors, plan.date):
        server = urlsplit(address).hostname or address
        try:
            with (
                atomic.replacing(path) as temporary,
                requests.get(address, stream=True, timeout=_TIMEOUT) as answer,
            ):
                answer.raise_for_status()
                left = package.size
                with temporary.open("wb") as out:
                    for piece in answer.iter_content(_PIECE):
                        left -= len(piece)
                        if left < 0:
                            raise _Other(f"{server} serves more than {package.size} bytes")
                        out.write(piece)
                if (found := keys.file_sha256(temporary)) != package.sha256:
                    raise _Other(f"{server} serves another file (sha256 {found[:16]}…)")
            return path
        except _Other as error:
            problems.append(str(error))
        except requests.HTTPError as error:
            code = error.response.status_code
            passing = passing or code >= 500 or code == 429
            problems.append(f"{server} answers {code}")
        except requests.RequestException as error:
            passing = passing or not isinstance(error, ValueError)
            problems.append(f"{server} cannot be reached ({type(error).__name__})")
    raise StageFailed(
        "index",
        f"the package {package.name} {package.version} cannot be fetched: {'; '.join(problems)}",
        hint="check the network, and 'mirrors' of the base; "
        "if the archive has moved on, make its lock again",
        transient=passing,
    )


def addresses(package: DebianPackage, mirrors: Sequence[str], date: str) -> list[str]:
    """Where a package may be had, in the order of the mirrors."""
    return [
        mirror.format(archive=package.archive, path=package.path, date=date) for mirror in mirrors
    ]


class _Other(Exception):
    """A mirror has another file by that name."""
