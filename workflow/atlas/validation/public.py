"""The checks of the public function: right, differentiable, and indifferent to strides and empty inputs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..declaration import Case, Declaration
from ..errors import in_a_line
from ..host.runtime import as_tuple, draw, exact, meta_inputs
from . import device as devices
from . import tolerances
from .findings import ERROR, UNSUPPORTED, Finding, Subject, judged
from .guards import Guard
from .judging import Judgement, judge
from .problems import NoReference, Problem, answered, full_precision

FUNCTION, GRADIENTS, NON_CONTIGUOUS, EMPTY = "public_function", "gradients", "non_contiguous", "empty"

REPEATED = "called again: "
"""Prefix of findings of calls that nobody watches."""

# What a public function may raise for a layout or a shape it does not take: an answer, not a fault.
_REFUSALS = (NotImplementedError, TypeError, ValueError)


def check_function(problem: Problem) -> Iterator[Finding]:
    """The public function's result on contiguous inputs, and once more as calls in a loop come out.

    Between guard bands nothing is repeated from a recording (:mod:`atlas.operators`), since somebody watches; calls
    that nobody watches are.
    """
    yield _attempt(FUNCTION, problem, lambda: _call_and_judge(problem, problem.inputs), (NotImplementedError,))
    if problem.device.type == "cuda":
        yield _attempt(FUNCTION, problem, lambda: _repeat_and_judge(problem), (NotImplementedError,), REPEATED)


_FEW = 4 * 2**20
"""Bytes of traffic: a case that the host computes in no time."""

_CALLS = 3
"""Of which the first may fill caches, the second at the latest is recorded, and the last repeats a recording."""


def _repeat_and_judge(problem: Problem) -> Judgement:
    for _ in range(_CALLS - 1):
        others = {name: _detached(value) for name, value in problem.inputs.items()}
        with torch.no_grad():
            problem.declaration.call(problem.declaration.function, others)
    with torch.no_grad():
        outputs = as_tuple(problem.declaration.call(problem.declaration.function, dict(problem.inputs)))
    return _judge_public(problem, outputs)


def check_gradients(problem: Problem, every_layout: bool) -> Iterator[Finding]:
    """Gradients through autograd with a random dY, against float64 autograd of the reference.

    ``every_layout`` adds a dY in other layouts, and one of stride 0 as reductions hand back.
    """
    if problem.declaration.differentiable:
        layouts = UPSTREAM_LAYOUTS if every_layout else {}
        for name, layout in ({"contiguous": as_is} | dict(layouts)).items():
            prefix = "" if name == "contiguous" else f"with {name} dY: "
            yield _attempt(GRADIENTS, problem, lambda layout=layout: _gradients(problem, layout), _REFUSALS, prefix)
        if every_layout and problem.device.type == "cuda":
            yield _attempt(GRADIENTS, problem, lambda: _repeated_gradients(problem), _REFUSALS, REPEATED)


def _repeated_gradients(problem: Problem) -> Judgement:
    for _ in range(_CALLS - 1):
        gradients(problem, as_is)
    return gradients(problem, as_is).judgement


def check_strides(problem: Problem) -> Iterator[Finding]:
    """The same values in other layouts: transposed in memory, every second element, one element past alignment."""
    for name, layout in LAYOUTS.items():
        inputs = laid_out(problem.inputs, layout)
        prefix = f"with inputs {name}: "
        yield _attempt(
            NON_CONTIGUOUS, problem, lambda inputs=inputs: _call_and_judge(problem, inputs), _REFUSALS, prefix
        )


def laid_out(inputs: Mapping[str, Any], layout: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """The inputs with every tensor in another layout."""
    return {
        key: layout(value) if isinstance(value, torch.Tensor) and value.dim() else value
        for key, value in inputs.items()
    }


def empty_cases(declaration: Declaration, case: Case) -> list[Case]:
    """Cases made from ``case`` by setting one size to 0, where that leaves some input empty and a reference for it.

    Tried on the host, where a reference that has none raises and breaks nothing; of a large case, which would take
    seconds there, the shapes alone.
    """
    work = declaration.forward
    few = sum(work.bytes(case).values()) <= _FEW
    found = []
    for name, value in case.sizes:
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        sizes = tuple((key, 0 if key == name else size) for key, size in case.sizes)
        empty = dataclasses.replace(case, sizes=sizes, reason=f"no elements: {name} = 0")
        try:
            # Not the shapes of all: for arithmetic on them torch loads its compiler, 2 s a process.
            inputs = draw(work, empty, "cpu", 0) if few else meta_inputs(work, empty)
            if 0 not in _elements(inputs):
                continue
            given = {"mask": torch.ones((), dtype=torch.bool)} if work.random else {}
            work.reference(**exact(inputs), **given)
        except Exception:  # the operation has no meaning for this size, in torch either
            continue
        found.append(empty)
    return found


def _elements(inputs: Mapping[str, Any]) -> list[int]:
    return [value.numel() for value in inputs.values() if isinstance(value, torch.Tensor)]


def check_empty(problem: Problem) -> Iterator[Finding]:
    """An empty input gives what the reference gives, forward and (where differentiable) backward."""
    yield _attempt(EMPTY, problem, lambda: _call_and_judge(problem, problem.inputs), _REFUSALS)
    if problem.declaration.differentiable:
        yield _attempt(EMPTY, problem, lambda: _gradients(problem, as_is), _REFUSALS, "gradients: ")


def _attempt(
    check: str,
    problem: Problem,
    compare: Callable[[], Judgement],
    refusals: tuple[type[Exception], ...],
    prefix: str = "",
) -> Finding:
    subject = Subject("", problem.direction, problem.case)
    try:
        with full_precision(problem.case.dtype):
            judgement = compare()
        devices.synchronize(problem.device)
    except torch.OutOfMemoryError as error:
        raise NoReference(f"{prefix or check}: {in_a_line(error)}") from error
    except refusals as error:
        return Finding(check, subject, UNSUPPORTED, f"{prefix}{type(error).__name__}: {error}", problem.seed)
    except Exception as error:
        finding = Finding(check, subject, ERROR, prefix + in_a_line(error), problem.seed)
        devices.check_alive(problem.device, f"{subject}", error, finding)
        return finding
    return judged(check, subject, judgement, problem.seed, prefix)


def _call(problem: Problem, inputs: Mapping[str, Any], guard: Guard | None) -> tuple[torch.Tensor, ...]:
    with guard or contextlib.nullcontext():
        return as_tuple(problem.declaration.call(problem.declaration.function, dict(inputs)))


def _call_and_judge(problem: Problem, inputs: Mapping[str, Any]) -> Judgement:
    guard = Guard(run=0)
    placed = guard.place_inputs(inputs)
    with torch.no_grad():
        outputs = _call(problem, placed, guard)
    judgement = _judge_public(problem, outputs)
    if not judgement.reason:
        names = problem.work.outputs
        trespass = guard.overstepped(outputs, names) or ", ".join(
            f"input {name} is changed" for name in guard.changed_inputs(inputs)
        )
        judgement = dataclasses.replace(judgement, reason=trespass)
    return judgement


def _judge_public(problem: Problem, outputs: tuple[torch.Tensor, ...]) -> Judgement:
    for name, output, torchs in zip(problem.work.outputs, outputs, problem.yardstick_of(outputs) or (), strict=False):
        if output.dtype != torchs.dtype:
            return Judgement(f"{name} is of dtype {output.dtype}, torch gives {torchs.dtype}")
    return problem.judge(outputs, fewer=True)  # a pass may compute statistics that the public function keeps


@dataclasses.dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients that the public function gave, by name, and what they were judged."""

    names: tuple[str, ...]
    outputs: tuple[torch.Tensor, ...]
    judgement: Judgement


def _gradients(problem: Problem, layout: Callable[[torch.Tensor], torch.Tensor]) -> Judgement:
    guard = Guard(run=0)
    judgement = gradients(problem, layout, guard).judgement
    trespass = guard.overstepped((), ())
    return judgement if judgement.reason or not trespass else dataclasses.replace(judgement, reason=trespass)


def gradients(
    problem: Problem, layout: Callable[[torch.Tensor], torch.Tensor], guard: Guard | None = None
) -> Gradients:
    """The public function's gradients for a random dY in this layout, judged.

    Its launches are seen by ``guard``, if one is given.
    """
    declaration, case = problem.declaration, problem.case
    names = [name for name in declaration.differentiable if isinstance(problem.inputs.get(name), torch.Tensor)]
    placed = guard.place_inputs(problem.inputs) if guard else {k: _detached(v) for k, v in problem.inputs.items()}
    leaves = {name: placed[name].requires_grad_() for name in names}
    results = _call(problem, placed | leaves, guard)
    mask = problem.mask(tuple(result.detach() for result in results))
    given = {} if mask is None else {"mask": mask}
    outputs = [output for output in results if output.requires_grad]
    generator = torch.Generator(device=problem.device).manual_seed(problem.seed + 1)
    upstream = [layout(torch.randn(o.shape, dtype=o.dtype, device=o.device, generator=generator)) for o in outputs]
    found = _pull_back(outputs, leaves, upstream)

    def differentiate(inputs: Mapping[str, Any]) -> list[torch.Tensor]:
        precise = exact({name: _detached(inputs[name]) for name in problem.inputs})
        precise |= {name: precise[name].requires_grad_() for name in names}
        reference = as_tuple(declaration.forward.reference(**precise, **given))
        wanted = [output for output in reference if output.requires_grad][: len(outputs)]
        pulled = [inputs[f"upstream {i}"].double() for i in range(len(wanted))]
        return _pull_back(wanted, {name: precise[name] for name in names}, pulled)

    everything = dict(problem.inputs) | {f"upstream {i}": dy for i, dy in enumerate(upstream)}
    expected = differentiate(everything)
    dtype = declaration.forward.precision(case)
    reductions = [work.reduction(case) for work in declaration.passes.values()]
    reduction = max([*reductions, *(size for dy in upstream for size in dy.shape)])
    yardstick = _torch_gradients(problem, names, upstream) if mask is None else None
    labels = [f"gradient of {name}" for name in names]
    judgement = judge(found, expected, yardstick, labels, dtype, reduction, passes=2)
    if judgement.reason:
        granted = tolerances.conditioning_slack(differentiate, everything, expected, problem.seed)
        judgement = judge(found, expected, yardstick, labels, dtype, reduction, slack=granted, passes=2)
    return Gradients(tuple(labels), tuple(found), judgement)


def _pull_back(outputs, leaves: Mapping[str, torch.Tensor], upstream) -> list[torch.Tensor]:
    gradients = torch.autograd.grad(outputs, list(leaves.values()), upstream, allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves.values(), gradients, strict=True)
    ]


def _torch_gradients(problem: Problem, names: list[str], upstream: list[torch.Tensor]) -> list[torch.Tensor] | None:
    inputs = {name: _detached(value) for name, value in problem.inputs.items()}
    leaves = {name: inputs[name].requires_grad_() for name in names}
    try:
        outputs = answered(problem.work.peers["torch"].prepare(**inputs | leaves)())
        # Its values count, not its layout: cuDNN's attention loses the device over a dY past alignment (torch 2.11).
        upstream = [_detached(dy) for dy in upstream]
        return _pull_back([o for o in outputs if o.requires_grad][: len(upstream)], leaves, upstream)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None


def _detached(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def as_is(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the layout it has."""
    return tensor


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 2:
        return _every_second(tensor)
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def _every_second(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dim():  # a single element has no other layout
        return tensor
    wide = torch.empty((*tensor.shape[:-1], 2 * tensor.shape[-1]), dtype=tensor.dtype, device=tensor.device)
    return wide.fill_(1)[..., ::2].copy_(tensor)


def _shifted(tensor: torch.Tensor) -> torch.Tensor:
    longer = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    return longer[1:].view(tensor.shape).copy_(tensor)


def _expanded(tensor: torch.Tensor) -> torch.Tensor:
    """One slice along the first dimension, repeated with stride 0 (not along all: there a gradient may cancel to 0)."""
    return tensor[:1].expand(tensor.shape) if tensor.dim() else tensor


LAYOUTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed in memory": _transposed,
    "every second element": _every_second,
    "one element past alignment": _shifted,
}
"""Layouts by name: each keeps shape and values."""

UPSTREAM_LAYOUTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {**LAYOUTS, "expanded": _expanded}
"""Layouts of a dY: one more keeps the shape and repeats the first of its slices."""
