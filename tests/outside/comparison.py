"""One sample given to both: what the library's function makes of it, judged by torch's function in float64."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from atlas.validation import judging, tolerances

from .functions import Call, Operation
from .samples import Sample, changed, tensors

REFUSALS = (TypeError, ValueError, NotImplementedError, IndexError)
"""What the library raises for what it does not take."""

_KINDS = ("output", "gradient")

_LIMIT = "CUBLAS_STATUS_NOT_SUPPORTED"
"""What torch says where a library has no kernel for a layout that its function takes."""

_NUDGES = 8
"""As one alone may cancel at an element."""

_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"} | dict.fromkeys(
    (torch.float8_e4m3fn, torch.float8_e5m2), "bf16"
)
"""Whose tolerance counts; tensor cores of Hopper keep some 14 bits of sums of fp8 products, as `matmul_8bit` says."""


@dataclass(frozen=True)
class Finding:
    """``outcome`` is passed, refused or failed; ``what`` a refusal's message or what is wrong."""

    outcome: str
    what: str = ""


@dataclass(frozen=True)
class _Results:
    """Outputs, and the gradient of each tensor that wants one; none where no output has any."""

    outputs: Sequence[torch.Tensor]
    gradients: Sequence[torch.Tensor | None]

    def of(self, kind: str) -> dict[str, torch.Tensor]:
        """Those of a kind, "output" or "gradient", that are tensors, by name."""
        found = self.outputs if kind == "output" else self.gradients
        return {f"{kind} {number}": tensor for number, tensor in enumerate(found) if tensor is not None}


def compare(function: Callable[..., Any], torchs: Callable[..., Any], operation: Operation, sample: Sample) -> Finding:
    """Give the sample to the library's ``function`` and to torch's; gradients are of random cotangents."""
    before = [_bits(tensor) for tensor in tensors(sample.call)]
    theirs = _results_or_error(torchs, sample.call, lambda call: call)
    ours = _results_or_error(function, sample.call, operation.given)
    if sample.kind == "error" and not isinstance(theirs, Exception):
        return Finding("failed", "torch computes what its list calls an error")
    if isinstance(ours, Exception) and isinstance(theirs, Exception):
        right = isinstance(ours, (*REFUSALS, RuntimeError))
        return Finding("passed") if right else Finding("failed", f"raises {_said(ours)}, and torch {_said(theirs)}")
    if isinstance(ours, Exception):
        return Finding("refused" if isinstance(ours, REFUSALS) else "failed", _said(ours))
    if isinstance(theirs, Exception) and not (operation.exact is not None and _LIMIT in str(theirs)):
        return Finding("failed", f"computes where torch raises {_said(theirs)}")
    if not all(torch.equal(old, _bits(new)) for old, new in zip(before, tensors(sample.call), strict=True)):
        return Finding("failed", "writes to its inputs")
    if isinstance(theirs, Exception):
        wrong = _judged(ours, sample, _exactly(operation.exact, sample.call), None)
    else:
        wrong = _unlike(ours, theirs) or _misjudged(ours, theirs, torchs, operation, sample)
    return Finding("failed", wrong) if wrong else Finding("passed")


def _said(error: Exception) -> str:
    """The kind of an error and its first line, without what differs from sample to sample: numbers, dtypes, devices."""
    text = str(error).partition("\n")[0]
    for pattern, word in (
        (r"\b(cpu|cuda:[0-9]+)\b", "device"),
        (r"torch\.\w+(, torch\.\w+)+", "dtypes"),
        (r"torch\.Size\(\[[^]]*]\)|\((-?\d+(, |,)?)*\)|\[(-?\d+(, |,)?)*]", "(…)"),
        (r"(?<![a-zA-Z0-9])-?[0-9]+([.][0-9]+)?(?![a-zA-Z0-9])", "#"),
    ):
        text = re.sub(pattern, word, text)
    return f"{type(error).__name__}: {text}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """As bytes, of which each equals itself."""
    return tensor.detach().flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _results_or_error(function, call: Call, given: Callable[[Call], Call]) -> _Results | Exception:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _results(function, call, given)
        except Exception as error:  # of whatever kind: that is what was found
            return error


def _results(function, call: Call, given: Callable[[Call], Call]) -> _Results:
    call = changed(call, lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad))
    leaves = [tensor for tensor in tensors(call) if tensor.requires_grad]
    call = given(call)
    found = function(*call.args, **call.kwargs)
    outputs = [found] if isinstance(found, torch.Tensor) else list(found)
    roots = [output for output in outputs if output.requires_grad]
    if not roots:
        return _Results(outputs, [])
    cotangents = [_cotangent(root, number) for number, root in enumerate(roots)]
    return _Results(outputs, torch.autograd.grad(roots, leaves, cotangents, allow_unused=True))


def _cotangent(output: torch.Tensor, number: int) -> torch.Tensor:
    """Random, and the same numbers for every dtype: fp16 and bf16 have them both."""
    drawn = torch.randint(-64, 65, output.shape, generator=torch.Generator().manual_seed(number))
    return (drawn / 32).to(output.device, output.dtype)


def _unlike(ours: _Results, theirs: _Results) -> str:
    """What is another dtype, shape or device, or has another right to a gradient."""
    for kind in ("outputs", "gradients"):
        found, expected = getattr(ours, kind), getattr(theirs, kind)
        if len(found) != len(expected):
            return f"{len(found)} {kind}, torch has {len(expected)}"
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            if _described(one) != _described(other):
                return f"{kind[:-1]} {number} is {_described(one)}, torch's {_described(other)}"
    return ""


def _described(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "None"
    gradient = ", differentiable" if tensor.requires_grad else ""
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}{gradient}"


def _misjudged(ours: _Results, theirs: _Results, torchs, operation: Operation, sample: Sample) -> str:
    """What is beyond the project's tolerances, or empty."""
    call = sample.call
    judged = functools.partial(_judged, ours, sample)
    if operation.random:
        kept = _exactly(torchs, call.having(training=False))
        return judged(_without_the_dropped(ours.outputs[0], kept, call), None)
    function = operation.exact or torchs
    exact = _exactly(function, call)
    reason = judged(exact, theirs)
    if not reason:
        return ""
    spreads = _spreads(function, call, exact)
    if operation.terms is not None and exact.gradients:
        terms = operation.terms(exact.outputs[0].detach().abs())
        spreads |= {name: spreads[name] + terms for name in exact.of("gradient")}
    if operation.roundings is not None and exact.gradients:
        out = exact.outputs[0].detach()
        for number, added in enumerate(operation.roundings(call, out, _cotangent(out, 0))):
            name = f"gradient {number}"
            if added is not None and name in spreads:
                spreads[name] = spreads[name] + added
    exponent = 0.0 if operation.exponent is None else operation.exponent(call)
    for yardstick in (theirs, _of_copies(torchs, call)):
        reason = judged(exact, yardstick, spreads, exponent)
        if not reason:
            return ""
    return reason


def _judged(
    ours: _Results, sample: Sample, exact: _Results, theirs: _Results | None, spreads=None, exponent=0.0
) -> str:
    """``spreads``, where there are any, are by output's or gradient's name."""
    call, spreads = sample.call, spreads or {}
    dtype = _NAMES.get(call.kwargs.get("dtype", sample.dtype), "fp32")
    terms = max((tensor.numel() for tensor in tensors(call)), default=1)
    for kind, passes in (("output", 1), ("gradient", 2)):  # backward starts from what forward rounded
        found, expected = ours.of(kind), exact.of(kind)
        names = list(found)
        reason = judging.judge(
            [found[name] for name in names],
            [expected[name] for name in names],
            None if theirs is None else [theirs.of(kind)[name] for name in names],
            names,
            dtype,
            terms,
            slack=[exponent * tolerances.rounding("fp32", judging.scale(expected[name].detach())[0]) for name in names],
            spreads=[spreads.get(name) for name in names],
            passes=passes,
        ).reason
        if reason:
            return reason
    return ""


def _of_copies(torchs, call: Call) -> _Results:
    """torch's results for contiguous copies, which may go another way, and as far off as any that torch goes."""
    return _results(torchs, changed(call, lambda tensor: tensor.contiguous()), lambda call: call)


def _spreads(function, call: Call, exact: _Results) -> dict[str, torch.Tensor]:
    """What a rounding is measured in, element by element: the size of all, and what hangs on the last bit of inputs.

    That of :mod:`atlas.validation.tolerances` is the same for all elements of an output.  torch's samples of
    attention have scores in the hundreds: few weights are neither 0 nor 1, and all of the sensitivity is in these.
    """
    squares: dict[str, torch.Tensor] = {}
    for seed in range(_NUDGES):
        nudged = _exactly(function, changed(call, lambda tensor, seed=seed: _nudged(tensor, seed)))
        for kind in _KINDS:
            for name, value in exact.of(kind).items():
                change = (nudged.of(kind)[name] - value).detach().double().square()
                squares[name] = squares.get(name, 0.0) + change / _NUDGES
    sizes = {name: judging.scale(value.detach())[0] for kind in _KINDS for name, value in exact.of(kind).items()}
    return {name: sizes[name] + total.sqrt() / tolerances.U32 for name, total in squares.items()}


def _nudged(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """In float64, every element changed by half an ulp of fp32 up or down."""
    if not tensor.is_floating_point():
        return tensor
    generator = torch.Generator().manual_seed(seed)
    sign = (torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1).to(tensor.device)
    return (tensor.detach().double() * (1 + sign * tolerances.U32)).requires_grad_(tensor.requires_grad)


def _exactly(function, call: Call) -> _Results:
    """In float64; what is cast to a dtype is cast to it first."""
    kwargs = dict(call.kwargs)
    cast = kwargs.pop("dtype", None)

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        exact = (tensor if cast is None else tensor.to(cast)).detach().double()
        return exact.requires_grad_(tensor.requires_grad)

    return _results(function, changed(Call(call.args, kwargs), widened), lambda call: call)


def _without_the_dropped(output: torch.Tensor, kept: _Results, call: Call) -> _Results:
    """What dropout gives where it drops the elements that are 0 in ``output``; ``kept`` is of none dropped."""
    p = call.kwargs.get("p", 0.5)
    if not call.kwargs.get("training", True) or p == 0:
        return kept

    def dropped(exact: torch.Tensor) -> torch.Tensor:
        return torch.where(output == 0, 0.0, exact / (1 - p))

    return _Results([dropped(exact) for exact in kept.outputs], [dropped(exact) for exact in kept.gradients])
