"""Launch what a finding is about once more, watched, on the interpreter; and say in words what that shows.

Who stored the first wrong element, what nobody stored, who went outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from ..declaration import Declaration
from ..host.runtime import as_tuple
from ..validation import public, specials, variants
from ..validation.findings import Finding
from ..validation.guards import Guard, Placed, extent
from ..validation.inspection import free_inputs
from ..validation.judging import Judgement
from ..validation.patterns import Element, describe
from ..validation.problems import Problem, full_precision
from .tracing import Access, InterpretedLaunch, Program, Trace, Watcher


@dataclass(eq=False)
class Reproduction:
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
) -> Reproduction:
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


def _watched(launch: _Launch, finding: Finding, watcher: Watcher | None) -> Reproduction:
    problem = launch.problem
    guard = Guard(run=0)
    inputs = guard.place_inputs(problem.inputs)
    trace = Trace(watcher, forbidden=lambda: _bands(guard))
    run = Reproduction(launch.what, problem, guard, trace, problem.work.outputs)
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


_SHOWN = 5


def explanation(run: Reproduction) -> Iterator[str]:
    """Lines for a terminal."""
    if run.what:
        yield f"launched {run.what}"
    for launch in run.trace.launches:
        yield f"launch {launch.number}: {launch.kernel}, grid {launch.grid}"
    if run.judgement.wrong:
        yield from _first(run, run.judgement.wrong[0])
    yield from _never_stored(run)
    yield from _outside(run)


def owner(run: Reproduction) -> tuple[InterpretedLaunch, Program] | None:
    """The program that stored the first wrong element; where none did, its nearest neighbour's; or who went outside."""
    if run.judgement.wrong:
        address = _address(run, run.judgement.wrong[0])
        stores = run.trace.stores_to(address) if address else []
        near = run.trace.nearest_store(address) if address and not stores else None
        if stores or near:
            store = stores[-1] if stores else near[0]
            return store.launch, store.program
    for store in [*(access for _, access in run.trace.wild), *_stores_outside(run)]:
        return store.launch, store.program
    return None


def _first(run: Reproduction, element: Element) -> Iterator[str]:
    address = _address(run, element)
    if address is None:
        return
    stores = run.trace.stores_to(address)
    if not stores:
        yield f"{element.label}: no program stores it"
        near = run.trace.nearest_store(address)
        if near is not None:
            store, where = near
            yield f"  nearest: {_label(run, where)} is stored by {store.who}"
            yield from _where(store)
        return
    last = stores[-1]
    stored = last.value_at(address)
    yield f"{element.label}: {last.who} stored {stored:.8g}, expected {element.expected:.8g}"
    yield from _where(last)
    for store in stores[:-1][-_SHOWN:]:
        yield f"  before that {store.who} stored {store.value_at(address):.8g}"
        yield from _where(store)


def _where(access: Access) -> Iterator[str]:
    for depth, line in enumerate(access.lines):
        yield f"  {'called from ' if depth else 'at '}{line}"


def _never_stored(run: Reproduction) -> Iterator[str]:
    stored = np.unique(np.concatenate([s.addresses for s in run.trace.stores] or [np.empty(0, np.int64)]))
    for name, output in zip(run.names, run.outputs, strict=False):
        if run.guard.of(output) is None or not output.numel():
            continue  # torch made it: its stores are not the kernels'
        missing = torch.from_numpy(~np.isin(_addresses(output), stored))
        if bool(missing.any()):
            yield f"{name}: no program stores {describe(missing)}"


def _outside(run: Reproduction) -> Iterator[str]:
    for what, access in run.trace.wild[:_SHOWN]:
        yield f"{access.who}: {what} of {len(access.addresses)} element(s) in memory of no tensor, not carried out"
        yield from _where(access)
    trespassers = list(_stores_outside(run))
    for store in trespassers[:_SHOWN]:
        yield f"{store.who} stores outside: {_places(run, store)}"
        yield from _where(store)
    if len(trespassers) > _SHOWN:
        yield f"  and {len(trespassers) - _SHOWN} more stores outside"
    for load in run.trace.loads_outside[:1]:
        yield f"{load.who} loads outside: {_places(run, load)}"
        yield from _where(load)
    if len(run.trace.loads_outside) > 1:
        yield f"  and {len(run.trace.loads_outside) - 1} more loads outside"


def _stores_outside(run: Reproduction) -> Iterable[Access]:
    bands = [(b, p.bounds) for p in _placed(run).values() for b in [_storage(p)]]
    for store in run.trace.stores:
        for (low, high), (first, end) in bands:
            inside = (store.addresses >= low) & (store.addresses < high)
            if (inside & ((store.addresses < first) | (store.addresses >= end))).any():
                yield store
                break


def _places(run: Reproduction, access: Access) -> str:
    parts = []
    for name, placed in _placed(run).items():
        (low, high), (first, end), size = _storage(placed), placed.bounds, placed.tensor.element_size()
        before = access.addresses[(access.addresses >= low) & (access.addresses < first)]
        after = access.addresses[(access.addresses >= end) & (access.addresses < high)]
        if before.size:
            nearest = (first - int(before.max())) // size
            parts.append(f"{before.size} element(s) before the start of {name}, the nearest {nearest} before it")
        if after.size:
            nearest = (int(after.min()) - end) // size + 1
            parts.append(f"{after.size} element(s) past the end of {name}, the first {nearest} past it")
    return "; ".join(parts)


def _placed(run: Reproduction) -> dict[str, Placed]:
    found = {f"input {name}": placed for name, placed in run.guard.inputs.items()}
    for placed in run.guard.allocated:
        address = placed.buffer.untyped_storage().data_ptr()
        names = [n for n, o in zip(run.names, run.outputs, strict=False) if o.untyped_storage().data_ptr() == address]
        found[names[0] if names else f"scratch {tuple(placed.tensor.shape)}, allocation {len(found)}"] = placed
    return found


def _storage(placed: Placed) -> tuple[int, int]:
    storage = placed.buffer.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _output(run: Reproduction, name: str) -> torch.Tensor | None:
    return next((o for n, o in zip(run.names, run.outputs, strict=False) if n == name), None)


def _address(run: Reproduction, element: Element) -> int | None:
    output = _output(run, element.output)
    if output is None or len(element.index) != output.dim():
        return None
    offset = sum(at * stride for at, stride in zip(element.index, output.stride(), strict=True))
    return output.data_ptr() + offset * output.element_size()


def _addresses(tensor: torch.Tensor) -> np.ndarray:
    """The address of every element, shaped as the tensor."""
    offsets = torch.arange(extent(tensor)).as_strided(tensor.shape, tensor.stride())
    return tensor.data_ptr() + offsets.numpy() * tensor.element_size()


def _label(run: Reproduction, address: int) -> str:
    for name, output in zip(run.names, run.outputs, strict=False):
        at = np.argwhere(_addresses(output) == address) if output.numel() else []
        if len(at):
            return f"{name}[{', '.join(str(int(index)) for index in at[0])}]"
    return "an element of another tensor"
