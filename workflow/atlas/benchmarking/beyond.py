"""Public functions at cases that nobody tuned, as a user calls them, beside the peers, checked and timed in turns.

Tuned cases are a sample; users call elsewhere.  A call picks its variant and config by itself, as it does for a user.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..declaration import GPU, Case, Declaration
from ..errors import in_a_line
from ..host.runtime import as_tuple, draw, sweep
from ..host.stopwatch import Stopwatch
from ..results.beyond import OURS
from ..sampling import drawing
from ..timing import Clock
from ..timing.clock import Thunk
from ..validation.device import DeviceLost, obstacle
from .measurement import PREPARE_SECONDS, deadline, precision

MODES = ("forward", "backward", "step")
"""The call alone; the gradient of one call, again and again; both, as in a training step."""
TOLERANCE = {"fp32": 1e-3, "tf32": 5e-3, "fp16": 1e-2, "bf16": 3e-2}
"""Root mean square of the difference to torch over that of torch's: above rounding, far below any mistake."""


@dataclass
class Entry:
    """A provider of a mode on its way to a row."""

    name: str
    prepare: Callable[[], Thunk]
    thunk: Thunk | None = None
    status: str = "ok"
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def cases(declaration: Declaration, gpu: GPU, seed: int, count: int, known: Collection[Case] = ()) -> list[Case]:
    """Drawn ones, none of them of the sweep or ``known``: fewer than ``count`` where there are no more."""
    tuned = {*sweep(declaration, gpu), *known}
    drawn = drawing.drawn(declaration, gpu, seed, count + len(tuned))
    return [one for one in drawn if one not in tuned][:count]


def modes(declaration: Declaration) -> tuple[str, ...]:
    """What can be timed of a kernel."""
    return (
        "forward",
        *(["backward"] if declaration.backward else []),
        *(["step"] if declaration.differentiable else []),
    )


def entries(declaration: Declaration, gpu: GPU, case: Case, mode: str, device: torch.device) -> list[Entry]:
    """The public function and every peer that takes the case."""
    forward = draw(declaration.forward, case, device, 0)
    public = functools.partial(_public, declaration)
    peers = {name: peer for name, peer in declaration.forward.peers.items() if _runs(peer, case)}
    shared = functools.cache(lambda: _shared(public, peers, forward))
    if mode == "backward":
        if all(variant.unsupported(case, gpu) for variant in declaration.backward.variants):
            return []
        found = [Entry(OURS, lambda: _pulled_back(declaration, public, forward, shared()))]
        given, pulling = draw(declaration.backward, case, device, 0), declaration.backward.peers
        return found + [
            Entry(name, lambda peer=peer: peer.prepare(**given)) for name, peer in pulling.items() if _runs(peer, case)
        ]
    prepares = {OURS: public} | {name: peer.prepare for name, peer in peers.items()}
    if mode == "step":
        return [
            Entry(name, lambda one=one: _training(declaration, one, forward, shared()))
            for name, one in prepares.items()
        ]
    return [Entry(name, lambda one=one: _inferring(lambda: one(**forward))) for name, one in prepares.items()]


def of_torch_in_fp32(declaration: Declaration, case: Case, mode: str, device: torch.device) -> list[torch.Tensor]:
    """What torch makes of the case's inputs brought to fp32, in mode ``forward`` or ``step``.

    Whatever torch raises where it takes no fp32 in their place.
    """
    inputs = draw(declaration.forward, case, device, 0)
    wide = {
        name: value.float() if torch.is_tensor(value) and value.dtype in (torch.float16, torch.bfloat16) else value
        for name, value in inputs.items()
    }
    peer = declaration.forward.peers["torch"]
    if mode == "step":
        shared = _shared(functools.partial(_public, declaration), {"torch": peer}, inputs)
        thunk = _training(declaration, peer.prepare, wide, shared)
    else:
        thunk = _inferring(lambda: peer.prepare(**wide))
    return _tensors(thunk())


def _public(declaration: Declaration, **inputs: Any) -> Thunk:
    return lambda: declaration.call(declaration.function, dict(inputs))


def _tensors(outputs: Any) -> list[torch.Tensor]:
    return [output.detach() for output in as_tuple(outputs) if torch.is_tensor(output)]


def _shared(public: Callable[..., Thunk], peers: Mapping[str, Any], inputs: Mapping[str, Any]) -> int:
    """How many results a gradient is of: the first ones that the public function and torch have alike.

    Behind these either may return what it saves, whose gradient nobody asks for: an lse, a row's mean.
    """
    shapes = [_shapes(public, inputs)]
    if "torch" in peers:
        with contextlib.suppress(Exception):  # said where torch itself is prepared
            shapes.append(_shapes(peers["torch"].prepare, inputs))
    alike = itertools.takewhile(lambda several: len(set(several)) == 1, zip(*shapes, strict=False))
    return max(1, sum(1 for _ in alike))


def _shapes(prepare: Callable[..., Thunk], inputs: Mapping[str, Any]) -> list[tuple[int, ...]]:
    with torch.no_grad():
        return [tuple(result.shape) for result in as_tuple(prepare(**inputs)()) if torch.is_tensor(result)]


def _runs(peer: Any, case: Case) -> bool:
    return not (peer.missing() or peer.handles(case) or peer.launcher or peer.searches)


def _inferring(prepare: Callable[[], Thunk]) -> Thunk:
    with torch.no_grad():
        thunk = prepare()

    def call() -> Any:
        with torch.no_grad():
            return thunk()

    return call


def _leaves(declaration: Declaration, inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.detach().requires_grad_()
        if name in declaration.differentiable and torch.is_tensor(value)
        else value
        for name, value in inputs.items()
    }


def _wanted(inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    return [value for value in inputs.values() if torch.is_tensor(value) and value.requires_grad]


def _upstream(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Drawn in fp32, so that they are alike whatever dtype the outputs have."""
    generator = torch.Generator(outputs[0].device).manual_seed(1)
    return [torch.randn(o.shape, device=o.device, generator=generator).to(o.dtype) for o in outputs]


def _differentiable(outputs: Any, shared: int) -> list[torch.Tensor]:
    return [one for one in as_tuple(outputs)[:shared] if torch.is_tensor(one) and one.requires_grad]


def _pulled_back(
    declaration: Declaration, prepare: Callable[..., Thunk], inputs: Mapping[str, Any], shared: int
) -> Thunk:
    given = _leaves(declaration, inputs)
    outputs = _differentiable(prepare(**given)(), shared)
    leaves, upstream = _wanted(given), _upstream(outputs)
    return lambda: torch.autograd.grad(outputs, leaves, upstream, retain_graph=True, allow_unused=True)


def _training(declaration: Declaration, prepare: Callable[..., Thunk], inputs: Mapping[str, Any], shared: int) -> Thunk:
    given = _leaves(declaration, inputs)
    thunk = prepare(**given)
    first = _differentiable(thunk(), shared)
    if not first:
        raise NotImplementedError("its result has no gradient")
    leaves, upstream = _wanted(given), _upstream(first)
    del first

    def step() -> Any:
        return torch.autograd.grad(_differentiable(thunk(), shared), leaves, upstream, allow_unused=True)

    return step


@dataclass(frozen=True)
class Bench:
    """What all calls share."""

    declaration: Declaration
    gpu: GPU
    device: torch.device
    clock: Clock
    min_seconds: float = 0.05
    max_samples: int = 60
    latency: bool = True
    """Whether short calls' host time is taken, too."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    """Seconds by phase."""

    def rows(self, case: Case, mode: str) -> list[dict[str, Any]]:
        """A row for each provider; the public function's comes first.

        Raises :class:`~atlas.validation.device.DeviceLost`.
        """
        try:
            with precision(case.dtype):
                found = self._prepared(case, mode)
                if not found:
                    return []
                running = {entry.name: entry for entry in found if entry.thunk is not None}
                self._time(running)
        except Exception as error:
            if lost := obstacle(self.device):
                raise DeviceLost(lost) from error
            return [self._row(Entry(OURS, lambda: None, status="failed", reason=in_a_line(error)), case, mode)]
        finally:
            self.watch.enter("free")
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self.watch.enter("")
        return [self._row(entry, case, mode) for entry in found]

    def _prepared(self, case: Case, mode: str) -> list[Entry]:
        self.watch.enter("inputs")
        found = entries(self.declaration, self.gpu, case, mode, self.device)
        expected = None
        for entry in sorted(found, key=lambda entry: entry.name != "torch"):
            self.watch.enter("call ours" if entry.name == OURS else "call peers")
            with self._kept(entry), deadline(PREPARE_SECONDS, f"preparing {entry.name}"):
                entry.thunk = entry.prepare()
                outputs = _tensors(entry.thunk())
                if entry.name == "torch":
                    expected = outputs
                elif expected is not None and entry.name == OURS and self._comparable(mode):
                    entry.reason = self.differing(outputs, expected, case, mode)
                    entry.status = "wrong" if entry.reason else "ok"
        return found

    def differing(self, outputs: list[torch.Tensor], expected: list[torch.Tensor], case: Case, mode: str) -> str:
        """How far they are off torch's, in words, nothing where that is rounding.

        Torch's own 16 bits may be what is wrong: its loss of [b, n, s] adds up samples in them until the sum stalls.
        So whoever differs is held against torch in fp32, which has the last word where it takes the call.
        """
        dtype = self.declaration.forward.precision(case)
        reason = difference(outputs, expected, dtype)
        if reason and case.dtype in ("fp16", "bf16"):
            with contextlib.suppress(Exception):
                reason = difference(outputs, of_torch_in_fp32(self.declaration, case, mode, self.device), dtype)
        return reason

    def _comparable(self, mode: str) -> bool:
        """Whether torch's results are of the same inputs: a backward peer has inputs of its own."""
        return mode != "backward" and self.declaration.forward.random is None

    @contextlib.contextmanager
    def _kept(self, entry: Entry) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            entry.thunk = None
            entry.status = "unsupported" if isinstance(error, NotImplementedError) else "failed"
            entry.reason = in_a_line(error)

    def _time(self, running: Mapping[str, Entry]) -> None:
        self.watch.enter("time")
        waiting = {name for name, entry in running.items() if not self.clock.screen(entry.thunk, 2).queued}
        for group in (running.keys() - waiting, waiting):
            turns = {name: entry.thunk for name, entry in running.items() if name in group}
            timings = self.clock.interleave(turns, min_seconds=self.min_seconds, max_samples=self.max_samples)
            for name, found in timings.items():
                running[name].figures = {"median_us": found.median_us, "queued": found.queued}
        for entry in running.values() if self.latency else ():
            if min(e.figures["median_us"] for e in running.values()) < 50:
                entry.figures["call_us"] = self.clock.call_us(entry.thunk)

    def _row(self, entry: Entry, case: Case, mode: str) -> dict[str, Any]:
        return {"provider": entry.name, "mode": mode, **case.to_json(), "status": entry.status, "reason": entry.reason,
                **entry.figures}  # fmt: skip


def difference(found: list[torch.Tensor], expected: list[torch.Tensor], dtype: str) -> str:
    """How far outputs are from torch's, in words; nothing where that is rounding."""
    for number, (x, y) in enumerate(zip(found, expected, strict=False)):
        if x is None or y is None or not y.is_floating_point() or x.shape != y.shape:
            continue
        kinds = [torch.finfo(x.dtype), torch.finfo(y.dtype)]
        # apart are fp16 gradients of a mean of many, however they round
        subnormal = max(kind.smallest_normal * kind.eps for kind in kinds)
        x, y = x.float(), y.float()
        scale = float(y.square().mean().sqrt())
        error = float((x - y).square().mean().sqrt())
        if not error <= max(TOLERANCE.get(dtype, 0.1) * max(scale, 1e-6), subnormal):
            return f"output {number} is {error:.3g} off torch's, whose root mean square is {scale:.3g}"
    return ""
