"""Judge a result against the float64 reference and against torch at the same dtype."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from . import patterns, tolerances

_KEPT = 8
_CHUNK = 2**24  # elements compared at a time: float64 temporaries of a large output stay below a gigabyte


@dataclass(frozen=True)
class Judgement:
    """What a comparison found; ``reason`` is empty where the result is right.

    ``tolerance_used`` is the largest error over what is allowed at its element, 1 the limit; ``error_over_torch`` the
    largest error over torch's, 2 the limit, None where torch cannot run the case.  ``atol`` is that of an element of
    the root mean square of spreads where a pass declares them.
    """

    reason: str = ""
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    rtol: float = 0.0
    atol: float = 0.0
    tolerance_used: float = 0.0
    error_over_torch: float | None = None
    wrong: tuple[patterns.Element, ...] = ()
    """The first wrong elements, for whoever explains them."""

    @property
    def severity(self) -> tuple[bool, float, float]:
        """Sorts the worse of two judgements last."""
        return bool(self.reason), self.tolerance_used, self.error_over_torch or 0.0


def judge(
    outputs: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    yardstick: Sequence[torch.Tensor] | None,
    names: Sequence[str],
    dtype: str,
    reduction: int,
    results: int | None = None,
    slack: Sequence[float] = (),
    spreads: Sequence[torch.Tensor | None] = (),
    passes: int = 1,
) -> Judgement:
    """Compare every output with the float64 ``expected``; the worst of them.

    ``slack`` widens the absolute tolerance, output by output: see :mod:`.tolerances`.  ``spreads`` are what its part
    for roundings is measured in, element by element, of the outputs that have one: see :mod:`.tolerances`.  Of
    ``passes`` in a row each starts from what the one before rounded to the dtype, and rounds again.

    ``yardstick`` holds torch's results at the case's ``dtype``, for as many outputs as torch has, or None.  Where torch
    itself misses the tolerance the case is ill-conditioned, and twice torch's error is the limit.
    NaN and infinities must stand where the reference has them once rounded to the output's dtype, or where torch does.
    From output ``results`` on (statistics that a forward pass saves) either may stand for the other: which of them a
    mean or a variance with an infinite term becomes hangs on the order of the arithmetic.
    """
    if len(outputs) < len(expected):
        return Judgement(f"{len(outputs)} output(s) where the reference has {len(expected)}", tolerance_used=math.inf)
    worst = Judgement()
    for position, (name, output, reference) in enumerate(zip(names, outputs, expected, strict=False)):
        torchs = yardstick[position] if yardstick is not None and position < len(yardstick) else None
        statistic = results is not None and position >= results
        extra = slack[position] if position < len(slack) else 0.0
        spread = spreads[position] if position < len(spreads) else None
        found = _judge_one(output, reference, torchs, name, dtype, reduction, statistic, extra, spread, passes)
        worst = max(worst, found, key=lambda j: j.severity)
    return worst


def _judge_one(
    output: torch.Tensor,
    expected: torch.Tensor,
    torchs: torch.Tensor | None,
    name: str,
    dtype: str,
    reduction: int,
    statistic: bool,
    slack: float,
    spread: torch.Tensor | None,
    passes: int,
) -> Judgement:
    if output.shape != expected.shape:
        return Judgement(
            f"{name} has shape {tuple(output.shape)}, expected {tuple(expected.shape)}", tolerance_used=math.inf
        )
    if torchs is not None and torchs.shape != expected.shape:
        torchs = None
    output, expected = output.detach(), expected.detach()
    rms, largest = scale(expected)
    kind = tolerances.governing(dtype, output.dtype)
    count = output.numel()
    if kind is not None:
        slack += (passes - 1) * tolerances.rounding(kind, rms)
    rtol, common = tolerances.rtol(kind), functools.partial(tolerances.atol, kind, output.dtype, reduction, rms, count)
    atol, granted, of_torch = common() + slack, None, slack
    if spread is not None and kind is not None:
        typical, most = scale(spread)
        atol, granted = common(typical) + slack, _Granted(common(0.0) + slack, spread.expand_as(output), kind, rms)
        rtol = tolerances.rtol(tolerances.governing("", output.dtype))
        of_torch += tolerances.rounding(kind, most)
    measured = _Errors(output, expected, torchs, rtol, granted or atol, statistic)
    over_torch = None
    if torchs is not None:
        least = tolerances.least_torch_error(kind, output.device, reduction, rms, largest, count)
        yardstick = max(measured.torch_error, least + of_torch / tolerances.OVER_TORCH)
        over_torch = measured.error / yardstick if yardstick else (0.0 if measured.error == 0 else math.inf)
    limit = max(1.0, tolerances.OVER_TORCH * measured.torch_used)
    what, wrong = "", None
    if measured.misplaced is not None:
        what, wrong = "NaN or infinity differs", measured.misplaced
    elif measured.used > limit:
        what, wrong = f"error is {measured.used:.3g}x the tolerance", measured.wrong()
    elif over_torch is not None and over_torch > tolerances.OVER_TORCH:
        what, wrong = f"error is {over_torch:.3g}x that of torch", measured.largest()
    figures = (measured.error, measured.relative, rtol, atol, measured.used, over_torch)
    if wrong is None:
        return Judgement("", *figures)
    wrong = wrong.reshape(output.shape)
    where = patterns.describe(wrong)
    related = patterns.relation(output, expected) if int(wrong.sum()) > wrong.numel() // 2 else ""
    related = f", {related}" if related else ""
    first = patterns.elements(name, wrong, output, expected, _KEPT)
    text = "; ".join(map(str, patterns.elements(name, wrong, output, expected)))
    return Judgement(f"{what} in {where}{related}: {text}", *figures, wrong=first)


def scale(expected: torch.Tensor) -> tuple[float, float]:
    """Root mean square and largest magnitude of the finite elements."""
    found = []
    for chunk in expected.reshape(-1).split(_CHUNK) if expected.numel() else ():
        finite = chunk.isfinite()
        magnitude = torch.where(finite, chunk.double().abs(), 0.0)
        found.append(torch.stack([magnitude.square().sum(), finite.sum().double(), magnitude.max()]))
    if not found:
        return 0.0, 0.0
    # Read once: each reading waits for the device.
    found = torch.stack(found)
    squares, count, largest = *found[:, :2].sum(0).tolist(), float(found[:, 2].max())
    return math.sqrt(squares / count) if count else 0.0, largest


@dataclass(frozen=True, eq=False)
class _Granted:
    """An absolute tolerance that differs by element."""

    common: float
    spread: torch.Tensor
    kind: str
    rms: float

    def chunks(self) -> Iterator[torch.Tensor]:
        """The tolerance of a chunk of elements after the other; by the output's rms where a spread is no number."""
        for spread in self.spread.reshape(-1).split(_CHUNK):
            spread = torch.where(spread.isfinite(), spread.double(), self.rms)
            yield tolerances.rounding(self.kind, spread) + self.common


class _Errors:
    """Errors of one output, measured chunk by chunk."""

    def __init__(self, output, expected, torchs, rtol: float, atol: float | _Granted, statistic: bool):
        self.error = self.relative = self.used = self.torch_error = self.torch_used = 0.0
        self.output, self.expected, self.rtol, self.atol = output, expected, rtol, atol
        self.misplaced: torch.Tensor | None = None
        floating = output.dtype.is_floating_point
        self.range = torch.finfo(output.dtype).max if floating else math.inf
        misplaced, peaks = [], []
        for out, ref, tor, atol in self._chunks(torchs):
            bad = self._unlike(out, ref) if statistic else self._misplaced(out, ref)
            if tor is not None:
                bad &= ~_same_kind(out, tor)
            misplaced.append(bad)
            error, allowed = self._error(out, ref, atol)
            magnitude = ref.abs()
            known = (magnitude > 0) & magnitude.isfinite()
            relative = torch.where(known, error / magnitude, 0.0)
            found = [bad.any().double(), error.max(), relative.max(), _ratio(error, allowed).max()]
            if tor is not None:
                error, allowed = self._error(tor, ref, atol)
                found += [error.max(), _ratio(error, allowed).max()]
            peaks.append(torch.stack(found))
        if not peaks:
            return
        # Read once: each reading waits for the device.
        bad, self.error, self.relative, self.used, *of_torch = torch.stack(peaks).amax(0).tolist()
        if of_torch:
            self.torch_error, self.torch_used = of_torch
        if bad:
            self.misplaced = torch.cat(misplaced)

    def _chunks(self, torchs: torch.Tensor | None = None):
        if not self.output.numel():
            return
        outs, refs = self.output.reshape(-1).split(_CHUNK), self.expected.reshape(-1).split(_CHUNK)
        tors = torchs.detach().reshape(-1).split(_CHUNK) if torchs is not None else [None] * len(outs)
        atols = self.atol.chunks() if isinstance(self.atol, _Granted) else [self.atol] * len(outs)
        for out, ref, tor, atol in zip(outs, refs, tors, atols, strict=True):
            yield out.double(), ref.double(), None if tor is None else tor.double(), atol

    def _misplaced(self, out: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
        """NaN or infinity on one side only."""
        may_be_infinite, may_be_finite = self._rounds_to(ref)
        infinite = out.isinf() & ~(may_be_infinite & (out.sign() == ref.sign()))
        finite = out.isfinite() & ~may_be_finite & ~ref.isnan()
        return (out.isnan() != ref.isnan()) | infinite | finite

    def _unlike(self, out: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
        """Finite on one side only."""
        may_be_infinite, may_be_finite = self._rounds_to(ref)
        return torch.where(out.isfinite(), ~may_be_finite, ~(may_be_infinite | ref.isnan()))

    def _rounds_to(self, ref: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where a reference may round to infinity, and where to a number; near the range's end it may do either."""
        slack = max(self.rtol, 2.0**-11)
        return ref.abs() >= self.range * (1 - slack), ref.abs() <= self.range * (1 + slack)

    def _error(self, out: torch.Tensor, ref: torch.Tensor, atol: float | torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(error, what is allowed) of a chunk's elements."""
        comparable = out.isfinite() & ref.isfinite()
        error = torch.where(comparable, (out - ref).abs(), 0.0)
        return error, self.rtol * torch.where(comparable, ref.abs(), 0.0) + atol

    def wrong(self) -> torch.Tensor:
        """A flat mask of the elements beyond the tolerance."""
        found = (self._error(out, ref, atol) for out, ref, _, atol in self._chunks())
        return torch.cat([error > allowed for error, allowed in found])

    def largest(self) -> torch.Tensor:
        """A flat mask of the elements with an error more than half of the largest."""
        found = (self._error(out, ref, atol) for out, ref, _, atol in self._chunks())
        return torch.cat([error > self.error / 2 for error, _ in found])


def _ratio(error: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """``error / allowed``, with 0 for no error where none is allowed."""
    return torch.where(error == 0, 0.0, error / allowed)


def _same_kind(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Elementwise: both NaN, both the same infinity, or both finite."""
    return (a.isnan() & b.isnan()) | (a.isinf() & (a == b)) | (a.isfinite() & b.isfinite())
