"""Documents to rows, each a dict of the columns of its table: a function per stage, then kernel x GPU cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .. import catalog
from ..host.gpus import functional
from ..reading.published import Point
from ..results.beyond import against_peers
from ..results.changes import against_record
from ..results.collection import Entry
from ..results.subject import PassCase, as_json, label
from ..results.surveyed import BF16X6, with_bf16x6
from ..results.verdict import best_of_each_case, figure, geometric_mean, verdicts
from .store import TABLES

Row = dict[str, Any]


def arch_name(target: Mapping[str, Any]) -> str:
    """``sm_90`` for CUDA, ``gfx942`` for HIP."""
    return f"sm_{target['arch']}" if target["backend"] == "cuda" else str(target["arch"])


def _subject(entry: Entry) -> Row:
    return {"kind": entry.kind, "gpu": entry.gpu, "kernel": entry.kernel}


def _case(row: Mapping[str, Any]) -> Row:
    found = PassCase.of(row)
    return found.to_json() | {"case": found.case, "sizes": as_json(row["sizes"])}


def _provenance(entry: Entry) -> Row:
    device, software = entry.document["device"], entry.document["software"]
    beside = entry.document.get("neighbours", {})
    return {
        "device_name": device.get("device_name"),
        "driver": device.get("driver"),
        "power_cap_w": device.get("power_cap_w"),
        "neighbour_gpus": beside.get("gpus"),
        "cores_busy": beside.get("cores_busy"),
        "torch": software.get("torch"),
        "triton": software.get("triton"),
        "commit": software.get("commit"),
        "date": software.get("date"),
    }


def _version(entry: Entry, row: Mapping[str, Any]) -> Row:
    """Of what a row is true, and whether that is still so."""
    variant = row.get("variant", row.get("provider"))
    named = variant and row.get("provider_kind") != "peer"
    return {
        "kernel_digest": entry.document["kernel_digest"],
        "identity": entry.identity(row["direction"], variant) if named else None,
        "stale": entry.stale_row(row),
    }


def _shared(row: Mapping[str, Any], table: str) -> Row:
    """What the document's row and the table call by the same name."""
    return {key: row[key] for key in TABLES[table] if key in row}


def benchmark(entries: Iterable[Entry]) -> Iterator[Row]:
    """One row per provider, direction, dtype and case."""
    for entry in _of(entries, "benchmark"):
        family = catalog.family(entry.kernel)
        winners = {PassCase.of(row): row for row in best_of_each_case(entry.document["rows"])}
        for row in entry.document["rows"]:
            winner = winners.get(PassCase.of(row), {})
            best = row["provider_kind"] == "variant" and row["provider"] == winner.get("provider")
            yield (
                _shared(row, "benchmark")
                | _subject(entry)
                | _case(row)
                | {"config": as_json(row["config"]), "samples": len(row.get("samples_us", ()))}
                | {"family": family, "best": best, "peer": winner.get("peer"), "protocol": entry.document["protocol"]}
                | _version(entry, row)
                | _provenance(entry)
            )


def ladder(entries: Iterable[Entry]) -> Iterator[Row]:
    """One row per rung and GPU, of benchmarks on real ones that hold the ladder.

    A rung counts with the faster of its tuned and its default config: a tuner's finals are run among the fastest of all
    variants, so what it finds for one that loses may be slower than that one's default.
    """
    for entry in _of(entries, "benchmark"):
        if entry.kind == "functional":
            continue
        rows = entry.document["rows"]
        fastest = {PassCase.of(row): row["provider"] for row in best_of_each_case(rows)}
        timed: dict[tuple[str, str], dict[PassCase, Mapping[str, Any]]] = {}
        for row in rows:
            if row["provider_kind"] in ("variant", "default") and row["status"] == "ok" and row.get("median_us"):
                own = timed.setdefault((row["direction"], row["provider"]), {})
                own[PassCase.of(row)] = min(row, own.get(PassCase.of(row), row), key=lambda one: one["median_us"])
        forward_first = sorted(timed, key=lambda key: key[0] != "forward")
        unordered = [{"direction": d, "variant": v, "follows": "", "summary": ""} for d, v in forward_first]
        for step in entry.document.get("steps", unordered):  # earlier documents hold no ladder
            own = timed.get((step["direction"], step["variant"]), {})
            before = timed.get((step["direction"], step["follows"]), {})
            gains = [before[key]["median_us"] / own[key]["median_us"] for key in own if key in before]
            yield (
                dict(step)
                | _subject(entry)
                | {"cases": len(own), "fastest": sum(fastest.get(key) == step["variant"] for key in own)}
                | {"compared": len(gains), "step_geomean": geometric_mean(gains)}
                | {"step_least": min(gains, default=None), "step_most": max(gains, default=None)}
                | _largest(own.values())
                | _version(entry, step)
                | {"date": entry.document["software"].get("date")}
            )


def _largest(rows: Iterable[Mapping[str, Any]]) -> Row:
    """The figure of a variant's largest case, in bf16 where it has one; nothing of no rows."""
    row = max(rows, key=lambda row: (row["dtype"] == "bf16", row["bytes"]), default=None)
    if row is None:
        return {}
    value, unit = figure(row)
    return {"dtype": row["dtype"], "case": PassCase.of(row).case, "figure": value, "unit": unit}


def changes(pairs: Iterable[tuple[Entry, Entry]]) -> Iterator[Row]:
    """One row per case that a measured benchmark and its record both timed."""
    for row in against_record(pairs):
        configs = {key: as_json(row[key]) for key in ("config", "recorded_config")}
        yield row | _case(row) | configs


def build(entries: Iterable[Entry]) -> Iterator[Row]:
    """One row per compiled config."""
    for entry in _of(entries, "build"):
        scope = entry.document["scope"]
        for row in entry.document["configs"]:
            yield (
                _shared(row, "build")
                | _subject(entry)
                | _case(row)
                | {"config": as_json(row["config"]), "arch": arch_name(entry.document["target"])}
                | {"scope": scope["mode"], "scope_total": scope["total"], "scope_compiled": scope["compiled"]}
                | _version(entry, row)
                | _provenance(entry)
            )


def profile(entries: Iterable[Entry]) -> Iterator[Row]:
    """One row per kernel launch of a profiled call."""
    for entry in _of(entries, "profile"):
        for row in entry.document["rows"]:
            for number, launch in enumerate(row["launches"]):
                stall, warps = next(iter(launch["stalls"].items()), (None, None))
                yield (
                    _shared(row, "profile")
                    | _shared(launch, "profile")
                    | _subject(entry)
                    | _case(row)
                    | {"config": as_json(row["config"]), "launch": number, "launched": launch["kernel"]}
                    | {"stall": stall, "stall_warps": warps}
                    | _version(entry, row)
                    | _provenance(entry)
                )


def energy(entries: Iterable[Entry], blocks: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """One row per provider and case; cost where the GPU's block has a price."""
    for entry in _of(entries, "energy"):
        document, price = entry.document, blocks.get(entry.gpu, {}).get("usd_per_hour")
        for row in document["rows"]:
            joules, time = row.get("joules"), row.get("loop_us")
            yield (
                _shared(row, "energy")
                | _subject(entry)
                | _case(row)
                | {"config": as_json(row["config"]), "how": document.get("how"), "rest_w": document.get("rest_w")}
                | {"joules_per_gb": joules / (row["bytes"] / 1e9) if joules and row["bytes"] else None}
                | {"joules_per_tflop": joules / (row["flops"] / 1e12) if joules and row["flops"] else None}
                | {"usd_per_1e9_calls": time * price / 3.6 if time and price else None}
                | {"protocol": document["protocol"]}
                | _version(entry, row)
                | _provenance(entry)
            )


def beyond(entries: Iterable[Entry]) -> Iterator[Row]:
    """One row per call of a public function beyond the tuned cases."""
    for entry in _of(entries, "beyond"):
        document = entry.document
        for row in against_peers(document["rows"]):
            yield (
                _shared(row, "beyond")
                | _subject(entry)
                | {"case": label(row["sizes"]), "sizes": as_json(row["sizes"])}
                | {"seed": document["seed"], "protocol": document["protocol"], "stale": entry.stale}
                | _provenance(entry)
            )


def validation(entries: Iterable[Entry]) -> Iterator[Row]:
    """One row per check."""
    for entry in _of(entries, "validate"):
        for row in entry.document["checks"]:
            yield (
                _shared(row, "validation")
                | _subject(entry)
                | _case(row)
                | {"config": as_json(row.get("config")), "protocol": entry.document["protocol"]}
                | _version(entry, row)
                | _provenance(entry)
            )


def trials(entries: Iterable[Entry]) -> Iterator[Row]:
    """One row per trial."""
    for entry in _of(entries, "autotune"):
        document = entry.document
        won = {(PassCase.of(row), row["variant"], as_json(row["config"])) for row in document["best"]}
        for row in document["trials"]:
            config = as_json(row["config"])
            yield (
                _shared(row, "trials")
                | _subject(entry)
                | _case(row)
                | {"config": config, "best": (PassCase.of(row), row["variant"], config) in won}
                | {"strategy": document["strategy"], "protocol": document["protocol"]}
                | _version(entry, row)
                | _provenance(entry)
            )


def survey(entries: Iterable[Entry], blocks: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """One row per measured roof, then one per price and datasheet peak of ``blocks``, of kind published."""
    for entry in _of(entries, "survey"):
        for roof in (*entry.document["roofs"], *_bf16x6(entry.document["roofs"])):
            yield (
                {"status": "ok", "reason": ""}
                | _shared(roof, "survey")
                | {"kind": entry.kind, "gpu": entry.gpu, "roof": roof["name"]}
                | {"protocol": entry.document["protocol"]}
                | _provenance(entry)
            )
    for gpu, block in blocks.items():
        sheet = block.get("datasheet")
        if "usd_per_hour" in block:
            yield {"kind": "published", "gpu": gpu, "roof": "price", "value": block["usd_per_hour"], "unit": "USD/h",
                   "how": "config/gpus.yaml", "status": "ok", "reason": ""}  # fmt: skip
        if sheet is None:
            continue
        peaks = {"bandwidth": (sheet["bandwidth_gb_per_s"], "GB/s")}
        peaks |= {f"matmul_{dtype}": (value, "TFLOP/s") for dtype, value in sheet.get("tflop_per_s", {}).items()}
        if sixth := with_bf16x6({name: value for name, (value, _) in peaks.items()}).get(BF16X6):
            peaks[BF16X6] = (round(sixth, 1), "TFLOP/s")
        for roof, (value, unit) in peaks.items():
            yield {"kind": "published", "gpu": gpu, "roof": roof, "value": value, "unit": unit,
                   "how": sheet["source"], "status": "ok", "reason": ""}  # fmt: skip


def _bf16x6(roofs: Iterable[Row]) -> list[Row]:
    """The other roof of fp32 products, which follows from one of a survey."""
    values = {roof["name"]: roof["value"] for roof in roofs if roof["value"]}
    sixth = with_bf16x6(values).get(BF16X6)
    how = "a sixth of matmul_bf16: six products of three bf16 terms are as exact as one of fp32"
    return [{"name": BF16X6, "value": sixth, "unit": "TFLOP/s", "how": how}] if sixth else []


def predictions(entries: Iterable[Entry]) -> Iterator[Row]:
    """One row per predicted case."""
    for entry in entries:
        document = entry.document
        for row in document["rows"]:
            yield (
                _shared(row, "predictions")
                | _subject(entry)
                | _case(row)
                | {"config": as_json(row["config"]), "from_gpu": document["from_gpu"]}
                | {"protocol": document["protocol"], "date": document["software"].get("date")}
                | _version(entry, row)
            )


def published(points: Iterable[Point]) -> Iterator[Row]:
    """One row per figure of config/published.yaml."""
    for point in points:
        row = {"direction": point.direction, "dtype": point.dtype, "sizes": point.sizes}
        named = ("gpu", "kernel", "entry", "library", "version", "peer", "value", "unit", "date", "source", "note")
        yield (
            {"kind": "published", point.column: point.value}
            | {name: getattr(point, name) or None for name in named}
            | _case(row)
        )


def _of(entries: Iterable[Entry], stage: str) -> list[Entry]:
    return [entry for entry in entries if entry.stage == stage]


NONE = "none"
"""Status and kind of a cell that no document stands behind."""

_STAGES = ("build", "validate", "autotune", "benchmark")
_OPTIONAL = ("sample", "beyond", "profile", "energy")
"""Stages that not every run has: a row where a document is, and none where none is."""


def coverage(entries: Iterable[Entry], blocks: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """One row per (kernel, GPU, stage): of the kernels and GPUs that have any document, every stage the GPU has.

    Of stages that are not in every run the documents there are.  ``blocks`` are those of gpus.yaml; the survey's rows
    have no kernel.
    """
    entries = list(entries)
    by_cell = {(entry.kernel, entry.gpu, entry.stage): entry for entry in entries}
    kernels, gpus = _axes(entries)
    cells = [(None, gpu, "survey") for gpu in gpus if not _functional(gpu, blocks)]
    cells += [
        (kernel, gpu, stage)
        for kernel in kernels
        for gpu in gpus
        for stage in _STAGES
        if not (stage == "build" and _functional(gpu, blocks))
    ]
    cells += [cell for cell in sorted(by_cell, key=str) if cell[2] in _OPTIONAL]
    for kernel, gpu, stage in cells:
        entry = by_cell.get((kernel, gpu, stage))
        yield {"kernel": kernel, "gpu": gpu, "stage": stage} | (_there(entry) if entry else _absent(kernel, gpu, stage))


def _there(entry: Entry) -> Row:
    document = entry.document
    return {
        "kind": entry.kind,
        "status": document["status"],
        "reason": document["reason"],
        "seconds": document["seconds"],
        "stale": entry.stale,
        "date": document["software"].get("date"),
    }


def _absent(kernel: str | None, gpu: str, stage: str) -> Row:
    subject = gpu if kernel is None else f"{kernel} on {gpu}"
    reason = "nothing was compiled" if stage == "build" else f"{subject} was not measured here and there is no record"
    return {"kind": NONE, "status": NONE, "reason": reason, "stale": False}


def verdict_rows(entries: Iterable[Entry]) -> Iterator[Row]:
    """One row per kernel and GPU; of a pair without documents it says so, with status ``none``."""
    entries = list(entries)
    judged = {(row["kernel"], row["gpu"]): row for row in verdicts(entries)}
    kernels, gpus = _axes(entries)
    for kernel in kernels:
        for gpu in gpus:
            row = judged.get((kernel, gpu))
            if row is None:
                yield {"kernel": kernel, "gpu": gpu} | _absent(kernel, gpu, "any") | {"failing": False, "stages": "{}"}
            else:
                yield _flat(row)


def _flat(row: Mapping[str, Any]) -> Row:
    worst = row["worst_case"]
    flat = dict(row) | {
        "stages": as_json(row["stages"]),
        "config": as_json(row["config"]),
        "case": row["headline_case"] and label(row["headline_case"]),
        "worst_case": worst and str(PassCase.of(worst)),
    }
    del flat["headline_case"]
    return flat


def _axes(entries: list[Entry]) -> tuple[list[str], list[str]]:
    kernels = sorted({entry.kernel for entry in entries if entry.kernel is not None})
    return kernels, sorted({entry.gpu for entry in entries})


def _functional(gpu: str, blocks: Mapping[str, Mapping[str, Any]]) -> bool:
    return gpu in blocks and functional(blocks[gpu])
