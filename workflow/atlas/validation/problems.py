"""One case with one seed: its inputs, what is expected of them in float64, and what torch makes of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..declaration import Case, Declaration, Pass
from ..host.runtime import as_tuple, draw, exact
from . import tolerances
from .judging import Judgement, judge

_SWITCHES = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


class NoReference(Exception):
    """The reference cannot be evaluated here: its float64 form needs more memory than there is."""


@contextlib.contextmanager
def full_precision(dtype: str) -> Iterator[None]:
    """Torch multiplies fp32 in IEEE precision inside (in tf32 for cases of dtype ``tf32``), 16 bits with fp32 sums.

    On a CPU it does without oneDNN, whose gelu of infinity is NaN on some (pytorch#185770), as if a kernel's might be.
    """
    matmul, onednn = torch.backends.cuda.matmul, torch.backends.mkldnn
    before = matmul.fp32_precision, [getattr(matmul, name) for name in _SWITCHES], onednn.enabled
    onednn.enabled = False
    matmul.fp32_precision = "tf32" if dtype == "tf32" else "ieee"
    for name in _SWITCHES:
        setattr(matmul, name, False)
    try:
        yield
    finally:
        matmul.fp32_precision = before[0]
        onednn.enabled = before[2]
        for name, value in zip(_SWITCHES, before[1], strict=True):
            setattr(matmul, name, value)


def answered(outputs: Any) -> tuple[torch.Tensor, ...]:
    """Torch's outputs as a tuple; NotImplementedError where there is none, as of nothing by cuDNN (torch 2.11)."""
    outputs = as_tuple(outputs)
    if any(output is None for output in outputs):
        raise NotImplementedError("torch returns nothing")
    return outputs


@dataclass(eq=False)
class Problem:
    """Inputs drawn from ``seed`` (or given), and lazily the results to compare with, shared by all variants."""

    declaration: Declaration
    direction: str
    case: Case
    device: torch.device
    seed: int
    inputs: Mapping[str, Any] = field(default_factory=dict)
    conditioned: float = tolerances.CONDITIONING_FACTOR
    """How many times what a rounding of the inputs changes is allowed where a result would fail otherwise."""

    def __post_init__(self):
        if not self.inputs:
            self.inputs = draw(self.work, self.case, self.device, self.seed)

    @property
    def work(self) -> Pass:
        """The pass this is a problem of."""
        return self.declaration.passes[self.direction]

    @functools.cached_property
    def expected(self) -> tuple[torch.Tensor, ...]:
        """The reference's outputs from the inputs in float64; :class:`NoReference` where memory does not suffice.

        A random pass has none before a launch has shown which elements it keeps: see :meth:`expected_of`.
        """
        return self._evaluate(exact(self.inputs))

    def expected_of(self, outputs: Any) -> tuple[torch.Tensor, ...]:
        """What the reference expects of a launch with these outputs; for a random pass that hangs on its mask."""
        mask = self.mask(outputs)
        return self.expected if mask is None else self._evaluate(exact(self.inputs), mask)

    def spread_of(self, outputs: Any) -> tuple[torch.Tensor | None, ...]:
        """What roundings are measured in, for each output as its pass declares; empty where it does not."""
        if self.work.spread is None:
            return ()
        mask = self.mask(outputs)
        return self._spread if mask is None else self._evaluate(exact(self.inputs), mask, self.work.spread)

    @functools.cached_property
    def _spread(self) -> tuple[torch.Tensor | None, ...]:
        return self._evaluate(exact(self.inputs), compute=self.work.spread)

    def mask(self, outputs: Any) -> torch.Tensor | None:
        """Which elements a random pass kept, by its outputs; None for a pass that draws no random numbers."""
        random = self.work.random
        return None if random is None else random.mask(self.inputs, as_tuple(outputs))

    def _evaluate(
        self,
        inputs: Mapping[str, Any],
        mask: torch.Tensor | None = None,
        compute: Callable[..., Any] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """The reference's outputs, or what else is computed from its arguments."""
        given = {} if mask is None else {"mask": mask}
        try:
            with torch.no_grad():
                return as_tuple((compute or self.work.reference)(**inputs, **given))
        except torch.OutOfMemoryError:
            raise NoReference("the float64 reference does not fit into the memory") from None

    @functools.cached_property
    def yardstick(self) -> tuple[torch.Tensor, ...] | None:
        """Torch's own outputs at the case's dtype, None where torch cannot run it (no such dtype on this device)."""
        return self._as_torch(lambda: self.work.peers["torch"].prepare(**self.inputs)())

    def yardstick_of(self, outputs: Any) -> tuple[torch.Tensor, ...] | None:
        """Torch's outputs to measure a launch by; of a random pass the reference's at the dtype, with the same mask."""
        mask = self.mask(outputs)
        return self.yardstick if mask is None else self._as_torch(lambda: self._evaluate(self.inputs, mask))

    def _as_torch(self, compute: Callable[[], Any]) -> tuple[torch.Tensor, ...] | None:
        try:
            with full_precision(self.case.dtype):
                outputs = answered(compute())
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            return None
        return tuple(output.detach() for output in outputs)

    def judge(self, outputs: Any, fewer: bool = False) -> Judgement:
        """Compare a launch's outputs with the reference and with torch; ``fewer`` outputs may do."""
        work, case, outputs = self.work, self.case, as_tuple(outputs)
        expected, mask = self.expected_of(outputs), self.mask(outputs)
        expected = expected[: len(outputs)] if fewer else expected
        results = 1 if self.direction == "forward" else None
        names, dtype, reduction = work.outputs, work.precision(case), work.reduction(case)
        yardstick = self.yardstick_of(outputs)
        spreads = self.spread_of(outputs)
        found = judge(outputs, expected, yardstick, names, dtype, reduction, results, spreads=spreads)
        if not found.reason or len(outputs) < len(expected):
            return found
        granted = tolerances.conditioning_slack(
            lambda inputs: self._evaluate(inputs, mask), self.inputs, expected, self.seed, self.conditioned
        )
        return judge(outputs, expected, yardstick, names, dtype, reduction, results, granted, spreads)

    def with_inputs(self, inputs: Mapping[str, Any], factor: float = tolerances.CONDITIONING_FACTOR) -> Problem:
        """The same problem of other inputs, whose conditioning counts ``factor`` times."""
        return Problem(self.declaration, self.direction, self.case, self.device, self.seed, inputs, factor)
