"""What the files of a store hold: their fields and types, against which they are read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from experiments.grid.identity import Configuration
from experiments.grid.schema import Count, Natural
from lil.trace import CostFields, TraceFields

Status = Literal["running", "finished", "interrupted", "failed"]


class RunFields(msgspec.Struct, frozen=True):
    """The first line of a record: which run it is and how it ended.

    `batch_size` rows were decoded together, and `workers` decoded at the same time. `code` are
    digests of classes that do not ship, and of their files, see `attention.identity.code`: method,
    penalties and the detector that acts; `notes_code` of those that took notes. `verdict` is the
    one that was acted upon: tokens kept, step and anchor. `at_positions`: it was cut where the
    model's positions end, or went beyond them. `runtime` decoded it, with its version.
    """

    configuration: Configuration = msgspec.field(name="cell")
    item_id: str
    prompt: str
    sample_index: Natural
    status: Literal["ok", "capped", "out_of_memory", "error"]
    finish: str | None
    tokens: Natural | None
    message: str | None
    detector: dict[str, Any] | None
    sweep: str
    batch_size: Count
    workers: Count
    signals: tuple[str, ...] = ()
    code: dict[str, str] = {}
    notes_code: dict[str, str] = {}
    verdict: tuple[Natural, Natural, Natural | None] | None = None
    at_positions: bool = False
    runtime: str | None = None

    def __post_init__(self) -> None:
        failed = self.status in ("out_of_memory", "error")
        needed = (self.message,) if failed else (self.finish, self.tokens)
        if None in needed:
            raise ValueError(f"what belongs to a run that ended {self.status!r}")


class StoredTrace(TraceFields, forbid_unknown_fields=True):
    """The second line of a record: a trace whose costs are known up to its end."""

    checks: Annotated[tuple[CostFields, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = [check.tokens for check in self.checks]
        if ends != sorted(set(ends)) or ends[-1] != len(self.new_ids):
            raise ValueError("checks in ascending order up to the last token")


class SweepFields(msgspec.Struct, frozen=True):
    """A manifest: a sweep's configuration, its plan and how it went."""

    status: Status
    preset: str
    arguments: tuple[str, ...]
    config: dict[str, Any]
    plan: dict[str, Any]
    detectors: tuple[dict[str, Any], ...]
    started: str
    ended: str | None
    models: tuple[dict[str, Any], ...] = ()
    packages: dict[str, str | None] = {}
    host: str | None = None
    pid: int | None = None
    code: dict[str, str] = {}
    keeps_all: tuple[dict[str, Any], ...] = ()
    notices: tuple[str, ...] = ()
