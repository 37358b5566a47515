"""Whether a finalist computes the right thing on the very inputs it was timed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..declaration import Case, Declaration
from ..host.runtime import as_tuple
from ..validation.guards import Guard
from ..validation.judging import judge
from ..validation.problems import NoReference, Problem, full_precision


class Checker:
    """Judges launches on one problem's inputs by the tolerances of validation; the reference is evaluated once.

    Where the float64 reference does not fit into the device's memory, torch's own result at the case's dtype stands in.
    """

    def __init__(
        self, declaration: Declaration, direction: str, case: Case, device: torch.device, inputs: Mapping[str, Any]
    ):
        self._problem = Problem(declaration, direction, case, device, seed=0, inputs=inputs)
        self._too_large = False  # for the float64 reference

    def wrong(self, thunk: Callable[[], Any]) -> str:
        """What is wrong with the outputs of one launch, or ``""``.

        What the launch allocates is prefilled with NaN between guard bands, so that results left in memory by an
        earlier candidate cannot pass for this one's.  Raises whatever the launch raises, and MemoryError where there is
        nothing to compare with.
        """
        problem, guard = self._problem, Guard(run=0)
        with torch.no_grad(), full_precision(problem.case.dtype), guard:
            outputs = as_tuple(thunk())
        if problem.device.type == "cuda":
            torch.cuda.synchronize(problem.device)
        return guard.overstepped(outputs, problem.work.outputs) or self._judge(outputs)

    def _judge(self, outputs: tuple[torch.Tensor, ...]) -> str:
        problem = self._problem
        if not self._too_large:
            try:
                return problem.judge(outputs).reason
            except NoReference:
                self._too_large = True
        torchs = problem.yardstick
        if torchs is None:
            raise MemoryError("neither the float64 reference nor torch's own result fits into the memory")
        work, case = problem.work, problem.case
        return judge(outputs, torchs, None, work.outputs, work.precision(case), work.reduction(case)).reason
