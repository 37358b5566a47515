"""The variant `rounds` of 16-bit products: whole rounds of tiles by `gluon`, the columns that are left in parts of K.

148 tiles of 128 x 256 are one round of 132 SMs and 16 tiles more.  `gluon` cuts those by columns, into parts as long as
the sum and worse than a tile: of 256 x 18944 x 14336 the last round takes a third of the time for a tenth of the work.
Here the columns of whole rounds are one product; the others are a second one, of which K is cut as well, so that every
SM has a part.  Parts go through memory once, which a long sum outweighs.
"""

import functools

import triton
import triton.language as tl
from atlas.declaration import GPU, Capability, Case, Config, Variant, gpu_of
from triton.language.extra.cuda import gdc_wait

from kernels.common.counting import cdiv
from kernels.common.early import launch_early
from kernels.common.parts import count_of_parts, empty_parts, part_of_k
from kernels.common.products import describes, row_lengths

from .hopper_spaces import microseconds_of_gluon, multiplies_by_groups, part_of_round, stages_and_buffers
from .less_waste import few_tiles
from .spaces import SPACE
from .split_described import multiply_in_parts
from .tiled import empty_product, launch_pointers, tiled_kernel

ROUNDS_SPACE = {
    "GROUPS": (2, 3),
    "ROWS": (64, 128),
    "BLOCK_N": (128, 256),
    "REST_N": (128, 256),
    "SPLITS": (2, 3, 4, 6, 8, 12),
}
"""GROUPS, ROWS, BLOCK_N of the tiles in whole rounds, as `gluon`'s; REST_N: columns of the others, of 128 rows."""

_REST = {128: (4, 5), 256: (8, 4)}
"""num_warps and num_stages, by REST_N."""

# Microseconds of one SM on an H200: see split_spaces.py.
_MULTIPLY, _PROGRAM, _SUM, _CALLS = 3.3e-7, 2.3, 0.7, 5.0
_PASS = 2.4e4
"""Bytes that one SM's share of memory moves in one, written and read again."""
_PAYS, _LEAST = 0.935, 8.0
"""The share of `gluon`'s time from which on the variant is left out, and the microseconds that it must spare."""


@triton.jit
def _sum_columns_kernel(
    parts_ptr,
    c_ptr,
    M,
    N,
    stride_cm,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    EARLY: tl.constexpr,
):
    """c [M, N], whose rows are ``stride_cm`` apart, = the sum over parts [PARTS, M, N] in their order.

    A program owns BLOCK elements of a row.  EARLY: it waits here for what writes the parts.  WIDTH divides N.
    """
    if EARLY:
        gdc_wait()
    N, stride_cm = N // WIDTH * WIDTH, stride_cm // WIDTH * WIDTH
    blocks = tl.cdiv(N, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    offs = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        acc += tl.load(parts_ptr + (part * M + row) * N + offs, mask=offs < N, other=0.0)
    tl.store(c_ptr + row * stride_cm + offs, acc.to(c_ptr.dtype.element_ty), mask=offs < N)


def sum_columns(parts, c):
    """Write the sum of ``parts`` [count, m, n] into ``c``, columns of a larger matrix, in their order."""
    (count, m, n), width = parts.shape, 4 if c.shape[1] % 4 == 0 and c.stride(0) % 4 == 0 else 1
    launch_early(
        _sum_columns_kernel, (m * cdiv(n, 512),), c.device, parts, c, m, n, c.stride(0),
        PARTS=count, BLOCK=512, WIDTH=width, num_warps=4,
    )  # fmt: skip


def launch_rounds(a, b, tf32=False, *, config):
    """Launch `gluon`'s kernel, `split_descriptor`'s and the sum; what they do not read goes to `tiled`."""
    c, k, sms = empty_product(a, b), a.shape[1], gpu_of(a.device).sms
    left = columns_of_rounds(*c.shape, config, sms)
    if a.element_size() != 2 or not (c.numel() and k) or not 0 < left < c.shape[1]:
        return launch_pointers(tiled_kernel, a, b, tf32, config=dict(zip(SPACE, (128, 128, 32, 8, 8, 3), strict=True)))
    from .hopper import product

    tile = (config["GROUPS"], config["ROWS"], config["BLOCK_N"])
    stages, buffers = stages_and_buffers(tile)
    names = ("GROUPS", "ROWS", "BLOCK_N", "BLOCK_K", "GROUP_M", "STAGES", "BUFFERS")
    whole = dict(zip(names, (*tile, 64, 8, stages, buffers), strict=True))
    product(a, b[:, :left], c[:, :left], config=whole, programs=sms)
    rest, right = _rest_config(config), c[:, left:]
    parts = empty_parts(right, count_of_parts(k, rest))
    multiply_in_parts(a, b[:, left:], parts, tf32, config=rest)
    sum_columns(parts, right)
    return c


def columns_of_rounds(m, n, config, sms):
    """Columns of C whose tiles are whole rounds; 0 where there is none."""
    height = cdiv(m, config["GROUPS"] * config["ROWS"])
    rounds = height * cdiv(n, config["BLOCK_N"]) // sms
    return min(n, rounds * sms // max(1, height) * config["BLOCK_N"])


def _rest_config(config):
    warps, stages = _REST[config["REST_N"]]
    return {
        "BLOCK_M": 128, "BLOCK_N": config["REST_N"], "BLOCK_K": 64, "GROUP_M": 8, "SPLITS": config["SPLITS"],
        "num_warps": warps, "num_stages": stages,
    }  # fmt: skip


def rounds(launch) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]."""
    return Variant(
        name="rounds",
        summary="whole rounds of tiles by `gluon`, columns that are left by `split_descriptor` in parts of K",
        launch=launch,
        space=ROUNDS_SPACE,
        default=_default,
        fits=_fits,
        handles=_handles,
        needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        follows="gluon",
    )


def _handles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if reason := multiplies_by_groups(problem, gpu) or describes(problem, gpu) or few_tiles(problem, gpu):
        return reason
    if any(2 * length % 128 for length in row_lengths(problem)[:2]):
        return "rows off 128 bytes lie in more lines of L2, from which reading is the limit"
    by_gluon = microseconds_of_gluon(problem, gpu)
    late = _best(problem, gpu)[0] > min(_PAYS * by_gluon, by_gluon - _LEAST)
    return "a last round of tiles takes `gluon` no longer" if late else ""


def microseconds_of_rounds(problem: Case, gpu: GPU) -> float:
    """How long the best of its tiles and parts take; infinite where the variant does not take the case."""
    return float("inf") if _handles(problem, gpu) else _best(problem, gpu)[0]


def _microseconds(config: Config, problem: Case, gpu: GPU) -> float:
    """About how long a product takes; infinite where there is no whole round, or nothing beside."""
    m, n, k = problem["m"], problem["n"], problem["k"]
    left = columns_of_rounds(m, n, config, gpu.sms)
    if not 0 < left < n:
        return float("inf")
    height, right = config["GROUPS"] * config["ROWS"], n - left
    count = cdiv(m, height) * cdiv(left, config["BLOCK_N"])
    whole = cdiv(count, gpu.sms) * part_of_round(height, config["BLOCK_N"], problem)
    part = part_of_k(k, config["SPLITS"], 64)
    parts = cdiv(k, part)
    programs = cdiv(m, 128) * cdiv(right, config["REST_N"]) * parts
    rest = cdiv(programs, gpu.sms) * (128 * config["REST_N"] * part * _MULTIPLY + _PROGRAM)
    return whole + rest + _SUM + 4 * parts * m * right / (_PASS * gpu.sms) + _CALLS


@functools.lru_cache(maxsize=4096)
def _best(problem: Case, gpu: GPU) -> tuple[float, tuple[int, ...]]:
    """The shortest time by the estimate, and its config's values."""
    return min(
        (
            _microseconds(dict(zip(ROUNDS_SPACE, (*tile, rest, splits), strict=True)), problem, gpu),
            (*tile, rest, splits),
        )
        for tile in ((2, 64, 256), (3, 64, 128), (2, 64, 128), (2, 128, 128))
        for rest in ROUNDS_SPACE["REST_N"]
        for splits in ROUNDS_SPACE["SPLITS"]
    )


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best; ``""`` for one worth a trial."""
    if not stages_and_buffers((config["GROUPS"], config["ROWS"], config["BLOCK_N"])):
        return "no such tile"
    late = _microseconds(config, problem, gpu) > 1.04 * _best(problem, gpu)[0]
    return "other tiles or parts should end sooner" if late else ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    return dict(zip(ROUNDS_SPACE, _best(problem, gpu)[1], strict=True))
