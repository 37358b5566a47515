"""The gradients of a norm of few rows in one launch.

Elsewhere each program owns rows and leaves a partial row of dweight, and a second kernel adds these up: of few rows two
launches take longer than all the rest.  Here each program reads all rows, which the L2 then has, for their sums, and
owns some columns of dx, dweight and dbias: nothing is left to add.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Case, Config, Variant, element_size
from atlas.declaration.rows import VECTOR_BYTES, points, width
from atlas.operators import launch

SPACE = {"BLOCK_N": (64, 128, 256, 512, 1024, 2048), "COLUMNS": (64, 128, 256), "num_warps": (4, 8, 16)}
"""BLOCK_N: columns that are read at a time for the rows' sums.  COLUMNS: a program's own."""

STAGES = tl.constexpr(3)
"""Blocks of columns on their way at a time."""

_MOST_ROWS = 32
_MOST_BYTES, _MOST_OF_LONG = 2**17, 2**18
"""Of x and dy, which each program reads: beyond, that takes as long as a second launch (16 x 2560 bf16: 13.8 us for
9.9 on an H200).  Long rows, of which other variants are slower, may be twice as many (2 x 20000: 12.7 for 13.2)."""

_ALONE = 8192
"""The longest row that one program of other variants takes alone, in one launch."""


@triton.jit
def _few_rows_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, dsum_ptr, dx_ptr, dweight_ptr, dbias_ptr, m, n,
    CENTRED: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SUM: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns COLUMNS columns of all m rows, ROWS at most; without a mean (not CENTRED) rows keep theirs."""
    n = n // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    offs_m = tl.arange(0, ROWS)
    mask_m = offs_m < m
    rstd = tl.load(rstd_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
    mean = tl.zeros([ROWS, 1], tl.float32)
    if CENTRED:
        mean = tl.load(mean_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
    # The program's own columns are on their way while the sums are made.
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask_c = columns < n
    own = offs_m[:, None] * n + columns[None, :]
    mask_own = mask_m[:, None] & mask_c[None, :]
    own_x = tl.load(x_ptr + own, mask=mask_own, other=0.0)
    own_dy = tl.load(dy_ptr + own, mask=mask_own, other=0.0)
    if HAS_SUM:
        own_dsum = tl.load(dsum_ptr + own, mask=mask_own, other=0.0)
    along, level = tl.zeros([ROWS, BLOCK_N], tl.float32), tl.zeros([ROWS, BLOCK_N], tl.float32)
    for start in tl.range(0, n, BLOCK_N, num_stages=STAGES):
        offs_n = start + tl.arange(0, BLOCK_N)[None, :]
        mask = mask_m[:, None] & (offs_n < n)
        offs = offs_m[:, None] * n + offs_n
        # dy is 0 in the padding, and every sum has dy as a factor.
        x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dy_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        if HAS_WEIGHT:
            # Rounded: merged into what follows it would leave rows of one element a dx that is not 0.
            g = tl.fma(g, tl.load(weight_ptr + offs_n, mask=offs_n < n, other=0.0).to(tl.float32), 0.0)
        along += g * ((x - mean) * rstd)
        if CENTRED:
            level += g
    along_of = tl.sum(along, axis=1)[:, None] / n
    level_of = tl.sum(level, axis=1)[:, None] / n
    dy = own_dy.to(tl.float32)
    xhat = (own_x.to(tl.float32) - mean) * rstd
    g = dy
    if HAS_WEIGHT:
        g = tl.fma(dy, tl.load(weight_ptr + columns, mask=mask_c, other=0.0).to(tl.float32)[None, :], 0.0)
    dx = (g - xhat * along_of - level_of) * rstd
    if HAS_SUM:
        dx += own_dsum.to(tl.float32)
    tl.store(dx_ptr + own, dx, mask=mask_own)
    if HAS_WEIGHT:
        tl.store(dweight_ptr + columns, tl.sum(dy * xhat, axis=0), mask=mask_c)
    if HAS_BIAS:
        tl.store(dbias_ptr + columns, tl.sum(dy, axis=0), mask=mask_c)


def launch_few_rows(x, weight, mean, rstd, dy, dsum, dweight, dbias, config):
    """dx of contiguous rows x [..., n]; fills dweight and dbias [n] where they are not None.

    ``mean`` is None for a norm that does not centre its rows.
    """
    n = x.shape[-1]
    m, dx = x.numel() // n, torch.empty_like(x)
    launch(
        _few_rows_kernel, (triton.cdiv(n, config["COLUMNS"]),), x, weight, mean, rstd, dy, dsum, dx, dweight, dbias,
        m, n, CENTRED=mean is not None, HAS_WEIGHT=dweight is not None, HAS_BIAS=dbias is not None,
        HAS_SUM=dsum is not None, ROWS=triton.next_power_of_2(m), BLOCK_N=config["BLOCK_N"],
        COLUMNS=config["COLUMNS"], WIDTH=width(x), num_warps=config["num_warps"],
    )  # fmt: skip
    return dx


def handles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if problem["m"] > _MOST_ROWS:
        return f"more than {_MOST_ROWS} rows"
    if problem["m"] == 1 and problem["n"] <= _ALONE:
        return "one row, of which another variant's one program leaves nothing to add"
    most = _MOST_OF_LONG if problem["n"] > _ALONE else _MOST_BYTES
    if 2 * problem["m"] * problem["n"] * element_size(problem.dtype) >= most:
        return "rows that each program would read for longer than a second launch takes"
    return ""


def _each(columns: int, config: Config, problem: Case) -> float:
    """Elements a thread of a tile of all rows and so many columns."""
    return triton.next_power_of_2(problem["m"]) * columns / (32 * config["num_warps"])


def _wanted(problem: Case) -> int:
    """Elements a thread: two vectors of 16 bits; fewer where each has an address and a mask of its own."""
    return 8 if problem["n"] * element_size(problem.dtype) % VECTOR_BYTES else 16


def fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot launch or be the best."""
    if config["BLOCK_N"] > SPACE["BLOCK_N"][0] and config["BLOCK_N"] >= 2 * problem["n"]:
        return "blocks twice as long as a row"
    if config["COLUMNS"] > SPACE["COLUMNS"][0] and config["COLUMNS"] >= 2 * problem["n"]:
        return "more columns than there are"
    most, fewest_warps = 2 * _wanted(problem), SPACE["num_warps"][0]
    read, own = (_each(config[name], config, problem) for name in ("BLOCK_N", "COLUMNS"))
    if read > most or (read < 8 and config["num_warps"] > fewest_warps):
        return f"{read:g} elements a thread: 8 to {most} keep memory busy without spills"
    if own > 16:
        return f"{own:g} elements of its own a thread: they wait in registers beside the others"
    column = 2 * triton.next_power_of_2(problem["m"]) * element_size(problem.dtype) + 4  # of x and dy; a weight in fp32
    shared = STAGES.value * config["BLOCK_N"] * column
    return f"{shared} bytes of prefetched rows" if shared > gpu.shared_bytes else ""


def default(problem: Case, gpu: GPU) -> dict[str, int]:
    """Eight warps that read two vectors a thread at a time; of long rows 128 columns a program, of others 64."""
    every = list(points(SPACE))
    fitting = [config for config in every if not fits(config, problem, gpu)] or every[:1]
    wanted = 64 if problem["n"] <= 4096 else 128

    def penalty(config: Config) -> tuple[float, ...]:
        return (
            abs(_each(config["BLOCK_N"], config, problem) - _wanted(problem)),
            abs(config["COLUMNS"] - wanted),
            abs(config["num_warps"] - 8),
            -config["BLOCK_N"],
        )

    return min(fitting, key=penalty)


def variant(launch_backward) -> Variant:
    """The variant of a norm's backward pass, with the launcher that has the pass's arguments."""
    return Variant(
        name="few_rows",
        summary="few rows, in one launch: each program reads all for their sums and owns some columns",
        launch=launch_backward,
        space=SPACE,
        default=default,
        fits=fits,
        handles=handles,
    )
