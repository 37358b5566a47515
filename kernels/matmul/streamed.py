"""The variant `streamed` of fp32 products of a few rows: the matrix is read once, straight into registers (Gluon).

Such a product is bound by reading the matrix.  `few_rows` brings it by asynchronous copies, 4 bytes at a time where
rows lie off 16, and takes some 30 instructions for each of its elements; copies for the copy engine would read and
write the matrix once more than the product does.
"""

import math

import triton
from atlas.declaration import GPU, Capability, Case, Config, Variant

from kernels.common.parts import empty_parts, part_of_k, sum_parts
from kernels.common.products import layout_of

from .tiled import empty_product

STREAMED_SPACE = {
    "COLUMNS": (4, 8, 64, 128),
    "STEPS": (1, 2, 4, 8),
    "SPLITS": (1, 2, 3, 4, 6, 8, 12, 16),
    "num_warps": (4, 8),
}
"""COLUMNS of a program.  STEPS of K that a thread reads at a time: rows of the matrix, or vectors along K."""

_STEP_OF_PARTS = 64
"""Elements of K that a part has a multiple of."""
_MOST_ROWS, _MOST_ALONG_K = 8, 16
"""Of a matrix by rows, and of one along K beside rows along it.  More fill the registers with what is read of them."""
_PROGRAMS = 2.8
"""Of an SM, that have enough under way: 3 x 2051 x 4096 TN takes 25 us by 6 parts, 24 by 12, 25 by 16; more than run at
once take longer: 8 x 1000 x 16385 NT 45 by 3 parts, 49 by 6 (H200)."""


def launch_streamed(a, b, tf32=False, *, config):
    """Launch the kernel in Gluon and, of several parts of K, ``_sum_kernel``."""
    from .hopper_streamed import multiply

    c, k = empty_product(a, b), a.shape[1]
    if not k:
        return c.zero_()
    if not c.numel():
        return c
    part = part_of_k(k, config["SPLITS"], _STEP_OF_PARTS)
    count = triton.cdiv(k, part)
    parts = c[None] if count == 1 else empty_parts(c, count)
    x, w, out = (a, b, parts[0]) if a.shape[0] <= b.shape[1] else (b.t(), a.t(), parts[0].t())
    multiply(x, w if 1 in w.stride() else w.contiguous(), out, parts, part, config=config)
    return c if count == 1 else sum_parts(parts, c)


def streamed(launch) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]."""
    return Variant(
        name="streamed",
        summary="Gluon: fp32 of few rows times a matrix off 16 bytes, read once, straight into registers, by FMA",
        launch=launch,
        space=STREAMED_SPACE,
        default=_default,
        fits=_fits,
        handles=_handles,
        needs=frozenset({Capability.WGMMA}),
        follows="few_rows",
    )


def _handles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if problem.dtype not in ("fp32", "tf32"):
        return "for fp32: 16 bits are tensor cores'"
    few, along_k, odd = min(problem["m"], problem["n"]), _lies_along_k(problem), _width(problem) < 4
    across = _rows_lie_across_k(problem)
    # `few_rows` takes 350 us for 4 x 8193 x 2048 TT, of wide rows, beside 4 that lie across K; 31 here (H200).
    if not odd and not (problem.dtype == "fp32" and along_k and across):
        return "what lies at whole 16 bytes is copied asynchronously, or multiplied by tensor cores"
    most = _MOST_ALONG_K if along_k and odd and not across else _MOST_ROWS
    return "" if 2 <= few <= most else f"2 to {most} rows or columns are few"


def _lies_along_k(problem: Case) -> bool:
    """Whether the larger operand does."""
    of_a, of_b = layout_of(problem)
    return of_b == "T" if problem["m"] <= problem["n"] else of_a == "N"


def _rows_lie_across_k(problem: Case) -> bool:
    """Whether neighbours in memory of the smaller operand are of one k."""
    of_a, of_b = layout_of(problem)
    return of_a == "T" if problem["m"] <= problem["n"] else of_b == "N"


def _width(problem: Case) -> int:
    """Elements of the larger operand that a thread reads at once: up to 16 bytes."""
    return math.gcd(problem["k"] if _lies_along_k(problem) else max(problem["m"], problem["n"]), 4)


def _tiles(problem: Case) -> tuple[tuple[int, int, int], ...]:
    """COLUMNS, STEPS, num_warps of the tiles worth a thought, the best first."""
    width, many = _width(problem), min(problem["m"], problem["n"]) > 4
    if _lies_along_k(problem):
        return ((4 if many and width == 4 else 8, 1, 4), (4, 1, 8))
    return ((64 * width, 4, 4), (64 * width, 2, 8)) if many else ((64 * width, 4, 8), (64 * width, 8, 4))


def _parts(tile: tuple[int, int, int], problem: Case, gpu: GPU) -> int:
    """As few parts as give each SM enough programs, of two blocks of K at least."""
    columns, steps, warps = tile
    block = warps * steps * (32 * _width(problem) if _lies_along_k(problem) else 1)
    tiles = triton.cdiv(max(problem["m"], problem["n"]), columns)
    some = [s for s in STREAMED_SPACE["SPLITS"] if s == 1 or problem["k"] >= 2 * s * block]
    return next((s for s in some if tiles * s >= _PROGRAMS * gpu.sms), some[-1])


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best."""
    tile = (config["COLUMNS"], config["STEPS"], config["num_warps"])
    if tile not in _tiles(problem):
        return "other tiles have as much under way in fewer registers"
    splits, best = config["SPLITS"], _parts(tile, problem, gpu)
    return "" if best <= 2 * splits and splits <= 2 * best else "too few programs to hide latency, or more than run"


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    tile = _tiles(problem)[0]
    columns, steps, warps = tile
    return dict(zip(STREAMED_SPACE, (columns, steps, _parts(tile, problem, gpu), warps), strict=True))
