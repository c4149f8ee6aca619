"""Running a stage over the instances of a batch, one record each, in one job.

Each instance that is finished is kept beside the batch's record until that is written: an
interrupted batch goes on where it was, and a changed one makes anew only what changed. Instances
that the plan leaves out this time (a narrower selection) stay there and are taken back when it
names them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tqdm import tqdm

from minisandbox import keys
from minisandbox.build import stage
from minisandbox.build.dropping import spare
from minisandbox.errors import EXIT_OK, InvalidInput
from minisandbox.records import codec
from minisandbox.records.stages import Record
from minisandbox.store import Store

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Member(Generic[R]):
    """One instance of a batch: what decides its record, and how to make it."""

    key: str
    inputs: str
    log: Path
    work: Callable[[], R]


def run_batch(
    cls: type[R],
    batch_cls: type[Record],
    record_path: Path,
    members: Sequence[Member[R]],
    *,
    name: str,
    environment: str,
    attempt: stage.Attempt,
    store: Store | None,
) -> stage.Ended:
    """Make or reuse the record of a batch of stage ``name`` and of each of its members."""
    finished = _Finished(cls, batch_cls, record_path, store=store)
    finished.set_aside(but={member.key for member in members})

    def make(member: Member[R]) -> R:
        def work() -> R:
            member.log.unlink(missing_ok=True)
            return member.work()

        return stage.make(
            cls,
            stage=name,
            key=member.key,
            inputs=member.inputs,
            log=member.log,
            work=work,
            attempt=attempt,
        )

    def work() -> Any:
        records: list[R] = []
        for member in tqdm(members, desc=f"{name} {environment}", unit="instance"):
            record = finished.get(member.key, member.inputs) or make(member)
            finished.keep(record)
            records.append(record)
        return stage.new(batch_cls, environment=environment, instances=tuple(records))

    ended = stage.run_stage(
        batch_cls,
        record_path,
        stage=name,
        key=f"{environment}/{record_path.parent.name}",
        inputs=keys.digest_of([member.inputs for member in members]),
        log=record_path.with_suffix(".log"),
        work=work,
        attempt=attempt,
        store=store,
    )
    if ended.exit_code == EXIT_OK:
        finished.forget(member.key for member in members)
    return ended


class _Finished(Generic[R]):
    """The finished members of a batch: those of its last record, and those kept beside it."""

    def __init__(
        self, cls: type[R], batch_cls: type[Record], record_path: Path, *, store: Store | None
    ) -> None:
        self._cls = cls
        self._store = store
        self._folder = record_path.with_name(f".{record_path.stem}.partial")
        self._known: dict[str, R] = {}
        for path in (spare(record_path), record_path):
            try:
                previous: Any = codec.read(batch_cls, path)
            except (FileNotFoundError, InvalidInput):
                continue
            self._known |= {record.key: record for record in previous.instances}

    def get(self, key: str, inputs: str) -> R | None:
        """The record of ``key`` if it was made from the same inputs and its layers are there."""
        kept = stage.reusable(self._cls, self._path(key), inputs=inputs, store=self._store)
        if kept is not None:
            return kept
        record = self._known.get(key)
        if record is None or not stage.holds(record, inputs=inputs, store=self._store):
            return None
        return record

    def keep(self, record: R) -> None:
        """Remember a finished member until the batch's record holds it."""
        codec.write(self._path(record.key), record)

    def set_aside(self, *, but: set[str]) -> None:
        """Keep the members that the batch's next record will not hold."""
        for key, record in self._known.items():
            if key not in but and not self._path(key).exists():
                self.keep(record)

    def forget(self, members: Iterable[str]) -> None:
        """Remove what ``keep`` wrote of these."""
        for key in members:
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
