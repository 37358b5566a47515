"""What the stages did, a row per kernel and GPU each: builds, validation, tuning, hardware counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ..profiling.ncu import STALLS
from ..results.collection import Entry, calls
from ..results.subject import PassCase, as_json
from ..results.summary import counted, duration, listed, microseconds
from ..results.verdict import PERFORMANCE, geometric_mean
from ..tables.store import generation
from .grid import Cell, Grid, badge, config_words, missing, number, origin, text

Tables = dict[str, pd.DataFrame]

_TENSOR_CORES = ("mma", "wgmma", "tcgen05")
_DOTS = {"fma": "FMA path"}


def build_table(tables: Tables) -> Grid:
    """A row per kernel and GPU: how much of the space compiles and can launch, and what it takes."""
    rows = []
    groups = tables["build"].groupby(["kernel", "arch", "gpu"])
    for (kernel, _, gpu), group in sorted(groups, key=lambda item: (item[0][0], generation(item[0][1]), item[0][2])):
        done = group[group.registers.notna()]
        counts = group.status.value_counts()
        status = ", ".join(f"{count} {name}" for name, count in counts.items())
        dots = [name for name in done.matrix_instruction.dropna().unique() if name != "none"]
        spilling = int((done.spill_bytes.fillna(0) > 0).sum())
        total = group.scope_total.iloc[0]
        sample = f"of {total} for the largest cases" if group.scope.iloc[0] == "sample" else "the whole space"
        rows.append([
            text(kernel, style="name"), text(gpu, style="name"), text(group.arch.iloc[0]),
            number(len(group), "{:.0f}", note=sample), text(status),
            number(done.registers.median(), "{:.0f}", note=f"most {done.registers.max()}" if len(done) else ""),
            number(spilling, "{:.0f}", note=f"most {done.spill_bytes.max()} bytes" if spilling else ""),
            number(done.shared_bytes.max() / 1024 if len(done) else None, "{:.0f} KiB"),
            number(100 * done.occupancy.median() if done.occupancy.notna().any() else None, "{:.0f} %"),
            text(", ".join(_DOTS.get(name, name) for name in sorted(dots)) or None,
                 style="bad" if dots == ["fma"] else ""),
            Cell(duration(group.compile_seconds.sum()), group.compile_seconds.sum(), style="num"),
        ])  # fmt: skip
    return Grid(
        "build",
        ("kernel", "GPU", "arch", "configs", "outcome", "registers", "spilling", "shared memory", "occupancy", "tl.dot",
         "compile time"),
        rows,
        empty="Nothing was compiled.",
        caption="Registers and occupancy: median over configs; shared memory per block: the most. Compile time: of all "
        "configs, in CPU seconds.",
        numeric=frozenset({3, 5, 6, 7, 8, 10}),
    )  # fmt: skip


def lost_tensor_cores(tables: Tables) -> list[str]:
    """A sentence for each GPU on which tl.dot became FMA in a dtype that another GPU runs on tensor cores."""
    done = tables["build"]
    done = done[done.matrix_instruction.isin(["fma", *_TENSOR_CORES])]
    lost: dict[tuple[str, str, str], dict[str, set[Any]]] = {}
    for (kernel, dtype), group in done.groupby(["kernel", "dtype"]):
        cores = group[group.matrix_instruction.isin(_TENSOR_CORES)]
        for (gpu, arch), own in group.groupby(["gpu", "arch"]):
            alike = (cores.arch == arch) & cores.triton.isin(own.triton)  # then the variants differ, not the lowering
            if gpu in set(cores.gpu) or cores.empty or alike.any():
                continue
            triton = listed(sorted(own.triton.dropna().unique())) or "of unknown version"
            seen = lost.setdefault((gpu, arch, triton), {"kernels": set(), "others": set(), "dtypes": set()})
            seen["kernels"].add(kernel)
            seen["dtypes"].add(dtype)
            seen["others"] |= set(zip(cores.gpu, cores.matrix_instruction, strict=True))
    return [
        f"On {gpu} ({arch}) Triton {triton} lowers tl.dot to scalar FMA: the tensor cores stay idle, and "
        f"{listed(sorted(seen['kernels']))} in {listed(sorted(seen['dtypes']))} cannot pass the FMA rate there. "
        f"The same kernels run on tensor cores on {listed(_with_instructions(seen['others']))}."
        for (gpu, arch, triton), seen in sorted(lost.items())
    ]


def _with_instructions(pairs: Collection[tuple[str, str]]) -> list[str]:
    """``h200 (mma, wgmma)`` of pairs of GPU and instruction."""
    return [
        f"{gpu} ({', '.join(sorted(name for other, name in pairs if other == gpu))})"
        for gpu in sorted({gpu for gpu, _ in pairs})
    ]


def validation_table(tables: Tables, entries: Sequence[Entry]) -> Grid:
    """A row per kernel and GPU: checks by outcome, and how much of the tolerance was needed."""
    columns = ["kernel", "gpu", "status", "tolerance_used", "error_over_torch"]
    rows, checks = [], dict(list(tables["validation"][columns].groupby(["kernel", "gpu"])))
    for entry in sorted((e for e in entries if e.stage == "validate"), key=lambda e: (e.kernel or "", e.gpu)):
        own = checks.get((entry.kernel, entry.gpu), tables["validation"].iloc[:0])
        statuses, used = np.array(own.status, object), own.tolerance_used.to_numpy(float)
        counts = Counter(statuses)
        failed = counts["fail"] + counts["error"]
        # Beyond the tolerance and still passed: torch itself misses it there, and twice torch's error is the limit.
        excused = (statuses == "pass") & (used > 1)
        worst = max(used[~excused & ~np.isnan(used)], default=None)
        over = own.error_over_torch.max() if own.error_over_torch.notna().any() else None
        rows.append([
            text(entry.kernel, style="name"), text(entry.gpu, style="name"), origin(entry.kind, entry.stale),
            badge(entry.document["status"]), number(counts["pass"], "{:.0f}"),
            number(failed, "{:.0f}", style="bad" if failed else ""),
            number(counts["unsupported"], "{:.0f}"), number(len(entry.document["seeds"]), "{:.0f}"),
            number(None if worst is None else 100 * worst, "{:.0f} %", style="bad" if worst and worst > 1 else "",
                   note=f"torch beyond it in {counted(int(excused.sum()), 'check')}" if excused.any() else ""),
            number(over, "{:.2f}\N{MULTIPLICATION SIGN}"),
        ])  # fmt: skip
    return Grid(
        "validation",
        ("kernel", "GPU", "kind", "status", "passed", "failed", "unsupported", "seeds", "tolerance used",
         "error against torch's"),
        rows,
        empty="Nothing was validated.",
        caption="Both last columns: the worst check. 100 % of the tolerance, and twice torch's own error at the same "
        "dtype, are the limits. Where torch itself is beyond the tolerance (sums that nearly cancel, a large common "
        "offset), the second alone decides; such checks are counted below the first.",
        numeric=frozenset({4, 5, 6, 7, 8, 9}),
    )  # fmt: skip


def tuning_table(entries: Sequence[Entry]) -> Grid:
    """A row per kernel and GPU: trials by status, time spent, and what tuning brought over the default."""
    rows = []
    for entry in _tuned(entries):
        document, best = entry.document, entry.document["best"]
        statuses = document["trials_by_status"]
        others = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in sorted(statuses.items()) if name != "ok")
        gains = [row["default_us"] / row["median_us"] for row in best if row.get("default_us")]
        regrets = [row["regret"] for row in best if not missing(row.get("regret"))]
        longest = sorted(document["seconds_by_phase"].items(), key=lambda phase: -phase[1])[:3]
        phases = ", ".join(f"{name} {duration(seconds)}" for name, seconds in longest if seconds)
        timed = entry.kind in PERFORMANCE
        rows.append([
            text(entry.kernel, style="name"), text(entry.gpu, style="name"), origin(entry.kind, entry.stale),
            text(document["strategy"]), number(sum(statuses.values()), "{:.0f}", note=others),
            number(len(best), "{:.0f}"),
            Cell(duration(document["seconds"]), document["seconds"], phases, "num"),
            number(geometric_mean(gains) if timed else None, "{:.2f}\N{MULTIPLICATION SIGN}"),
            number(100 * max(regrets) if regrets and timed else None, "{:.1f} %"),
        ])  # fmt: skip
    return Grid(
        "tuning",
        ("kernel", "GPU", "kind", "strategy", "trials", "cases", "time", "over the default", "regret"),
        rows,
        empty="Nothing was tuned.",
        caption="Over the default: geometric mean over cases of the default config's time over the best one's. Regret: "
        "the most the search missed, where the whole space was timed. Below the time its three longest phases. The "
        "interpreter's times are not compared.",
        numeric=frozenset({4, 5, 6, 7, 8}),
    )


def best_configs(entries: Sequence[Entry], tables: Tables) -> Grid:
    """Every case's best config, what it was compiled to, and the runner-up, of the GPUs that ran."""
    rows, builds = [], _builds(tables["build"])
    for entry in _tuned(entries):
        if entry.kind not in PERFORMANCE:
            continue
        for row in entry.document["best"]:
            second = row.get("runner_up")
            key = (row["direction"], row["dtype"], row["variant"], as_json(row["config"]))
            alike = builds.get((entry.kernel, entry.gpu, entry.identity(row["direction"], row["variant"]), *key), [])
            built = _built_for(as_json(row["sizes"]), alike)
            behind = 100 * (second["median_us"] / row["median_us"] - 1) if second else None
            rows.append([
                text(entry.kernel, style="name"), text(entry.gpu, style="name"),
                origin(entry.kind, entry.stale_row(row)),
                text(row["direction"]), text(row["dtype"]), text(PassCase.of(row).case),
                text(row["variant"], note=config_words(row["config"])),
                _compiled_to(built),
                Cell(microseconds(row["median_us"]), row["median_us"], style="num"),
                text(second and second["variant"], note=config_words(second and second["config"])),
                number(behind, "{:+.1f} %"),
            ])  # fmt: skip
    return Grid(
        "best-configs",
        ("kernel", "GPU", "kind", "pass", "dtype", "case", "best config", "compiled to", "median", "runner-up",
         "slower by"),
        rows,
        empty="No GPU was tuned.",
        caption="Compiled to: what its matrix products became, who copies into shared memory, whether warps have roles "
        "of their own, the widest access to global memory, registers and spilled bytes a thread; from the build of the "
        "same source. A range: cases compile this config differently, and the build does not say which is this one's.",
        numeric=frozenset({8, 10}),
    )  # fmt: skip


def called_configs(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """By kernel a sentence for each GPU and each kernel that it calls: with which configs this was benchmarked."""
    sentences: dict[str, list[str]] = {}
    for entry in entries:
        for name, used in calls(entry.document).items():
            if entry.stage == "benchmark" and entry.kind in PERFORMANCE:
                said = f"Benchmarked on {entry.gpu} ({entry.kind}) with configs of {name} from: {used}."
                sentences.setdefault(entry.kernel or "", []).append(said)
    return sentences


def _builds(table: pd.DataFrame) -> dict[tuple[str, ...], list[Any]]:
    """Rows of what compiled, by kernel, GPU, identity, pass, dtype, variant and config."""
    found: dict[tuple[str, ...], list[Any]] = {}
    keys = ("kernel", "gpu", "identity", "direction", "dtype", "variant", "config")
    for row in table[table.registers.notna()].itertuples():
        found.setdefault(tuple(getattr(row, key) for key in keys), []).append(row)
    return found


def _built_for(sizes: str, rows: Sequence[Any]) -> Sequence[Any]:
    """The build of a case, or all that it may be one of; empty where it is not known.

    Cases that compile to the same stand in the document as the first of them.
    """
    exact = [row for row in rows if row.sizes == sizes]
    sampled = any(row.scope == "sample" for row in rows)
    return exact or ([] if sampled else rows)


def _compiled_to(built: Sequence[Any]) -> Cell:
    """``wgmma, TMA, warps specialised, 128-bit`` over ``168 registers, no spills``; a dash if it was not built here.

    Of several builds what they have in common, and the range of their registers and spills.
    """
    if not built:
        return text(None)

    def common(fact: str) -> Any:
        values = [getattr(row, fact) for row in built]
        return None if any(missing(value) or value != values[0] for value in values) else values[0]

    dot, bits = common("matrix_instruction"), common("widest_access_bits")
    parts = [
        None if dot in (None, "none") else _DOTS.get(dot, dot),
        {"tma": "TMA", "cp.async": "cp.async"}.get(common("async_copies")),
        "warps specialised" if common("warp_specialized") else None,
        None if bits is None else f"{bits}-bit",
    ]
    registers = sorted({int(row.registers) for row in built})
    spilled = sorted({0 if missing(row.spill_bytes) else int(row.spill_bytes) for row in built})
    spills = f"{_span(spilled)} bytes spilled" if spilled[-1] else "no spills"
    note = f"{_span(registers)} registers, {spills}"
    return text(", ".join(filter(None, parts)), note=note, style="bad" if spilled[0] else "")


def _span(values: Sequence[int]) -> str:
    """``168``, or ``154 to 163`` of sorted values that differ."""
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _tuned(entries: Sequence[Entry]) -> list[Entry]:
    return sorted((e for e in entries if e.stage == "autotune"), key=lambda e: (e.kernel or "", e.gpu))


_ARGUMENTS = 60
"""Characters of a kernel's template arguments that are shown."""


def counter_table(tables: dict[str, pd.DataFrame]) -> Grid:
    """A row per kernel launch of a profiled call."""
    return Grid(
        "counters",
        ("kernel", "GPU", "kind", "case", "provider", "launch", "duration", "DRAM", "traffic", "L2 hits",
         "tensor cores", "issue slots", "occupancy", "registers", "bank conflicts", "warps wait for"),
        [_row(row) for row in tables["profile"].itertuples()],
        empty="Nothing was profiled: `python -m atlas profile KERNEL --gpu GPU` reads the counters after a benchmark, "
        "where ncu is installed.",
        caption="From cold caches, one launch at a time, at the clock the driver chose. DRAM: share of the memory's "
        "peak. Traffic: bytes that DRAM moved for the launch, below it over what the declaration says the whole call "
        "must move. Tensor cores, issue slots: share of the launch in which they were busy. Waits: the heaviest reason,"
        " with the warps a scheduler had waiting for it whenever it issued.",
        numeric=frozenset(range(6, 15)),
    )  # fmt: skip


def energy_table(tables: dict[str, pd.DataFrame]) -> Grid:
    """A row per provider whose energy was measured, and cost where a GPU has a price."""
    rows = tables["energy"]
    priced = rows.usd_per_1e9_calls.notna().any()
    return Grid(
        "energy",
        ("kernel", "GPU", "kind", "case", "provider", "a call", "of GB", "of TFLOP", "board", "at rest",
         *(["USD per 1e9 calls"] if priced else [])),
        [_energy_row(row, priced) for row in rows.itertuples()],
        empty="No energy was measured: `python -m atlas energy KERNEL --gpu GPU` does so after a benchmark.",
        caption="Energy of the whole board over calls back to back, without flushes, the median repeat over the spread "
        "of all; nothing is subtracted. GB of least traffic, TFLOP of declared operations. At rest: the board's power "
        "with nothing to do." + (" Cost: by the time in the loop." if priced else ""),
        numeric=frozenset(range(5, 11)),
    )  # fmt: skip


def _energy_row(row: Any, priced: bool) -> list[Cell]:
    spread = "" if missing(row.joules) else f"{joules(row.joules_least)} to {joules(row.joules_most)}"
    failed = "" if row.status == "ok" else row.reason
    cells = [
        text(row.kernel, style="name"), text(row.gpu, style="name"), origin(row.kind, row.stale),
        text(row.case, note=f"{row.direction} {row.dtype}"),
        text(row.provider, note=failed or config_words(row.config)),
        number(None) if missing(row.joules) else Cell(joules(row.joules), row.joules, spread, "num"),
        number(row.joules_per_gb, "{:.3g} J"), number(row.joules_per_tflop, "{:.3g} J"),
        number(row.watts, "{:.0f} W"), number(row.rest_w, "{:.0f} W"),
    ]  # fmt: skip
    return [*cells, number(row.usd_per_1e9_calls, "{:,.3g}")] if priced else cells


def joules(value: float) -> str:
    """``0.312 J``, ``3.12 mJ`` or ``312 uJ``."""
    for scale, unit in ((1.0, "J"), (1e3, "mJ")):
        if value * scale >= 0.1:
            return f"{value * scale:.3g} {unit}"
    return f"{value * 1e6:.3g} \N{MICRO SIGN}J"


def _row(row: Any) -> list[Cell]:
    return [
        text(row.kernel, style="name"), text(row.gpu, style="name"), origin(row.kind, row.stale),
        text(row.case, note=f"{row.direction} {row.dtype}"), text(row.provider, note=config_words(row.config)),
        _launch(row.launched),
        number(None) if missing(row.duration_us) else Cell(microseconds(row.duration_us), row.duration_us, style="num"),
        _percent(row.dram_percent), _traffic(row), _percent(row.l2_hit_percent), _percent(row.tensor_percent),
        _percent(row.issue_percent), _percent(row.occupancy_percent), number(row.registers, "{:.0f}"),
        number(row.shared_conflicts, "{:,.0f}"),
        text(None if missing(row.stall) else STALLS.get(row.stall, row.stall),
             note="" if missing(row.stall_warps) else f"{row.stall_warps:.2g} warps"),
    ]  # fmt: skip


def _launch(name: str) -> Cell:
    """A kernel without its namespaces, over the beginning of its template arguments; the table has all of it."""
    plain, bracket, arguments = name.partition("<")
    words = f"{bracket}{arguments}"
    shown = words if len(words) <= _ARGUMENTS else f"{words[:_ARGUMENTS]}\N{HORIZONTAL ELLIPSIS}"
    return text(plain.rpartition("::")[2], note=shown)


def _percent(value: Any) -> Cell:
    return number(value, "{:.0f} %")


def _traffic(row: Any) -> Cell:
    if missing(row.dram_read_bytes) or missing(row.dram_write_bytes):
        return number(None)
    moved = row.dram_read_bytes + row.dram_write_bytes
    over = "" if missing(row.bytes) or not row.bytes else f"{moved / row.bytes:.2f}\N{MULTIPLICATION SIGN} needed"
    return Cell(f"{moved / 2**20:,.{0 if moved > 100 * 2**20 else 2}f} MiB", moved, over, "num")
