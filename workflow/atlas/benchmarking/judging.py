"""What a benchmark's rows are worth: outputs checked before they are timed, times compared, the document's status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..host.runtime import as_tuple
from ..results.subject import PassCase
from ..validation.judging import judge
from ..validation.problems import NoReference, Problem


class Expected:
    """What is expected of one problem, shared by its providers.

    The reference is evaluated in float64; where that does not fit into memory, torch's own operation in float32 takes
    its place, whose error is far below the tolerance of 16-bit dtypes and within that of fp32.
    """

    def __init__(self, problem: Problem):
        self._problem = problem
        self._widened: tuple[torch.Tensor, ...] | None = None
        if problem.work.random is None:  # else it hangs on the mask of each launch
            self._expected_of(())

    def variant(self, outputs: Any) -> str:
        """Why a variant's outputs are wrong, by validation's rule, or ``""``."""
        outputs = as_tuple(outputs)
        return self._judge(outputs, *self._expected_of(outputs), self._problem.yardstick_of(outputs))

    def peer(self, outputs: Any) -> str:
        """Why a peer's outputs are wrong, or ``""``: the tolerance alone counts, not torch's error.

        A peer may return fewer outputs than the reference.
        """
        outputs = as_tuple(outputs)
        expected, spreads = (each[: len(outputs)] for each in self._expected_of(outputs))
        reason = self._judge(outputs, expected, spreads, None)
        # An ill-conditioned case widens the tolerance to what torch itself needs.
        return reason if reason and self._judge(outputs, expected, spreads, self._problem.yardstick_of(outputs)) else ""

    def _expected_of(self, outputs: tuple[torch.Tensor, ...]) -> tuple[tuple[torch.Tensor | None, ...], ...]:
        """(what is expected, and the spreads that a pass declares, which take as much memory)."""
        if self._widened is None:
            try:
                return self._problem.expected_of(outputs), self._problem.spread_of(outputs)
            except NoReference:
                self._widened = _in_float32(self._problem)
        return self._widened, ()

    def _judge(self, outputs: Any, expected: Any, spreads: Any, yardstick: Any) -> str:
        work, case = self._problem.work, self._problem.case
        names, dtype, reduction = work.outputs, work.precision(case), work.reduction(case)
        return judge(outputs, expected, yardstick, names, dtype, reduction, spreads=spreads).reason


def _in_float32(problem: Problem) -> tuple[torch.Tensor, ...]:
    torch.cuda.empty_cache()
    inputs = _widened(problem.inputs)
    return tuple(output.detach() for output in as_tuple(problem.work.peers["torch"].prepare(**inputs)()))


def _widened(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


APART = 0.005
"""Quartile intervals must be this far apart for a difference to count."""
TOO_FAST = 10.0
"""A variant this many times faster than the fastest peer is checked by a person before it is believed."""


def verdict(row: dict[str, Any], other: dict[str, Any]) -> str:
    """``faster``, ``slower``, ``same`` or ``undecided``: this row's times against another's.

    Decided where the quartile intervals are 0.5 % apart; ``same`` where they are not and the medians are within 0.5 %.
    """
    if row["q3_us"] * (1 + APART) < other["q1_us"]:
        return "faster"
    if other["q3_us"] * (1 + APART) < row["q1_us"]:
        return "slower"
    smaller, larger = sorted((row["median_us"], other["median_us"]))
    return "same" if larger <= smaller * (1 + APART) else "undecided"


def compare(rows: list[dict[str, Any]]) -> None:
    """Fill ``speedup`` and ``verdict`` of one case's rows, and mark variants that are too fast to be true.

    Beside a peer that is not ``queued`` any factor may be true: its figure holds what its launches take.  Where all
    peers that ran are weak, each row says in ``weak`` why the fastest is.
    """
    peers = [row for row in rows if row["provider_kind"] == "peer" and row["status"] == "ok"]
    if not peers:
        return
    fastest = min(peers, key=lambda row: row["median_us"])
    weak = fastest["weak"] if all(row.get("weak") for row in peers) else ""
    for row in rows:
        if row.get("median_us") is None:
            continue
        if weak and row["provider_kind"] != "peer":
            row["weak"] = weak
        row["speedup"] = fastest["median_us"] / row["median_us"]
        row["verdict"] = None if row is fastest else verdict(row, fastest)
        if row["status"] == "ok" and row["speedup"] > TOO_FAST and fastest["queued"]:
            row["status"] = "suspect"
            row["reason"] = f"{row['speedup']:.3g} times faster than the fastest peer, {fastest['provider']}"


def outcome(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """``status`` and ``reason`` of the document: the worst of the variants' rows, with the first that has it.

    Peers that are wrong, fail or are missing concern nobody but their own row; but one that is faster than the
    hardware allows shows that the yardstick is wrong, so ``suspect`` counts whoever it is.
    """
    ranked = {"wrong": [], "failed": [], "suspect": []}
    for row in rows:
        if row["status"] in ranked and (row["provider_kind"] != "peer" or row["status"] == "suspect"):
            ranked[row["status"]].append(row)
    for status, found in ranked.items():
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            return {"status": status, "reason": f"{_name(found[0])}: {found[0]['reason']}{more}"}
    return {"status": "ok", "reason": ""}


def _name(row: Mapping[str, Any]) -> str:
    kind = {"variant": "tuned", "default": "untuned", "peer": "peer"}[row["provider_kind"]]
    return f"{kind} {row['provider']} {PassCase.of(row)}"
