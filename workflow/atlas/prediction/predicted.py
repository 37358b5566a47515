"""A kernel's predicted rows on a GPU, from documents of the GPU that timed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..benchmarking.roofs import cost
from ..declaration import Declaration
from .configs import Chosen, chosen, key, trials
from .knowledge import Known
from .scaling import Span, scaled

PROTOCOL = "prediction/1"

_MATRIX = ("fma", "mma", "wgmma", "tcgen05")


def rows(
    declaration: Declaration,
    tuned: Mapping[str, Any],
    build: Mapping[str, Any] | None,
    source: Known,
    target: Known,
) -> Iterator[dict[str, Any]]:
    """One row per pass and case of the target's sweep.

    ``tuned`` is the source's autotune document, ``build`` what was compiled for the target, None for nothing.
    """
    compiled = build["configs"] if build is not None else []
    refused = {key((row["variant"], row["config"])) for row in compiled if row["status"] in ("pruned", "failed")}
    for direction, work in declaration.passes.items():
        known = trials(tuned, direction, source.gpu)
        instructions = {
            (row["variant"], row["dtype"]): row["matrix_instruction"]
            for row in compiled
            if row["direction"] == direction and row.get("matrix_instruction") in _MATRIX
        }
        for case in declaration.cases(target.gpu):
            spent = cost(work, case)
            row = {"direction": direction, **case.to_json(), "bytes": spent.bytes, "flops": spent.flops}
            made = chosen(declaration, direction, case, target.gpu, known, refused)
            if isinstance(made, str):
                status = "unknown" if made.startswith("not timed") else "unsupported"
                yield row | {"variant": None, "config": None, "status": status, "reason": made}
                continue
            instruction = instructions.get((made.variant, case.dtype), "")
            span = scaled(made.us, made.error, spent, case.dtype, source, target, instruction)
            path = target.through(instruction or None, case.dtype)[1]
            bound = span.roof is not None and span.roof.roof.startswith("matmul")
            yield row | _found(made, span) | {"path": path if bound else ""}


def _found(made: Chosen, span: Span) -> dict[str, Any]:
    roof = span.roof
    return {
        "variant": made.variant,
        "config": dict(made.config),
        "status": "ok",
        "reason": "",
        "median_us": round(span.us, 3),
        "low_us": round(span.low_us, 3),
        "high_us": round(span.high_us, 3),
        "roof": roof.roof if roof else None,
        "roof_fraction": round(roof.roof_us / span.us, 4) if roof else None,
        "grounds": made.grounds,
    }


def with_rates(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the GB/s and TFLOP/s of its time; without one as it is."""
    us = row.get("median_us")
    if not us:
        return dict(row)
    return dict(row) | {"gb_per_s": row["bytes"] / (1e3 * us), "tflop_per_s": row["flops"] / (1e6 * us)}
