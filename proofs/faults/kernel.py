"""A kernel that is sound in one variant and, in each of the others, does what no tuner should have to fear: y = x.

The sound variant passes over the data several times, which its config counts, so that the order of its configs is known
beforehand.  The other variants have one config each.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from atlas.declaration import Declaration, Pass, Variant, case, eager

ENDLESS = "endless"
STRAY = "stray"
SHARED = "shared"
MEMORY = "memory"
KILLED = "killed"

PASSES = (4, 5, 6, 7, 10)
"""Over the data.  The last is the default's: clearly the slowest, and not so slow that it stops nobody."""

BLOCK = 1024
_FAR = 2**44
"""Elements: 64 TiB are further than any device's memory, and than what a driver maps of its host's."""
_TOO_MUCH_MEMORY = 2**48
"""Bytes: more than a process of a host can address, and less than a GPU can."""
_TOO_MUCH_SHARED = 65536
"""Elements of 4 bytes that programs gather from: 256 KiB, where an SM has 228 KiB at most."""


@triton.jit
def _sound_kernel(x_ptr, y_ptr, one, zero, n, passes, BLOCK: tl.constexpr):
    """y = x, by ``passes`` dependent multiply-adds that a compiler cannot see to change nothing."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    for _ in range(passes):
        y = y * one + zero
    tl.store(y_ptr + offs, y, mask=offs < n)


@triton.jit
def _endless_kernel(x_ptr, y_ptr):
    """Waits for something that never happens; volatile, or it would be waited for once."""
    rounds = 0
    while tl.load(x_ptr, volatile=True) < 1e30:
        rounds += 1
    tl.store(y_ptr, rounds.to(tl.float32))


@triton.jit
def _stray_kernel(y_ptr, far):
    """Writes far outside of everything that is mapped."""
    tl.store(y_ptr + far, 1.0)


@triton.jit
def _shared_kernel(x_ptr, y_ptr, N: tl.constexpr):
    """A gather across warps goes through shared memory, as a whole."""
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs % 16)
    tl.store(y_ptr + offs % 16, tl.gather(x, (offs * 5) % N, axis=0))


def _sound(x, unit, *, config):
    y = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), BLOCK),)
    _sound_kernel[grid](x, y, 1.0, 0.0, x.numel(), unit * config["passes"], BLOCK=BLOCK)
    return y


def _endless(x, unit, *, config):
    y = torch.empty_like(x)
    _endless_kernel[(1,)](x, y)
    return y


def _stray(x, unit, *, config):
    y = torch.empty_like(x)
    _stray_kernel[(1,)](y, _FAR)
    return y


def _shared(x, unit, *, config):
    y = torch.empty_like(x)
    _shared_kernel[(1,)](x, y, N=_TOO_MUCH_SHARED, num_warps=32)
    return y


def _memory(x, unit, *, config):
    torch.empty(_TOO_MUCH_MEMORY, dtype=torch.int8, device=x.device)
    return _sound(x, unit, config={"passes": 1})


def _killed(x, unit, *, config):
    if x.device.type != "meta":  # where it only compiles nobody is to die
        os.kill(os.getpid(), signal.SIGKILL)
    return _sound(x, unit, config={"passes": 1})


_LAUNCHES = {ENDLESS: _endless, STRAY: _stray, SHARED: _shared, MEMORY: _memory, KILLED: _killed}
FAULTS = tuple(_LAUNCHES)
"""The variants that misbehave."""


def expected(fault: str, functional: bool) -> str:
    """The status that a trial of this variant must have, on a GPU or on the interpreter."""
    on_gpu = {
        ENDLESS: "timeout", STRAY: "launch_error", SHARED: "out_of_resources", MEMORY: "out_of_memory",
        KILLED: "crashed",
    }  # fmt: skip
    # The interpreter's kernels write into this process's memory.
    return "crashed" if functional and fault == STRAY else on_gpu[fault]


def possible(fault: str, functional: bool) -> bool:
    """Whether the fault exists there: the interpreter has no shared memory to ask too much of."""
    return not (functional and fault == SHARED)


def declare(faults: Sequence[str] = (), cases: int = 1) -> Declaration:
    """The declaration with the sound variant and those of ``faults``, and so many cases (two on the interpreter)."""
    sound = Variant("sound", _sound, {"passes": PASSES}, lambda problem, gpu: {"passes": PASSES[-1]})
    others = [
        Variant(fault, _LAUNCHES[fault], {"passes": (0,)}, lambda problem, gpu: {"passes": 0}) for fault in faults
    ]
    return Declaration(
        name="faulty_kernel",
        family="proof",
        summary="y = x, and what else a kernel may do",
        function=lambda x: x.clone(),
        call=lambda function, inputs: function(inputs["x"]),
        dtypes=("fp32",),
        # Some 100 us and more: one late sample of a shorter kernel could look like a config far behind.
        cases=lambda gpu: [case("fp32", n=BLOCK * 8 * gpu.sms * size, unit=1000) for size in range(1, cases + 1)],
        edge_cases=tuple(
            case("fp32", "what the interpreter runs in some milliseconds", n=64 * size, unit=1)
            for size in range(1, cases + 1)
        ),
        forward=Pass(
            inputs=_inputs,
            reference=lambda x, unit: x.clone(),
            outputs=("y",),
            variants=(sound, *others),
            peers={"torch": eager(lambda x, unit: x.clone())},
            bytes=lambda c: {"x": 4 * c["n"], "y": 4 * c["n"]},
            flops=lambda c: {"multiply, add": 2 * c["n"] * c["unit"]},
        ),
    )


def _inputs(problem, device, generator):
    x = torch.rand(problem["n"], dtype=torch.float32, device=device, generator=generator)
    return {"x": x, "unit": problem["unit"]}
