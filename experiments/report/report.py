"""What a report is made of: its rows, kept between reports, and samples, read where needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import cached_property

import msgspec
import zstandard

from experiments.grid.identity import digest
from experiments.report import measures
from experiments.report.chart_sets import chart_sets
from experiments.report.charts import ChartSet
from experiments.report.pooled import DetectorPool, detector_pools
from experiments.report.row import ReportRow
from experiments.store.files import cache as kept
from experiments.store.samples import load as reading
from experiments.store.samples.sample import Sample
from experiments.store.study import Results, Study
from lil import Detector


class _Kept(msgspec.Struct):
    missing: int
    rows: list[ReportRow]
    together: list[ReportRow]
    stopping: list[DetectorPool]


class Report:
    """Rows of a study under some detectors, and the samples behind them.

    Rows are kept beside the traces under a digest of all they follow from: where nothing changed,
    no sample is read for them.

    Args:
        study: what was decoded.
        detectors: replayed over it.
        read: gives the samples of what `names` names, once, when they are first needed.
        pool: processes that share the work, for many samples.
    """

    def __init__(
        self,
        study: Study,
        detectors: Sequence[Detector],
        read: Callable[[list[str]], Results],
        pool: Executor | None = None,
    ) -> None:
        self.study, self.detectors, self._read, self.pool = study, detectors, read, pool

    @cached_property
    def names(self) -> list[str]:
        """What the samples of each configuration are kept under."""
        return reading.names(self.study, self.detectors)

    @cached_property
    def key(self) -> str:
        """A digest of all that rows and samples follow from; "" where none says it all."""
        if not all(self.names):
            return ""
        return digest([kept.code(kept.REPORTING), self.study.config.seed, *self.names])

    @cached_property
    def _results(self) -> Results:
        return self._read(self.names)

    @property
    def samples(self) -> list[Sample]:
        """Every run as decoded and under each detector, without texts."""
        return self._results.samples

    @cached_property
    def _kept(self) -> _Kept:
        path = kept.folder(self.study.folder) / f"{self.key}.rows"
        if self.key:
            with contextlib.suppress(OSError, zstandard.ZstdError, msgspec.DecodeError):
                return msgspec.msgpack.decode(kept.load(path), type=_Kept)
        seed, factor = self.study.config.seed, self.study.config.cap_factor
        rows = measures.rows(self.samples, seed, factor, self.pool)
        together = measures.pooled_rows(self.samples, seed, factor)
        made = _Kept(self._results.missing, rows, together, detector_pools(self.samples, seed))
        if self.key:
            kept.save(path, made)
        return made

    @property
    def rows(self) -> list[ReportRow]:
        """A row for each configuration."""
        return self._kept.rows

    @property
    def together(self) -> list[ReportRow]:
        """A row for each configuration over all data sets of a model, where there are several."""
        return self._kept.together

    @property
    def stopping(self) -> list[DetectorPool]:
        """What each detector does over all sparse configurations together."""
        return self._kept.stopping

    @cached_property
    def chart_sets(self) -> list[ChartSet]:
        """All charts, those of detectors among them."""
        return chart_sets(self.rows, self.samples, self.stopping, self.study.config.seed)

    @property
    def missing(self) -> int:
        """Runs that the store cannot serve."""
        return self._kept.missing
