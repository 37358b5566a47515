"""The variant `registers` of products in tf32: what it takes, its tiles, and how long they should take.

wgmma reads elements of 32 bits in shared memory along K alone.  Other variants copy what lies otherwise, transposed;
here one operand goes through registers, and only where both lie otherwise is the smaller one copied.  Where tiles are
few, K goes to several programs in parts.
"""

import functools
from collections.abc import Callable

import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant

from kernels.common.parts import part_of_k
from kernels.common.products import layout_of

REGISTERS_SPACE = {
    "GROUPS": (2,),
    "BLOCK_Y": (64, 128, 256),
    "GROUP_Y": (4, 8, 16),
    "STAGES": (4, 6, 8),
    "SPLITS": (1, 2, 3, 4, 6, 8),
}

ROWS = 128
"""Rows of the operand in registers that a tile has."""

_STAGES = {64: 8, 128: 6, 256: 4}
"""By BLOCK_Y: as many as there is room for."""

# Microseconds of an SM of an H100.
_MULTIPLY = {256: 6.6e-7, 128: 7.6e-7, 64: 1.2e-6}
"""For one multiplication-addition, by BLOCK_Y: of narrow tiles shared memory is the limit."""
_ROUND, _WRITE = 1.6, 1.7e-4
"""That a tile takes beyond its products, and beside that for each element of C."""
_BYTES, _SUM, _PASS = 3.0e4, 1.5, 2.4e4
"""Of memory that its share of the bandwidth moves in one; that a second kernel takes; bytes that it adds up in one."""
_MORE = 1.2
"""How many times its share an SM draws where others are idle."""
_NEAR = 1.25
"""How much longer than the best a tile may take by the estimate and be worth a trial."""


def registers(launch: Callable) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n], or a batch of them."""
    return Variant(
        name="registers",
        summary="Gluon: tf32 of an operand that does not lie along K, which goes through registers; else copies",
        launch=launch,
        space=REGISTERS_SPACE,
        default=_default,
        fits=_fits,
        handles=goes_through_registers,
        needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        follows="persistent",
    )


def goes_through_registers(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem.dtype != "tf32":
        return "for tf32: wgmma reads 16 bits in either order"
    if Capability.WGMMA not in gpu.capabilities:
        return "written for Hopper"
    if layout_of(problem) == "NT":
        return "both operands lie along K"
    if not _leaves_sms(problem, gpu):
        return ""
    if "b" in dict(problem.sizes):
        return "too few tiles of 128 x 128 for half of all SMs, and products of a batch have one part each"
    copied = 4 * problem["k"] * problem["n" if _turns(problem) else "m"]
    if copied < _LEAST_BYTES or problem["k"] < 512:
        return "few tiles, and what lies otherwise is copied in little more than the time of a launch"
    return ""


_LEAST_BYTES = 2**22
"""Of the operand in registers, where tiles are few."""


def _leaves_sms(problem: Case, gpu: GPU) -> bool:
    """Whether tiles of 128 x 128 leave half of the SMs idle."""
    return 2 * _count(128, problem) <= gpu.sms


def _few(problem: Case, gpu: GPU) -> bool:
    """Whether parts and narrow tiles may pay: SMs are idle, or half of each tile of one product is outside of C."""
    thin = "b" not in dict(problem.sizes) and problem["m" if _turns(problem) else "n"] <= 64
    return thin or _leaves_sms(problem, gpu)


def _turns(problem: Case) -> bool:
    """Whether B is the operand in registers; else A is."""
    of_a, of_b = layout_of(problem)
    return of_b == "N" and (of_a == "N" or problem["m"] <= problem["n"])


def _count(block_y: int, problem: Case) -> int:
    """Tiles of all products."""
    x, y = ("n", "m") if _turns(problem) else ("m", "n")
    batch = dict(problem.sizes).get("b", 1)
    return batch * triton.cdiv(problem[x], ROWS) * triton.cdiv(problem[y], block_y)


def _microseconds(block_y: int, splits: int, problem: Case, gpu: GPU) -> float:
    """About how long a product takes: SMs take tiles in step, or memory is the limit."""
    m, n, k = problem["m"], problem["n"], problem["k"]
    part = part_of_k(k, splits, 32)
    parts = max(1, triton.cdiv(k, max(1, part)))
    programs = parts * _count(block_y, problem)
    busy = triton.cdiv(programs, gpu.sms) * (ROWS * block_y * (part * _MULTIPLY[block_y] + _WRITE) + _ROUND)
    if not _few(problem, gpu):
        return busy
    moved = 4 * (m * k + k * n + m * n) / (_BYTES * min(_MORE * programs, gpu.sms))
    return max(busy, moved) + (_SUM + 4 * parts * m * n / (_PASS * gpu.sms) if parts > 1 else 0.0)


def microseconds(problem: Case, gpu: GPU) -> float:
    """About how long the best tiles and parts take, copies apart."""
    return _best(problem, gpu)[0]


@functools.lru_cache(maxsize=4096)
def _best(problem: Case, gpu: GPU) -> tuple[float, int, int]:
    """The shortest time by the estimate, its BLOCK_Y and its parts: more than one where tiles are few."""
    few = _few(problem, gpu) and "b" not in dict(problem.sizes)
    return min(
        (_microseconds(block_y, splits, problem, gpu), block_y, splits)
        for block_y in (_STAGES if few else (128, 256))
        for splits in (REGISTERS_SPACE["SPLITS"] if few else (1,))
    )


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best; ``""`` for one worth a trial."""
    if config["STAGES"] != _STAGES[config["BLOCK_Y"]]:
        return "not as many stages as there is room for"
    if config["GROUP_Y"] != 8 and problem["m"] * problem["n"] <= 4 * gpu.sms * 128 * 128:
        return "an order that does not matter"
    few = _few(problem, gpu) and "b" not in dict(problem.sizes)
    if (config["SPLITS"] > 1 or config["BLOCK_Y"] < 128) and not few:
        return "tiles reach every SM"
    late = _microseconds(config["BLOCK_Y"], config["SPLITS"], problem, gpu) > _NEAR * _best(problem, gpu)[0]
    return "other tiles or parts should end sooner" if late else ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    _, block_y, splits = _best(problem, gpu)
    return dict(zip(REGISTERS_SPACE, (2, block_y, 8, _STAGES[block_y], splits), strict=True))
