"""The gradients of a norm of few rows in one launch, of programs that wait for nothing.

Elsewhere each program owns rows and leaves a partial row of dweight, and a second kernel adds these up: of few rows two
launches take longer than all the rest.  Here some programs own rows of dx, and others columns of dweight and dbias,
which read x and dy again: of so few rows the L2 has them.
"""

import math

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Case, Config, Variant, element_size
from atlas.declaration.rows import VECTOR_BYTES, points, widest
from atlas.operators import launch

SPACE = {"COLUMNS": (16, 32, 64, 128), "num_warps": (4, 8, 16)}
"""COLUMNS: of dweight and dbias, a program's own."""

STAGES = tl.constexpr(3)
"""Tiles on their way at a time, where a program has several."""

_MOST_ROWS = 1024
_MOST_BYTES = 2**23
"""Of x and dy, which are read twice, by few programs for dweight: beyond, that takes as long as a second launch."""

_ALONE = 8192
"""The longest row that one program of other variants takes alone, in one launch."""

_MOST_OF_PARTS = 2**24
"""Bytes of x and dy that the programs of rows cut into parts may read, of which each reads a whole row for its sums.

2 x 20000 bf16 (1.5 MiB): 8.0 us, rows held by teams of programs 12.2; 16 x 32768 (32 MiB): 15.2 and 14.1; H200."""


@triton.jit
def _normalised(
    x_ptr, mean_ptr, rstd_ptr, dy_ptr, offs_m, offs_n, m, n, CENTRED: tl.constexpr,
):  # fmt: skip
    """xhat and dy of a tile of rows and columns, and the rows' rstd; dy is 0 beyond rows and columns, xhat finite."""
    mask_m = offs_m < m
    mask = mask_m[:, None] & (offs_n < n)[None, :]
    offs = offs_m[:, None] * n + offs_n[None, :]
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
    if CENTRED:
        x -= tl.load(mean_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
    return x * rstd, dy, rstd


@triton.jit
def _weighed(dy, weight_ptr, offs_n, n, HAS_WEIGHT: tl.constexpr):
    """dy times weight."""
    if HAS_WEIGHT:
        # Rounded: merged into what follows it would leave rows of one element a dx that is not 0.
        dy = tl.fma(dy, tl.load(weight_ptr + offs_n, mask=offs_n < n, other=0.0).to(tl.float32)[None, :], 0.0)
    return dy


@triton.jit
def _gradients_of_rows(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, dsum_ptr, dx_ptr, m, n, pid, CENTRED: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_SUM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """dx of BLOCK_M rows, or of one of the PARTS of BLOCK_N columns that a row is cut into."""
    offs_m = pid // PARTS * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid % PARTS * BLOCK_N + tl.arange(0, BLOCK_N)
    xhat, dy, rstd = _normalised(x_ptr, mean_ptr, rstd_ptr, dy_ptr, offs_m, offs_n, m, n, CENTRED)
    g = _weighed(dy, weight_ptr, offs_n, n, HAS_WEIGHT)
    offs = offs_m[:, None] * n + offs_n[None, :]
    mask = (offs_m < m)[:, None] & (offs_n < n)[None, :]
    if HAS_SUM:  # on its way while the sums are made
        dsum = tl.load(dsum_ptr + offs, mask=mask, other=0.0)
    along, level = g * xhat, g
    if PARTS > 1:  # sums of all parts: while this part's elements wait
        along, level = tl.zeros([BLOCK_M, BLOCK_N], tl.float32), tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in tl.range(0, n, BLOCK_N, num_stages=STAGES):
            others = start + tl.arange(0, BLOCK_N)
            of_others, dy, _ = _normalised(x_ptr, mean_ptr, rstd_ptr, dy_ptr, offs_m, others, m, n, CENTRED)
            dy = _weighed(dy, weight_ptr, others, n, HAS_WEIGHT)
            along += dy * of_others
            level += dy
    dx = g - xhat * (tl.sum(along, axis=1)[:, None] / n)
    if CENTRED:
        dx -= tl.sum(level, axis=1)[:, None] / n
    dx *= rstd
    if HAS_SUM:
        dx += dsum.to(tl.float32)
    tl.store(dx_ptr + offs, dx, mask=mask)


@triton.jit
def _gradients_of_columns(
    x_ptr, mean_ptr, rstd_ptr, dy_ptr, dweight_ptr, dbias_ptr, m, n, pid, CENTRED: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    """dweight and dbias of COLUMNS columns, of all m rows in TURNS tiles of ROWS rows."""
    offs_n = pid * COLUMNS + tl.arange(0, COLUMNS)
    if TURNS == 1:
        xhat, dy, _ = _normalised(x_ptr, mean_ptr, rstd_ptr, dy_ptr, tl.arange(0, ROWS), offs_n, m, n, CENTRED)
        dweight, dbias = dy * xhat, dy
    else:
        dweight, dbias = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in tl.range(0, m, ROWS, num_stages=STAGES):
            offs_m = start + tl.arange(0, ROWS)
            xhat, dy, _ = _normalised(x_ptr, mean_ptr, rstd_ptr, dy_ptr, offs_m, offs_n, m, n, CENTRED)
            dweight += dy * xhat
            dbias += dy
    if HAS_WEIGHT:
        tl.store(dweight_ptr + offs_n, tl.sum(dweight, axis=0), mask=offs_n < n)
    if HAS_BIAS:
        tl.store(dbias_ptr + offs_n, tl.sum(dbias, axis=0), mask=offs_n < n)


@triton.jit
def _few_rows_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, dsum_ptr, dx_ptr, dweight_ptr, dbias_ptr, m, n, of_columns,
    CENTRED: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SUM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TURNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The first ``of_columns`` programs own columns of dweight and dbias, which take longest; the others rows of dx.

    Without a mean (not CENTRED) rows keep theirs.
    """
    n = n // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    pid = tl.program_id(0)
    if pid < of_columns:
        _gradients_of_columns(
            x_ptr, mean_ptr, rstd_ptr, dy_ptr, dweight_ptr, dbias_ptr, m, n, pid, CENTRED, HAS_WEIGHT, HAS_BIAS, ROWS,
            COLUMNS, TURNS,
        )  # fmt: skip
    else:
        _gradients_of_rows(
            x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, dsum_ptr, dx_ptr, m, n, pid - of_columns, CENTRED,
            HAS_WEIGHT, HAS_SUM, BLOCK_M, BLOCK_N, PARTS,
        )  # fmt: skip


def _most_of_thread(n: int, size: int) -> int:
    """Elements of a tile that a thread may have: four vectors, or 16 where each has an address of its own."""
    return 4 * VECTOR_BYTES // size if n % (VECTOR_BYTES // size) == 0 else 16


def _tiles(config: Config, m: int, n: int, size: int) -> dict[str, int]:
    """How rows are cut for dx, and columns for dweight; of short rows a program takes several: a vector a thread."""
    threads, most = 32 * config["num_warps"], _most_of_thread(n, size)
    block_n = triton.next_power_of_2(n)
    if block_n > most * threads:
        block_n = most // 2 * threads
    block_m = min(triton.next_power_of_2(m), max(1, 8 * threads // block_n))
    rows = min(triton.next_power_of_2(m), max(1, most * threads // config["COLUMNS"]))
    return {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "PARTS": triton.cdiv(n, block_n),
        "ROWS": rows, "COLUMNS": config["COLUMNS"], "TURNS": triton.cdiv(m, rows),
    }  # fmt: skip


def launch_few_rows(x, weight, mean, rstd, dy, dsum, dweight, dbias, config):
    """dx of contiguous rows x [..., n]; fills dweight and dbias [n] where they are not None.

    ``mean`` is None for a norm that does not centre its rows.
    """
    n = x.shape[-1]
    m, dx = x.numel() // n, torch.empty_like(x)
    tiles = _tiles(config, m, n, x.element_size())
    of_rows = triton.cdiv(m, tiles["BLOCK_M"]) * tiles["PARTS"]
    of_columns = 0 if dweight is None and dbias is None else triton.cdiv(n, config["COLUMNS"])
    launch(
        _few_rows_kernel, (of_rows + of_columns,), x, weight, mean, rstd, dy, dsum, dx, dweight, dbias, m, n,
        of_columns, CENTRED=mean is not None, HAS_WEIGHT=dweight is not None, HAS_BIAS=dbias is not None,
        HAS_SUM=dsum is not None, **tiles, WIDTH=widest(x), num_warps=config["num_warps"],
    )  # fmt: skip
    return dx


def handles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if problem["m"] > _MOST_ROWS:
        return f"more than {_MOST_ROWS} rows"
    if problem["m"] == 1 and problem["n"] <= _ALONE:
        return "one row, of which another variant's one program leaves nothing to add"
    bytes_read = 2 * problem["m"] * problem["n"] * element_size(problem.dtype)
    if bytes_read > _MOST_BYTES:
        return "so many rows that reading them again takes longer than a second launch"
    parts = _tiles_of(default(problem, gpu), problem)["PARTS"]
    return "so long rows that each of their parts reads them for longer" if parts * bytes_read > _MOST_OF_PARTS else ""


def _tiles_of(config: Config, problem: Case) -> dict[str, int]:
    return _tiles(config, problem["m"], problem["n"], element_size(problem.dtype))


def _each(config: Config, problem: Case) -> tuple[float, float]:
    """Elements a thread of its rows of dx, and of its tile of columns."""
    tiles, threads = _tiles_of(config, problem), 32 * config["num_warps"]
    return tiles["BLOCK_M"] * tiles["BLOCK_N"] / threads, tiles["ROWS"] * tiles["COLUMNS"] / threads


def fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot launch or be the best."""
    fewest, narrowest = SPACE["num_warps"][0], SPACE["COLUMNS"][0]
    tiles, (of_rows, of_columns) = _tiles_of(config, problem), _each(config, problem)
    if config["COLUMNS"] > narrowest and config["COLUMNS"] >= 2 * problem["n"]:
        return "more columns than there are"
    if config["num_warps"] > fewest and of_rows < 4:
        return f"{of_rows:g} elements a thread of all rows: fewer warps exchange less"
    if config["COLUMNS"] > 2 * narrowest and tiles["TURNS"] > 1:
        return "several tiles of rows, one after the other: narrower ones are done sooner"
    if config["num_warps"] > fewest and config["COLUMNS"] < SPACE["COLUMNS"][-1] and of_columns < 2:
        return "threads without columns"
    if tiles["TURNS"] * tiles["PARTS"] == 1:
        return ""
    tile = max(tiles["BLOCK_N"] * tiles["BLOCK_M"], tiles["ROWS"] * tiles["COLUMNS"])
    shared = STAGES.value * (2 * tile * element_size(problem.dtype) + 4 * (tiles["BLOCK_N"] + 2 * tiles["ROWS"]))
    return f"{shared} bytes of prefetched rows" if shared > gpu.shared_bytes else ""


def _odd(problem: Case) -> bool:
    """Whether rows are no whole vectors, and elements have an address each."""
    return problem["n"] * element_size(problem.dtype) % VECTOR_BYTES != 0


def _warps(problem: Case) -> int:
    """As many as hold a row; of longer ones four, whose many short parts keep more SMs busy.

    A row whose elements have an address each gets a warp to every 128 of them, and eight at most.
    """
    block_n, (fewest, middle, most) = triton.next_power_of_2(problem["n"]), SPACE["num_warps"]
    of_thread = _most_of_thread(problem["n"], element_size(problem.dtype))
    if _odd(problem):
        return min(max(block_n // 128, fewest), middle)
    warps = max(block_n // (32 * of_thread), fewest)
    return warps if warps <= most else fewest


def default(problem: Case, gpu: GPU) -> dict[str, int]:
    """Warps that hold a row; columns of four elements a thread, more where their programs would outnumber the SMs.

    16 x 1536 bf16: 5.7 us of 32 columns, 6.1 of 64; 32 x 6144: 7.1 of 64 columns and 8 warps, 7.4 of 32, 8.2 of 16
    warps; 512 x 4096: 10.9 of 32 columns, 11.8 of 16.  Of odd rows more columns do not pay: 529 x 2834 takes 11.3 of 16
    and 13.1 of 32 with 8 warps, 14.8 with 16.  H200.
    """
    every, warps = list(points(SPACE)), _warps(problem)
    fitting = [config for config in every if not fits(config, problem, gpu)] or every[:1]
    narrow = max(4 * 32 * warps // triton.next_power_of_2(problem["m"]), 1)
    columns = narrow if _odd(problem) else max(narrow, triton.next_power_of_2(triton.cdiv(problem["n"], gpu.sms)))

    def penalty(config: Config) -> tuple[float, ...]:
        return abs(math.log2(config["num_warps"] / warps)), abs(math.log2(config["COLUMNS"] / columns))

    return min(fitting, key=penalty)


def variant(launch_backward) -> Variant:
    """The variant of a norm's backward pass, with the launcher that has the pass's arguments."""
    return Variant(
        name="few_rows",
        summary="few rows, in one launch: some programs own rows of dx, others columns of dweight and dbias",
        launch=launch_backward,
        space=SPACE,
        default=default,
        fits=fits,
        handles=handles,
    )
