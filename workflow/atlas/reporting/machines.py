"""What stands behind the figures: which GPUs, which software, and what was proved of the measuring itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..results.collection import Entry
from ..results.summary import KIND_WORDS, listed, rate
from ..results.verdict import KINDS
from .grid import DASH, Cell, Grid, badge, missing, number, text


def gpu_table(tables: dict[str, pd.DataFrame], entries: Sequence[Entry]) -> Grid:
    """Every GPU: where its figures come from, its device and driver, its roofs beside the datasheet's peaks."""
    survey = tables["survey"]
    names = sorted({entry.gpu for entry in entries})
    return Grid(
        "gpus",
        ("GPU", "where", "device", "driver", "power cap", "bandwidth", "matmul bf16", "matmul fp16", "matmul fp32",
         "launch"),
        [_row(gpu, [entry for entry in entries if entry.gpu == gpu], survey[survey.gpu == gpu]) for gpu in names],
        empty="No GPU has any document.",
        caption="Roofs as the survey measured them (bandwidth: reads and writes of a copy); below, the datasheet's.",
        numeric=frozenset({4, 5, 6, 7, 8, 9}),
    )  # fmt: skip


def _row(gpu: str, own: Sequence[Entry], survey: pd.DataFrame) -> list[Cell]:
    kinds = sorted({entry.kind for entry in own}, key=KINDS.index)
    shown = [kind for kind in kinds if kind != "compiled"] or kinds
    devices = [entry.document["device"] for entry in own if entry.document["device"]]
    known = {key: value for device in devices for key, value in device.items()}
    drivers = sorted({device["driver"] for device in devices if device.get("driver")})
    return [
        text(gpu, style="name"),
        badge("kind", label=listed([KIND_WORDS[kind] for kind in shown])),
        text(known.get("device_name")),
        text(listed(drivers) if drivers else None),
        number(known.get("power_cap_w"), "{:.0f} W"),
        _roof(survey, "copy", "bandwidth"),
        *(_roof(survey, name, name) for name in ("matmul_bf16", "matmul_fp16", "matmul_fp32")),
        _roof(survey, "launch_latency", None),
    ]


def _roof(survey: pd.DataFrame, measured: str, peak: str | None) -> Cell:
    own = survey[(survey.kind != "published") & (survey.roof == measured)]
    sheet = survey[(survey.kind == "published") & (survey.roof == peak)]
    note = f"peak {rate(sheet.value.iloc[0], sheet.unit.iloc[0])}" if len(sheet) else ""
    if own.empty or missing(own.value.iloc[0]):
        reason = own.status.iloc[0] if len(own) else DASH
        return Cell(reason, sort=float("-inf"), note=note, style="num")
    value, unit = own.value.iloc[0], own.unit.iloc[0].replace("us", "\N{MICRO SIGN}s")
    return Cell(rate(value, unit), sort=value, note=note, style="num")


def provenance(entries: Sequence[Entry]) -> Grid:
    """Versions, commit, protocols and dates: one row for each set that differs."""
    groups: dict[tuple, list[Entry]] = {}
    for entry in entries:
        software = entry.document["software"]
        versions = tuple(software.get(name) or DASH for name in ("torch", "triton", "cuda", "python", "commit"))
        groups.setdefault((entry.gpu, entry.kind, versions), []).append(entry)
    rows = []
    for (gpu, kind, versions), group in sorted(groups.items()):
        dates = sorted(d[:10] for entry in group if (d := entry.document["software"].get("date")))
        protocols = sorted({entry.document["protocol"] for entry in group if entry.document.get("protocol")})
        span = DASH if not dates else dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        rows.append([
            text(gpu, style="name"), badge("kind", label=kind), number(len(group), "{:.0f}"),
            *(text(version) for version in versions), text(", ".join(protocols)), text(span),
        ])  # fmt: skip
    return Grid(
        "provenance",
        ("GPU", "kind", "documents", "torch", "Triton", "CUDA", "Python", "commit", "protocols", "dates"),
        rows,
        empty="There are no documents.",
        caption="Behind + (before: as -dirty) stands a digest of changes to kernels or stages that were not committed.",
        numeric=frozenset({2}),
    )


def proof_table(proofs: Sequence[Entry]) -> Grid:
    """A row for each claim, with what was found beside its limit; a proof without claims says why."""
    return Grid(
        "proofs",
        ("proof", "GPU", "kind", "claim", "found", "limit", "outcome", "date"),
        [row for entry in proofs for row in _rows(entry)],
        empty="Nothing was proved: `python -m proofs` tries the measuring core on the GPU at hand.",
        caption="What each proof does, and what it does not show: docs/proving.md.",
    )


def _rows(entry: Entry) -> list[list[Cell]]:
    document = entry.document
    date = (document["software"].get("date") or DASH)[:10]
    head = [text(document["proof"], style="name"), text(entry.gpu, style="name"), badge("kind", label=entry.kind)]
    if not document["claims"]:
        return [[*head, text(document["reason"]), text(None), text(None), badge("failed"), text(date)]]
    return [
        [
            *head,
            text(claim["text"]),
            text(_figure(claim["found"])),
            text(_limit(claim)),
            badge("ok", label="holds") if claim["holds"] else badge("wrong", label="does not hold"),
            text(date),
        ]
        for claim in document["claims"]
    ]


def _limit(claim: Mapping[str, Any]) -> str | None:
    """The limit with its sense, which the document's outcome tells: ``at most 3``, ``at least 0.8``."""
    found, limit = claim["found"], claim["limit"]
    numbers = all(isinstance(value, int | float) for value in (found, limit))
    if not numbers or found == limit:
        return _figure(limit)
    return f"at {'most' if (found < limit) == claim['holds'] else 'least'} {_figure(limit)}"


def _figure(value: float | str | None) -> str | None:
    return f"{value:.4g}" if isinstance(value, float) else None if value is None else str(value)
