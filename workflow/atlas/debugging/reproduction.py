"""Launch what a finding is about once more, watched, on the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from ..declaration import Declaration
from ..host.runtime import as_tuple
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
    """The launch that the finding is of; where it does not say, the first that goes wrong, else the last.

    ``only`` that with these inputs.  A check launches with several inputs, and its finding is the worst of them, which
    need not be the first that is wrong.
    """
    subject = finding.subject
    problem = Problem(declaration, subject.direction, subject.case, device, finding.seed or 0)
    tried = list(_launches(problem, finding.check))
    said = [launch for launch in tried if launch.what and finding.reason.startswith(f"{launch.what}: ")]
    run = None
    for launch in said if only is None and said else tried:
        if only not in (None, launch.what):
            continue
        run = _watched(launch, finding, watcher)
        if run.wrong:
            break
    return run


@dataclass(frozen=True, eq=False)
class _Launch:
    """One of the launches of a check: which inputs, as a finding's reason begins, and the layout of dY."""

    what: str
    problem: Problem
    upstream: Callable[[torch.Tensor], torch.Tensor] = public.as_is


def _launches(problem: Problem, check: str) -> Iterator[_Launch]:
    if check == public.GRADIENTS:
        yield _Launch("", problem)
        for name, layout in public.UPSTREAM_LAYOUTS.items():
            yield _Launch(f"with {name} dY", problem, layout)
    else:
        for what, tried in _problems(problem, check):
            yield _Launch(what, tried)


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


def _watched(launch: _Launch, finding: Finding, watcher: Watcher | None) -> Run:
    problem = launch.problem
    guard = Guard(run=0)
    inputs = guard.place_inputs(problem.inputs)
    trace = Trace(watcher, forbidden=lambda: _bands(guard))
    run = Run(launch.what, problem, guard, trace, problem.work.outputs)
    subject, declaration = finding.subject, problem.declaration
    with np.errstate(all="ignore"), full_precision(problem.case.dtype), trace:
        if subject.variant:
            variant = problem.work.variant(subject.variant)
            with torch.no_grad(), guard:
                run.outputs = as_tuple(variant.launch(**inputs, config=subject.config))
            run.judgement = problem.judge(run.outputs)
        elif finding.check == public.GRADIENTS:
            found = public.gradients(problem, launch.upstream, guard)
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
