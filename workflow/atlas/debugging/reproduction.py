"""Launch what a finding is about once more, watched, on the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from ..declaration import Declaration
from ..runtime import as_tuple
from ..validation import public, specials, variants
from ..validation.findings import Finding
from ..validation.guards import Guard
from ..validation.inspection import free_inputs
from ..validation.judging import Judgement
from ..validation.problems import Problem, full_precision
from .tracing import Trace, Watcher


@dataclass(eq=False)
class Run:
    """One watched launch: its tensors between guard bands, its outputs by name, and what they were judged."""

    what: str
    """Which inputs, where they are not those drawn: ``with NaN in x[2, 3]``."""
    problem: Problem
    guard: Guard
    trace: Trace
    names: tuple[str, ...]
    outputs: tuple[torch.Tensor, ...] = ()
    judgement: Judgement = field(default_factory=Judgement)

    @property
    def wrong(self) -> bool:
        """Whether something is wrong with it that a single launch shows."""
        stored = self.guard.overstepped(self.outputs, self.names) or self.guard.changed_inputs(self.problem.inputs)
        return bool(self.judgement.reason or stored or self.trace.wild)


def reproduce(
    declaration: Declaration,
    finding: Finding,
    device: torch.device,
    watcher: Watcher | None = None,
    only: str | None = None,
) -> Run:
    """The first of the finding's launches that goes wrong, else the last of them; ``only`` that with these inputs."""
    subject = finding.subject
    problem = Problem(declaration, subject.direction, subject.case, device, finding.seed or 0)
    run = None
    for what, tried in _problems(problem, finding.check):
        if only not in (None, what):
            continue
        run = _watched(tried, finding, what, watcher)
        if run.wrong:
            break
    return run


def _problems(problem: Problem, check: str) -> Iterator[tuple[str, Problem]]:
    names = specials.plantable(problem.inputs, free_inputs(problem))
    if check == variants.NAN_INF:
        for what, inputs in specials.planted(problem.inputs, names, problem.seed):
            yield f"with {what}", problem.with_inputs(inputs)
    elif check == variants.LARGE:
        yield "at large magnitudes", problem.with_inputs(specials.magnified(problem.inputs, names))
    elif check == variants.OFFSET and variants.takes_offset(problem):
        yield "with a common offset", variants.with_offset(problem, names)
    else:
        yield "", problem
        if check == public.NON_CONTIGUOUS:
            for name, layout in public.LAYOUTS.items():
                yield f"with inputs {name}", problem.with_inputs(public.laid_out(problem.inputs, layout))


def _watched(problem: Problem, finding: Finding, what: str, watcher: Watcher | None) -> Run:
    guard = Guard(run=0)
    inputs = guard.place_inputs(problem.inputs)
    trace = Trace(watcher, forbidden=lambda: _bands(guard))
    run = Run(what, problem, guard, trace, problem.work.outputs)
    subject, declaration = finding.subject, problem.declaration
    with np.errstate(all="ignore"), full_precision(problem.case.dtype), trace:
        if subject.variant:
            variant = problem.work.variant(subject.variant)
            with torch.no_grad(), guard:
                run.outputs = as_tuple(variant.launch(**inputs, config=subject.config))
            run.judgement = problem.judge(run.outputs)
        elif finding.check == public.GRADIENTS:
            found = public.gradients(problem, public.as_is, guard)
            run.names, run.outputs, run.judgement = found.names, found.outputs, found.judgement
        else:
            with torch.no_grad(), guard:
                run.outputs = as_tuple(declaration.call(declaration.function, dict(inputs)))
            run.judgement = problem.judge(run.outputs, fewer=True)
    return run


def _bands(guard: Guard) -> list[tuple[int, int]]:
    ranges = []
    for placed in [*guard.inputs.values(), *guard.allocated]:
        storage, (first, end) = placed.buffer.untyped_storage(), placed.bounds
        ranges += [(storage.data_ptr(), first), (end, storage.data_ptr() + storage.nbytes())]
    return ranges
