"""Numbers that programs of one launch tell each other: a row that several programs share needs sums of all its parts.

Each program publishes two fp32 numbers in a slot of its own (:func:`tell`) and waits for those of the others
(:func:`look`, then :func:`hear`).  All programs must run at once: launch with ``launch_cooperative_grid=True``.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Case, element_size
from atlas.declaration.rows import OTHER_REGISTERS, VECTOR_BYTES, points, registers_obstacle
from atlas.operators import launch

from .rows import EXCHANGE_BYTES, spans


@triton.jit
def tell(slot_ptr, first, second, mask):
    """Publish two fp32 numbers in one 64-bit word, which so are there together or not at all."""
    high, low = first.to(tl.int32, bitcast=True).to(tl.int64), second.to(tl.int32, bitcast=True).to(tl.int64)
    tl.atomic_xchg(slot_ptr, (high << 32) | (low & 0xFFFFFFFF), mask=mask, sem="relaxed")


@triton.jit
def look(slot_ptrs):
    """What slots hold by now: see :func:`hear`."""
    return tl.inline_asm_elementwise(
        "ld.relaxed.gpu.global.b64 $0, [$1];", "=&l,l", [slot_ptrs], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def hear(slot_ptrs, seen):
    """The two numbers of each slot, once its program has told them; ``seen`` is what it held a while ago.

    Before that it holds -1: two NaNs with a payload that no arithmetic leaves behind.
    """
    words = tl.inline_asm_elementwise(
        "{ .reg .pred unset; mov.b64 $0, $2; setp.eq.b64 unset, $0, -1; "
        "wait: @unset ld.relaxed.gpu.global.b64 $0, [$1]; @unset setp.eq.b64 unset, $0, -1; @unset bra wait; }",
        "=&l,l,l", [slot_ptrs, seen], dtype=tl.int64, is_pure=False, pack=1,
    )  # fmt: skip
    return (words >> 32).to(tl.int32).to(tl.float32, bitcast=True), words.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _unset_kernel(slots_ptr, count, BLOCK: tl.constexpr):
    """One program owns BLOCK slots, which are to hold nothing yet: see :func:`hear`."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(slots_ptr + offs, tl.full([BLOCK], -1, tl.int64), mask=offs < count)


def unset_slots(m, team, device):
    """Slots [m, team] in which programs tell each other about rows, and which hold nothing yet: see :func:`hear`."""
    slots = torch.empty((m, team), dtype=torch.int64, device=device)
    launch(_unset_kernel, (triton.cdiv(m * team, 1024),), slots, m * team, BLOCK=1024)
    return slots


def team_obstacle(config: dict, problem: Case, gpu: GPU, live: float) -> str:
    """``fits`` of a kernel whose TEAM programs hold a row of two inputs, with ``live`` registers for each element."""
    size, threads, team = element_size(problem.dtype), 32 * config["num_warps"], config["TEAM"]
    span, block_n, chunks = spans(problem["n"], size, config)
    if (team - 1) * span >= problem["n"] or team > gpu.sms:
        return f"fewer than {team} parts of a row, or programs"
    shared = (config["num_stages"] - 1) * block_n * chunks * size * 2 + EXCHANGE_BYTES
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of prefetched rows exceed an SM's shared memory"
    return registers_obstacle(block_n * chunks * live / threads + OTHER_REGISTERS, threads)


def handles_team(space: dict, fits):
    """``handles`` of such a kernel: rows too long for one program, which some config of the space holds."""

    def handles(problem: Case, gpu: GPU) -> str:
        if gpu.backend != "cuda" or int(gpu.arch) < 80:
            return "programs that wait for one another: written for NVIDIA's GPUs from sm_80 on"
        size, n = element_size(problem.dtype), problem["n"]
        if n * size % (VECTOR_BYTES // 2):
            return "rows not of whole 8 bytes: their masks spill"
        if n <= (16384 if size == 2 and n * size % VECTOR_BYTES == 0 else 8192):
            return "rows short enough for one program"
        fitting = any(not fits(config, problem, gpu) for config in points(space))
        return "" if fitting else "rows longer than the registers of a team"

    return handles
