"""The checks of one variant with one config: what it computes, where it writes, whether it repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..declaration import Config, Variant, element_size
from ..errors import in_a_line
from ..host.runtime import as_tuple
from . import device as devices
from . import specials
from .findings import ERROR, PASS, Finding, Subject, judged, stated
from .guards import Guard, same_bits
from .patterns import describe, first_elements
from .problems import Problem, full_precision

VALUES, WRITTEN, UNCHANGED, REPEATABLE = "values", "written_once_and_inside", "inputs_unchanged", "repeatable"
NAN_INF, LARGE, OFFSET = "nan_inf", "large_magnitudes", "common_offset"


class LaunchFailed(Exception):
    """A launcher raised; the message is its own, first line.

    ``exhausted``: because it asked for more registers, shared memory or device memory than there is.
    """

    def __init__(self, message: str, exhausted: bool = False):
        super().__init__(message)
        self.exhausted = exhausted


def launch(problem: Problem, variant: Variant, config: Config, run: int) -> tuple[tuple[torch.Tensor, ...], Guard]:
    """The variant's outputs from guarded copies of the problem's inputs, and the guard that saw the launch.

    Raises :class:`LaunchFailed` for whatever the launcher raises, :class:`~.device.DeviceLost` if the device is gone.
    """
    guard = Guard(run)
    inputs = guard.place_inputs(problem.inputs)
    try:
        with torch.no_grad(), full_precision(problem.case.dtype), guard:
            outputs = as_tuple(variant.launch(**inputs, config=config))
        devices.synchronize(problem.device)
    except Exception as error:
        subject = Subject(variant.name, problem.direction, problem.case, config)
        message = in_a_line(error)
        devices.check_alive(problem.device, f"{subject}", error, Finding(VALUES, subject, ERROR, message, problem.seed))
        raise LaunchFailed(message, _exhausted(error)) from error
    return outputs, guard


def _exhausted(error: Exception) -> bool:
    # Imported here, since importing Triton decides for its own functions whether they are interpreted, and a stage
    # imports this module before it loads the kernel and thereby says which.
    from triton.runtime.errors import OutOfResources

    return isinstance(error, OutOfResources | torch.OutOfMemoryError)


def check_variant(problem: Problem, variant: Variant, config: Config, twice: bool = True) -> Iterator[Finding]:
    """Every check of one launch on one problem.

    ``twice`` launches again with outputs prefilled with something else: the results must agree, and an element that
    holds the one filling after the first run and the other after the second was not written, whatever its dtype.
    After a single run only floating outputs show what was not written.
    """
    subject = Subject(variant.name, problem.direction, problem.case, config)
    seed = problem.seed
    try:
        runs = [launch(problem, variant, config, run) for run in range(1 + twice)]
    except LaunchFailed as error:
        yield Finding(VALUES, subject, ERROR, str(error), seed, exhausted=error.exhausted)
        return
    outputs, guard = runs[0]
    yield stated(WRITTEN, subject, _badly_written(problem, runs), seed)
    yield stated(UNCHANGED, subject, _changed_inputs(problem.inputs, guard), seed)
    yield judged(VALUES, subject, problem.judge(outputs), seed)
    if twice and variant.deterministic:
        yield stated(REPEATABLE, subject, _unrepeated(problem, outputs, runs[1][0]), seed)


def check_specials(problem: Problem, variant: Variant, config: Config, names: list[str]) -> Iterator[Finding]:
    """NaN and infinities planted in the named inputs one at a time, and those inputs large, and far from 0."""
    subject = Subject(variant.name, problem.direction, problem.case, config)
    try:
        finding = Finding(NAN_INF, subject, PASS, seed=problem.seed)
        for what, inputs in specials.planted(problem.inputs, names, problem.seed):
            hard = problem.with_inputs(inputs)
            outputs, _ = launch(hard, variant, config, run=0)
            found = judged(NAN_INF, subject, hard.judge(outputs), problem.seed, prefix=f"with {what}: ")
            finding = max(finding, found, key=lambda f: f.severity)
        yield finding
        hard = problem.with_inputs(specials.magnified(problem.inputs, names))
        outputs, _ = launch(hard, variant, config, run=0)
        yield judged(LARGE, subject, hard.judge(outputs), problem.seed)
        if takes_offset(problem):
            hard = with_offset(problem, names)
            outputs, _ = launch(hard, variant, config, run=0)
            yield judged(OFFSET, subject, hard.judge(outputs), problem.seed)
    except LaunchFailed as error:
        yield Finding(NAN_INF, subject, ERROR, str(error), problem.seed, exhausted=error.exhausted)


def takes_offset(problem: Problem) -> bool:
    """Whether a problem's inputs may be given a common offset.

    A backward pass's may not: of its inputs the incoming gradients alone are free, and it is linear in them.  There an
    offset enlarges every rounding alike, and what it may be off by hangs on single elements (softmax's largest y), so
    it would tell no careless kernel from a careful one and give false alarms.  Nor may one whose products are rounded
    to 16 bits on the way: raised by an offset each, they are as large as its square, and their spacing is larger than
    what they differ by.
    """
    dtype = problem.case.dtype
    rounded = problem.work.rounds_products and element_size(dtype) < 4
    return problem.direction == "forward" and dtype in specials.OFFSETS and not rounded


def with_offset(problem: Problem, names: list[str]) -> Problem:
    """The problem with the named inputs far from 0 by a common offset, and the tolerance that this takes."""
    chosen = problem.work.offset_inputs
    names = [name for name in names if chosen is None or name in chosen]
    inputs = specials.offset(problem.inputs, names, problem.case.dtype)
    return problem.with_inputs(inputs, specials.OFFSET_CONDITIONING)


def _badly_written(problem: Problem, runs: list[tuple[tuple[torch.Tensor, ...], Guard]]) -> str:
    names = problem.work.outputs
    trespasses = (guard.overstepped(outputs, names) for outputs, guard in runs)
    parts = [next((text for text in trespasses if text), "")]
    for name, *results in zip(names, *(outputs for outputs, _ in runs), strict=False):
        if len(runs) == 1 and not results[0].is_floating_point():
            continue
        masks = [_unwritten(guard, result) for (_, guard), result in zip(runs, results, strict=True)]
        if all(mask is not None and mask.shape == results[0].shape for mask in masks):
            missed = masks[0] & masks[-1]
            if bool(missed.any()):
                parts.append(f"{name} is not written in {describe(missed)}")
    return "; ".join(part for part in parts if part)


def _unwritten(guard: Guard, output: torch.Tensor) -> torch.Tensor | None:
    """Of an output that lies in an allocation the guard saw, a mask of the elements that hold the prefilled pattern."""
    placed = guard.of(output)
    return None if placed is None or not output.numel() else placed.holds_pattern(output)


def _changed_inputs(originals: Mapping[str, Any], guard: Guard) -> str:
    parts = []
    for name, changed in guard.changed_inputs(originals).items():
        where = f" in {describe(changed)}" if bool(changed.any()) else " between its elements"
        after, before = guard.inputs[name].tensor, originals[name]
        parts.append(f"input {name} is changed{where}: {first_elements(name, changed, after, before)}")
    return "; ".join(parts)


def _unrepeated(problem: Problem, outputs: tuple[torch.Tensor, ...], again: tuple[torch.Tensor, ...]) -> str:
    for name, first, second in zip(problem.work.outputs, outputs, again, strict=False):
        if first.shape != second.shape:
            return f"{name} has shape {tuple(first.shape)}, then {tuple(second.shape)}"
        if not same_bits(first, second):
            differ = (first != second) & ~(first.isnan() & second.isnan())
            if bool(differ.any()):  # else only the NaNs of unwritten elements differ, which is another check's finding
                shown = first_elements(name, differ, second, first).replace("expected", "was")
                return f"two runs on the same inputs differ in {describe(differ)}: {shown}"
    return ""
