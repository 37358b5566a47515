"""The tables: their columns and types, and their files ``results/tables/<name>.parquet`` and ``.csv``.

A column's suffix is its unit.  A table has the same columns and types full or empty.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pyarrow.parquet import read_schema

from ..errors import AtlasError
from ..results.documents import write_text

TEXT, INTEGER, NUMBER, FLAG = "string", "Int64", "float64", "boolean"

_SUBJECT = {"kind": TEXT, "gpu": TEXT, "kernel": TEXT}
"""``kind``: measured, recorded, functional, compiled, predicted, published."""

_CASE = {"direction": TEXT, "dtype": TEXT, "case": TEXT, "sizes": TEXT}
"""``case`` is for people (``m=4096 n=1024``), ``sizes`` the same as JSON."""

_OUTCOME = {"status": TEXT, "reason": TEXT}

_TIMES = {"median_us": NUMBER, "q1_us": NUMBER, "q3_us": NUMBER, "samples": INTEGER}

_CONDITIONS = {"sm_clock_mhz": NUMBER, "temperature_c": NUMBER, "power_w": NUMBER}

_KERNEL_VERSION = {"kernel_digest": TEXT, "identity": TEXT, "stale": FLAG}
"""``identity``: of the row's variant.  ``stale``: that, or what else this row is true of, has changed since."""

_PROVENANCE = {
    "device_name": TEXT,
    "driver": TEXT,
    "power_cap_w": NUMBER,
    "neighbour_gpus": NUMBER,
    "cores_busy": NUMBER,
    "torch": TEXT,
    "triton": TEXT,
    "commit": TEXT,
    "date": TEXT,
}

TABLES: dict[str, dict[str, str]] = {
    # One row per provider, direction, dtype and case.  `speedup` is the fastest peer's median over this median;
    # `best` marks the fastest right variant of its case, `peer` names the fastest peer there; `weak` says why a peer is
    # no even match, and on other rows why none of the case's is.  Without `queued` launch latency is in the figure;
    # earlier documents say so in `reason` alone.
    "benchmark": {
        **_SUBJECT,
        "family": TEXT,
        "provider": TEXT,
        "provider_kind": TEXT,
        **_CASE,
        "config": TEXT,
        **_OUTCOME,
        **_TIMES,
        "bytes": NUMBER,
        "flops": NUMBER,
        "gb_per_s": NUMBER,
        "tflop_per_s": NUMBER,
        "roof": TEXT,
        "roof_fraction": NUMBER,
        "speedup": NUMBER,
        "verdict": TEXT,
        "weak": TEXT,
        "best": FLAG,
        "peer": TEXT,
        "queued": FLAG,
        "throttled": FLAG,
        **_CONDITIONS,
        "peak_bytes": INTEGER,
        "call_us": NUMBER,
        "graph_us": NUMBER,
        "protocol": TEXT,
        **_KERNEL_VERSION,
        **_PROVENANCE,
    },
    # One row per variant that a benchmark timed, after the one it `follows`.  `step_*`: that one's median over this
    # variant's, over the `compared` cases both were timed on, each with its tuned or its default config, whichever is
    # faster; `fastest`: cases where no other variant was; `figure`: on the `case` with the most traffic that it was
    # timed on, in bf16 where there is one.
    "ladder": {
        **_SUBJECT,
        "direction": TEXT,
        "variant": TEXT,
        "follows": TEXT,
        "summary": TEXT,
        "cases": INTEGER,
        "fastest": INTEGER,
        "compared": INTEGER,
        "step_geomean": NUMBER,
        "step_least": NUMBER,
        "step_most": NUMBER,
        "dtype": TEXT,
        "case": TEXT,
        "figure": NUMBER,
        "unit": TEXT,
        **_KERNEL_VERSION,
        "date": TEXT,
    },
    # One row per case that this GPU's measured benchmark and its record both timed: see atlas/results/changes.py.
    # `step` is the recorded time over the measured one, its interval `low` to `high`; `peer_step` that of the peers.
    "changes": {
        "gpu": TEXT,
        "kernel": TEXT,
        **_CASE,
        "provider": TEXT,
        "config": TEXT,
        "median_us": NUMBER,
        "recorded_provider": TEXT,
        "recorded_config": TEXT,
        "recorded_median_us": NUMBER,
        "runs": INTEGER,
        "recorded_runs": INTEGER,
        "step": NUMBER,
        "low": NUMBER,
        "high": NUMBER,
        "peer_step": NUMBER,
        "verdict": TEXT,
        "reason": TEXT,
        "software": TEXT,
        "same_source": FLAG,
        "date": TEXT,
        "recorded_date": TEXT,
    },
    # One row per compiled config.
    "build": {
        **_SUBJECT,
        "arch": TEXT,
        "variant": TEXT,
        **_CASE,
        "config": TEXT,
        "default": FLAG,
        **_OUTCOME,
        "compile_seconds": NUMBER,
        "registers": INTEGER,
        "spill_bytes": INTEGER,
        "shared_bytes": INTEGER,
        "threads": INTEGER,
        "occupancy": NUMBER,
        "widest_access_bits": INTEGER,
        "matrix_instruction": TEXT,
        "async_copies": TEXT,
        "warp_specialized": FLAG,
        "scope": TEXT,
        "scope_total": INTEGER,
        "scope_compiled": INTEGER,
        **_KERNEL_VERSION,
        **_PROVENANCE,
    },
    # One row per kernel launch of a provider's call, from cold caches.  `bytes`: what the whole call must move;
    # `stall`: what warps waited for most, `stall_warps` how many of them whenever a scheduler issued.
    "profile": {
        **_SUBJECT,
        "provider": TEXT,
        "provider_kind": TEXT,
        **_CASE,
        "config": TEXT,
        "bytes": NUMBER,
        "launch": INTEGER,
        "launched": TEXT,
        "duration_us": NUMBER,
        "dram_read_bytes": NUMBER,
        "dram_write_bytes": NUMBER,
        "dram_percent": NUMBER,
        "l2_hit_percent": NUMBER,
        "tensor_percent": NUMBER,
        "issue_percent": NUMBER,
        "occupancy_percent": NUMBER,
        "shared_conflicts": NUMBER,
        "registers": NUMBER,
        "stall": TEXT,
        "stall_warps": NUMBER,
        **_KERNEL_VERSION,
        **_PROVENANCE,
    },
    # One row per provider whose energy was measured, calls back to back.  `watts` are the board's, with its `rest_w`;
    # `usd_per_1e9_calls` is of the time in the loop, where the GPU's block has a price.
    "energy": {
        **_SUBJECT,
        "provider": TEXT,
        "provider_kind": TEXT,
        **_CASE,
        "config": TEXT,
        **_OUTCOME,
        "bytes": NUMBER,
        "flops": NUMBER,
        "joules": NUMBER,
        "joules_least": NUMBER,
        "joules_most": NUMBER,
        "joules_per_gb": NUMBER,
        "joules_per_tflop": NUMBER,
        "loop_us": NUMBER,
        "watts": NUMBER,
        "rest_w": NUMBER,
        "usd_per_1e9_calls": NUMBER,
        "calls": INTEGER,
        "repeats": INTEGER,
        "captured": FLAG,
        "how": TEXT,
        "sm_clock_mhz": NUMBER,
        "protocol": TEXT,
        **_KERNEL_VERSION,
        **_PROVENANCE,
    },
    # One row per call of a public function at a case that nobody tuned; `ratio`: the fastest peer's time over ours.
    "beyond": {
        **_SUBJECT,
        "mode": TEXT,
        "dtype": TEXT,
        "case": TEXT,
        "sizes": TEXT,
        **_OUTCOME,
        "median_us": NUMBER,
        "call_us": NUMBER,
        "queued": FLAG,
        "peer": TEXT,
        "peer_us": NUMBER,
        "ratio": NUMBER,
        "seed": INTEGER,
        "protocol": TEXT,
        "stale": FLAG,
        **_PROVENANCE,
    },
    # One row per check.
    "validation": {
        **_SUBJECT,
        "check": TEXT,
        "variant": TEXT,
        **_CASE,
        "config": TEXT,
        "case_reason": TEXT,
        **_OUTCOME,
        "seed": INTEGER,
        "max_abs_error": NUMBER,
        "max_rel_error": NUMBER,
        "rtol": NUMBER,
        "atol": NUMBER,
        "tolerance_used": NUMBER,
        "error_over_torch": NUMBER,
        "replay": TEXT,
        "protocol": TEXT,
        **_KERNEL_VERSION,
        **_PROVENANCE,
    },
    # One row per trial; `best` marks the config that won its case.
    "trials": {
        **_SUBJECT,
        **_CASE,
        "variant": TEXT,
        "config": TEXT,
        **_OUTCOME,
        **_TIMES,
        "rung": INTEGER,
        "at_seconds": NUMBER,
        "compile_seconds": NUMBER,
        "best": FLAG,
        "strategy": TEXT,
        "protocol": TEXT,
        **_KERNEL_VERSION,
        **_PROVENANCE,
    },
    # One row per roof; datasheet peaks are rows of kind published, with their source in `how`.
    "survey": {
        "kind": TEXT,
        "gpu": TEXT,
        "roof": TEXT,
        "value": NUMBER,
        "unit": TEXT,
        "how": TEXT,
        **_OUTCOME,
        **_TIMES,
        **_CONDITIONS,
        "protocol": TEXT,
        **_PROVENANCE,
    },
    # One row per case of a GPU that nobody has at hand: the config to run there and its expected time, which is to lie
    # between `low_us` and `high_us` in nine of ten cases; `from_gpu` is where the timings are from.
    "predictions": {
        **_SUBJECT,
        **_CASE,
        "variant": TEXT,
        "config": TEXT,
        **_OUTCOME,
        "median_us": NUMBER,
        "low_us": NUMBER,
        "high_us": NUMBER,
        "bytes": NUMBER,
        "flops": NUMBER,
        "gb_per_s": NUMBER,
        "tflop_per_s": NUMBER,
        "roof": TEXT,
        "roof_fraction": NUMBER,
        "path": TEXT,
        "from_gpu": TEXT,
        "grounds": TEXT,
        "protocol": TEXT,
        **_KERNEL_VERSION,
        "date": TEXT,
    },
    # One row per figure of config/published.yaml, of kind published; of the three columns of figures one is filled.
    "published": {
        **_SUBJECT,
        "entry": TEXT,
        "library": TEXT,
        "version": TEXT,
        "peer": TEXT,
        **_CASE,
        "median_us": NUMBER,
        "gb_per_s": NUMBER,
        "tflop_per_s": NUMBER,
        "value": NUMBER,
        "unit": TEXT,
        "date": TEXT,
        "source": TEXT,
        "note": TEXT,
    },
    # One row per kernel, GPU and stage that belongs to the GPU; status `none` where there is no document.
    "coverage": {
        "kernel": TEXT,
        "gpu": TEXT,
        "stage": TEXT,
        "kind": TEXT,
        **_OUTCOME,
        "seconds": NUMBER,
        "stale": FLAG,
        "date": TEXT,
    },
    # One row per kernel and GPU; which case is the headline, and what the means are of: see atlas/results/verdict.py.
    # `note` says why there is no figure, `against` whom the headline case was compared with.
    "verdicts": {
        "kernel": TEXT,
        "gpu": TEXT,
        **_OUTCOME,
        "kind": TEXT,
        "stages": TEXT,
        "direction": TEXT,
        "dtype": TEXT,
        "case": TEXT,
        "provider": TEXT,
        "config": TEXT,
        "median_us": NUMBER,
        "figure": NUMBER,
        "unit": TEXT,
        "roof": TEXT,
        "roof_fraction": NUMBER,
        "peer": TEXT,
        "speedup": NUMBER,
        "verdict": TEXT,
        "weak": TEXT,
        "cases": INTEGER,
        "weak_cases": INTEGER,
        "speedup_geomean": NUMBER,
        "speedup_worst": NUMBER,
        "worst_case": TEXT,
        "note": TEXT,
        "against": TEXT,
        "failing": FLAG,
        "stale": FLAG,
    },
}
"""Table -> column -> pandas type, in the order of the files."""


def generation(arch: str) -> tuple[str, int]:
    """To sort a column ``arch`` by: sm_90 before sm_100."""
    family = arch.rstrip("0123456789")
    return family, int(arch.removeprefix(family) or 0)


def frame(name: str, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """``rows`` as the table ``name``: its columns in their order and types; KeyError for a key it has no column of."""
    columns = TABLES[name]
    rows = list(rows)
    for row in rows:
        unknown = row.keys() - columns.keys()
        if unknown:
            raise KeyError(f"table {name!r} has no column {', '.join(sorted(unknown))}")
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def write(folder: Path, name: str, table: pd.DataFrame) -> None:
    """Put a table under ``folder`` as Parquet and CSV, each by renaming a finished file into place."""
    write_text(folder / f"{name}.csv", table.to_csv(index=False))
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
    os.close(handle)
    table.to_parquet(temporary, index=False)
    Path(temporary).chmod((folder / f"{name}.csv").stat().st_mode)
    Path(temporary).replace(folder / f"{name}.parquet")


def read(folder: Path, columns: Mapping[str, Sequence[str]] | None = None) -> dict[str, pd.DataFrame]:
    """Every table under ``folder`` by name, or the named columns of those named.

    Raises :class:`AtlasError` for one that is missing, cut off or of another form.
    """
    columns = TABLES if columns is None else columns
    return {name: _read(folder / f"{name}.parquet", name, list(own)) for name, own in columns.items()}


def _read(path: Path, name: str, columns: list[str]) -> pd.DataFrame:
    remedy = "run `python -m atlas tables` to make it again"
    if not path.exists():
        raise AtlasError(f"{path}: no such table; {remedy}")
    try:
        missing = [column for column in TABLES[name] if column not in read_schema(path).names]
        if missing:
            raise AtlasError(f"{path}: no {', '.join(missing)}: another release wrote this table; {remedy}")
        table = pd.read_parquet(path, columns=columns)
        return table.astype({column: TABLES[name][column] for column in columns})
    except (OSError, ValueError) as error:
        raise AtlasError(f"{path}: not readable as Parquet ({error}); {remedy}") from None
