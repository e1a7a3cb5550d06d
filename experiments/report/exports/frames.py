"""Samples and rows as data frames: one column a field, with the field's type in every store."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

from experiments.report.row import ReportRow, columns
from experiments.store.samples.sample import Sample

if TYPE_CHECKING:
    import pandas as pd

_DTYPES = {int: "Int64", float: "Float64", bool: "boolean", str: "string"}


def sample_frame(samples: Sequence[Sample]) -> pd.DataFrame:
    """One line a sample; the two compound fields as text, which every format can hold."""
    return _frame(typing.get_type_hints(Sample), [_flat(sample) for sample in samples])


def row_frame(rows: Sequence[ReportRow]) -> pd.DataFrame:
    """One line a row, every column; compound ones as JSON, which every format can hold."""
    return _frame(columns(), [_jsoned(row.to_dict()) for row in rows])


def _flat(sample: Sample) -> dict[str, object]:
    values = dataclasses.asdict(sample)
    values["backend_params"] = ", ".join(f"{k}={v}" for k, v in sample.backend_params)
    values["shorter"] = " ".join(f"{s.factor}:{s.status}:{s.tokens}" for s in sample.shorter)
    values["curve"] = " ".join(f"{t}:{raw}:{small}" for t, raw, small in sample.curve)
    return values


def _jsoned(values: Mapping[str, object]) -> dict[str, object]:
    return {
        name: json.dumps(value) if isinstance(value, (dict, list, tuple)) else value
        for name, value in values.items()
    }


def _frame(hints: Mapping[str, object], lines: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """Typed by the class, not by the values: a column of nothing but missing has its type too."""
    import pandas as pd

    return pd.DataFrame(
        {
            name: pd.array([line[name] for line in lines], dtype=_dtype(hint))
            for name, hint in hints.items()
        }
    )


def _dtype(hint: Any) -> Any:
    alone = [one for one in typing.get_args(hint) or (hint,) if one is not NoneType]
    known: Callable[[Any], str | None] = _DTYPES.get
    return (known(alone[0]) if len(alone) == 1 else None) or "string"
