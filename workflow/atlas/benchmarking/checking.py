"""Check what is about to be timed: fast and wrong is no result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..host.runtime import as_tuple
from ..validation.judging import judge
from ..validation.problems import NoReference, Problem


class Check:
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
