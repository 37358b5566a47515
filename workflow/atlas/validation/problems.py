"""One case with one seed: its inputs, what is expected of them in float64, and what torch makes of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..declaration import Case, Declaration, Pass
from ..runtime import as_tuple, draw, exact
from .judging import Judgement, judge

_SWITCHES = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


class NoReference(Exception):
    """The reference cannot be evaluated here: its float64 form needs more memory than there is."""


@contextlib.contextmanager
def full_precision(dtype: str) -> Iterator[None]:
    """Torch multiplies fp32 in IEEE precision inside (in tf32 for cases of dtype ``tf32``), 16 bits with fp32 sums."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision, [getattr(matmul, name) for name in _SWITCHES]
    matmul.fp32_precision = "tf32" if dtype == "tf32" else "ieee"
    for name in _SWITCHES:
        setattr(matmul, name, False)
    try:
        yield
    finally:
        matmul.fp32_precision = before[0]
        for name, value in zip(_SWITCHES, before[1], strict=True):
            setattr(matmul, name, value)


@dataclass(eq=False)
class Problem:
    """Inputs drawn from ``seed`` (or given), and lazily the results to compare with, shared by all variants."""

    declaration: Declaration
    direction: str
    case: Case
    device: torch.device
    seed: int
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if not self.inputs:
            self.inputs = draw(self.work, self.case, self.device, self.seed)

    @property
    def work(self) -> Pass:
        """The pass this is a problem of."""
        return self.declaration.passes[self.direction]

    @functools.cached_property
    def expected(self) -> tuple[torch.Tensor, ...]:
        """The reference's outputs from the inputs in float64; :class:`NoReference` where memory does not suffice."""
        try:
            with torch.no_grad():
                return as_tuple(self.work.reference(**exact(self.inputs)))
        except torch.OutOfMemoryError:
            raise NoReference("the float64 reference does not fit into the memory") from None

    @functools.cached_property
    def yardstick(self) -> tuple[torch.Tensor, ...] | None:
        """Torch's own outputs at the case's dtype, None where torch cannot run it (no such dtype on this device)."""
        try:
            with full_precision(self.case.dtype):
                outputs = as_tuple(self.work.peers["torch"].prepare(**self.inputs)())
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            return None
        return tuple(output.detach() for output in outputs)

    def judge(self, outputs: Any) -> Judgement:
        """Compare a launch's outputs with the reference and with torch."""
        work, case = self.work, self.case
        return judge(
            as_tuple(outputs),
            self.expected,
            self.yardstick,
            work.outputs,
            case.dtype,
            work.reduction(case),
            results=1 if self.direction == "forward" else None,
        )

    def with_inputs(self, inputs: Mapping[str, Any]) -> Problem:
        """The same problem of other inputs."""
        return Problem(self.declaration, self.direction, self.case, self.device, self.seed, inputs)
