"""Norms of long rows that are no whole 16-byte vectors: rows that begin at one place of a vector in one program.

Where a row begins at an odd element, 16-byte accesses of it begin some elements later, and those of weight would be at
another place again in the next row.  But every VECTOR-th row begins at the same place: a program that owns every
so-many-th row, a multiple of VECTOR, holds weight (and its gradient) shifted alike for all of its rows.  What is left
of a row before its first whole vector and after its last is less than a vector each: the edge, element by element.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import GPU, Case, Config, element_size, gpu_of
from atlas.declaration.rows import (
    OTHER_REGISTERS,
    REGISTERS,
    THREAD_REGISTERS,
    VECTOR_BYTES,
    points,
    registers_obstacle,
)
from atlas.operators import launch

from .norms import has_residual
from .rows import EXCHANGE_BYTES, MOST_CHUNKS, load_tiles, still_packed, tiles_of_vectors

SPACE = {"num_warps": (4, 8, 16), "num_stages": (1, 3), "PROGRAMS_PER_SM": (1, 2, 4)}

_SHORTEST = 4096
"""Columns from which a row is worth a program: the edge's accesses are as many whatever its length."""

_NARROW_BYTES = 8
"""Rows of whole so many bytes are read as fast as they lie."""

_MOST_OF_FOUR_WARPS = 7 * 1024
"""Columns up to which programs of four warps, more of them on an SM, are faster than those of eight."""

_FEWEST = 8
"""Rows a program from which it pays to load weight once."""


@triton.jit
def _places(first, n, VECTOR: tl.constexpr):
    """Of rows that begin at one place, of which ``first`` is one: (head, whole, columns of the edge, which there are).

    ``head`` elements come before the first whole vector; ``whole`` elements are in whole ones.
    """
    head = ((VECTOR - first * n % VECTOR) % VECTOR).to(tl.int32)
    whole = (n - head) // VECTOR * VECTOR
    lanes = tl.arange(0, 2 * VECTOR)
    edge = tl.where(lanes < VECTOR, lanes, head + whole + lanes - VECTOR)
    return head, whole, edge, tl.where(lanes < VECTOR, lanes < head, edge < n)


@triton.jit
def _both(a, b, c, d):
    return a + c, b + d


@triton.jit
def _in_fp32(ptr, HAS: tl.constexpr, offs, mask, instead):
    return tl.load(ptr + offs, mask=mask, other=0.0).to(tl.float32) if HAS else instead


@triton.jit
def _forward_kernel(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, out_ptr, sum_ptr, mean_ptr, rstd_ptr, m, n, eps,
    CENTRED: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, WHOLE: tl.constexpr, VECTOR: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One program owns every `num_programs`-th row; weight and bias stay in registers.

    The first WHOLE tiles of a row end within its whole vectors.  The next row's edge is loaded a row ahead.
    """
    first, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    head, whole, edge, edge_mask = _places(first, n, VECTOR)
    columns = tl.arange(0, BLOCK_N)
    weight, bias, weight_edge, bias_edge = (), (), 1.0, 0.0
    if HAS_WEIGHT:
        weight = load_tiles(weight_ptr + head, whole, True, BLOCK_N, CHUNKS, WHOLE)
        weight_edge = tl.load(weight_ptr + edge, mask=edge_mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        bias = load_tiles(bias_ptr + head, whole, True, BLOCK_N, CHUNKS, WHOLE)
        bias_edge = tl.load(bias_ptr + edge, mask=edge_mask, other=0.0).to(tl.float32)
    x_edge = tl.load(x_ptr + first * n + edge, mask=edge_mask & (first < m), other=0.0)
    other_edge = x_edge
    if HAS_RESIDUAL:
        other_edge = tl.load(residual_ptr + first * n + edge, mask=edge_mask & (first < m), other=0.0)
    for row in tl.range(first, m, programs, num_stages=NUM_STAGES):
        start = (row * n + head) // VECTOR * VECTOR  # so said, the compiler accesses whole vectors
        x = load_tiles(x_ptr + start, whole, True, BLOCK_N, CHUNKS, WHOLE)
        ahead = (row + programs) * n + edge
        ahead_mask = edge_mask & (row + programs < m)
        next_edge = tl.load(x_ptr + ahead, mask=ahead_mask, other=0.0)
        next_other = next_edge
        if HAS_RESIDUAL:
            next_other = tl.load(residual_ptr + ahead, mask=ahead_mask, other=0.0)
            other = load_tiles(residual_ptr + start, whole, True, BLOCK_N, CHUNKS, WHOLE)
            added = ()
            for i in tl.static_range(CHUNKS):
                added += ((x[i].to(tl.float32) + other[i].to(tl.float32)).to(x_ptr.dtype.element_ty),)
                offs_n = i * BLOCK_N + columns
                tl.store(sum_ptr + start + offs_n, added[i], mask=(offs_n < whole) | (i < WHOLE))
            x = added
            x_edge = (x_edge.to(tl.float32) + other_edge.to(tl.float32)).to(x_ptr.dtype.element_ty)
            tl.store(sum_ptr + row * n + edge, x_edge, mask=edge_mask)
        at_edge, mean = x_edge.to(tl.float32), 0.0
        if CENTRED:
            total = tl.zeros([BLOCK_N], tl.float32)
            for i in tl.static_range(CHUNKS):
                total += x[i].to(tl.float32)
            # Rounded as IEEE asks: an error shifts all of a row alike.
            mean = tl.div_rn(tl.sum(total, axis=0) + tl.sum(at_edge, axis=0), tl.cast(n, tl.float32))
            tl.store(mean_ptr + row, mean)
            zero = (mean != mean).to(tl.int16)
            at_edge = tl.where(edge_mask, at_edge - mean, 0.0)
        squares = tl.zeros([BLOCK_N], tl.float32)
        for i in tl.static_range(CHUNKS):
            centred = x[i].to(tl.float32)
            if CENTRED:
                inside = (i * BLOCK_N + columns < whole) | (i < WHOLE)
                centred = tl.where(inside, still_packed(x[i], zero).to(tl.float32) - mean, 0.0)
            squares += centred * centred
        variance = (tl.sum(squares, axis=0) + tl.sum(at_edge * at_edge, axis=0)) / n
        rstd = tl.rsqrt((variance + eps).to(tl.float32))  # eps is fp64 under torch.compile
        tl.store(rstd_ptr + row, rstd)
        zero = ((rstd < 0) | (rstd != rstd)).to(tl.int16)
        for i in tl.static_range(CHUNKS):
            offs_n = i * BLOCK_N + columns
            out = still_packed(x[i], zero).to(tl.float32)
            out = (out - mean) * rstd if CENTRED else out * rstd
            if HAS_WEIGHT:
                out *= still_packed(weight[i], zero).to(tl.float32)
            if HAS_BIAS:
                out += still_packed(bias[i], zero).to(tl.float32)
            tl.store(out_ptr + start + offs_n, out, mask=(offs_n < whole) | (i < WHOLE))
        tl.store(out_ptr + row * n + edge, at_edge * rstd * weight_edge + bias_edge, mask=edge_mask)
        x_edge, other_edge = next_edge, next_other


@triton.jit
def _backward_kernel(
    x_ptr, weight_ptr, mean_ptr, rstd_ptr, dy_ptr, dsum_ptr, dx_ptr, partial_ptr, m, n,
    CENTRED: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SUM: tl.constexpr,
    BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, WHOLE: tl.constexpr, VECTOR: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One program owns every `num_programs`-th row: their dx, and one partial row of dweight and dbias, in registers.

    partial_ptr is [HAS_WEIGHT + HAS_BIAS, num_programs, n].  As in _forward_kernel.
    """
    first, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    head, whole, edge, edge_mask = _places(first, n, VECTOR)
    columns = tl.arange(0, BLOCK_N)
    weight, dweight, dbias, weight_edge = (), (), (), 1.0
    dweight_edge, dbias_edge = tl.zeros([2 * VECTOR], tl.float32), tl.zeros([2 * VECTOR], tl.float32)
    if HAS_WEIGHT:
        weight = load_tiles(weight_ptr + head, whole, True, BLOCK_N, CHUNKS, WHOLE)
        weight_edge = tl.load(weight_ptr + edge, mask=edge_mask, other=0.0).to(tl.float32)
        for _ in tl.static_range(CHUNKS):
            dweight += (tl.zeros([BLOCK_N], tl.float32),)
    if HAS_BIAS:
        for _ in tl.static_range(CHUNKS):
            dbias += (tl.zeros([BLOCK_N], tl.float32),)
    there = first < m
    x_edge = tl.load(x_ptr + first * n + edge, mask=edge_mask & there, other=0.0)
    dy_edge = tl.load(dy_ptr + first * n + edge, mask=edge_mask & there, other=0.0)
    rstd = tl.load(rstd_ptr + first, mask=there, other=0.0)
    mean = tl.load(mean_ptr + first, mask=there, other=0.0) if CENTRED else 0.0
    for row in tl.range(first, m, programs, num_stages=NUM_STAGES):
        start = (row * n + head) // VECTOR * VECTOR
        # dy is 0 beyond the whole vectors, and every sum has dy as a factor.
        x = load_tiles(x_ptr + start, whole, True, BLOCK_N, CHUNKS, WHOLE)
        dy = load_tiles(dy_ptr + start, whole, True, BLOCK_N, CHUNKS, WHOLE)
        ahead, there = row + programs, row + programs < m
        next_x = tl.load(x_ptr + ahead * n + edge, mask=edge_mask & there, other=0.0)
        next_dy = tl.load(dy_ptr + ahead * n + edge, mask=edge_mask & there, other=0.0)
        next_rstd = tl.load(rstd_ptr + ahead, mask=there, other=0.0)
        next_mean = tl.load(mean_ptr + ahead, mask=there, other=0.0) if CENTRED else 0.0
        at_edge = tl.where(edge_mask, x_edge.to(tl.float32) - mean, 0.0)
        g_edge = dy_edge.to(tl.float32)
        dweight_edge += g_edge * rstd * at_edge
        dbias_edge += g_edge
        g_edge *= weight_edge
        along, level = tl.zeros([BLOCK_N], tl.float32), tl.zeros([BLOCK_N], tl.float32)
        zero = (rstd < 0).to(tl.int16)
        for i in tl.static_range(CHUNKS):
            g = dy[i].to(tl.float32)
            if HAS_WEIGHT:
                g *= still_packed(weight[i], zero).to(tl.float32)
            along += g * (x[i].to(tl.float32) - mean)
            level += g
        # dx = rstd g - slope (x - mean) - base: few operations an element.
        base = 0.0
        if CENTRED:
            along, level = tl.reduce((along, level), 0, _both)
            base = (level + tl.sum(g_edge, axis=0)) / n * rstd
        else:
            along = tl.sum(along, axis=0)
        slope = (along + tl.sum(g_edge * at_edge, axis=0)) * rstd / n * rstd * rstd
        zero = ((rstd < 0) & (slope == slope)).to(tl.int16)
        weight_sums, bias_sums = (), ()
        for i in tl.static_range(CHUNKS):
            offs_n = i * BLOCK_N + columns
            mask = (offs_n < whole) | (i < WHOLE)
            centred = still_packed(x[i], zero).to(tl.float32) - mean
            g = still_packed(dy[i], zero).to(tl.float32)
            if HAS_BIAS:
                bias_sums += (dbias[i] + g,)
            g *= rstd
            if HAS_WEIGHT:
                weight_sums += (dweight[i] + g * centred,)
                g *= still_packed(weight[i], zero).to(tl.float32)
            dx = g - (centred * slope + base)
            if HAS_SUM:
                dx += tl.load(dsum_ptr + start + offs_n, mask=mask, other=0.0).to(tl.float32)
            tl.store(dx_ptr + start + offs_n, dx, mask=mask)
        dx_edge = g_edge * rstd - (at_edge * slope + base)
        dx_edge += _in_fp32(dsum_ptr, HAS_SUM, row * n + edge, edge_mask, 0.0)
        tl.store(dx_ptr + row * n + edge, dx_edge, mask=edge_mask)
        dweight, dbias = weight_sums, bias_sums
        x_edge, dy_edge, rstd, mean = next_x, next_dy, next_rstd, next_mean
    if HAS_WEIGHT:
        _store_sums(partial_ptr + first * n, dweight, dweight_edge, head, whole, edge, edge_mask, BLOCK_N, CHUNKS)
    if HAS_BIAS:
        partial_ptr += HAS_WEIGHT * programs.to(tl.int64) * n
        _store_sums(partial_ptr + first * n, dbias, dbias_edge, head, whole, edge, edge_mask, BLOCK_N, CHUNKS)


@triton.jit
def _store_sums(ptr, sums, sums_edge, head, whole, edge, edge_mask, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr):
    for i in tl.static_range(CHUNKS):
        offs_n = i * BLOCK_N + tl.arange(0, BLOCK_N)
        tl.store(ptr + head + offs_n, sums[i], mask=offs_n < whole)
    tl.store(ptr + edge, sums_edge, mask=edge_mask)


def _tiles(x, config):
    """Tile parameters of rows of ``x`` [..., n], and registers that leave room for PROGRAMS_PER_SM programs."""
    gpu, threads = gpu_of(x.device), 32 * config["num_warps"]
    most = REGISTERS // (threads * config["PROGRAMS_PER_SM"]) // 8 * 8
    limit = {"maxnreg": most} if gpu.backend == "cuda" and most < THREAD_REGISTERS else {}
    n, vector = x.shape[-1], VECTOR_BYTES // x.element_size()
    block_n, chunks = tiles_of_vectors(n, x.element_size(), config)
    return {
        "BLOCK_N": block_n, "CHUNKS": chunks, "WHOLE": (n - 2 * (vector - 1)) // block_n, "VECTOR": vector,
        "NUM_STAGES": config["num_stages"], "num_warps": config["num_warps"], **limit,
    }  # fmt: skip


def programs_apart(x, config):
    """Programs whose rows begin at one place: a multiple of the elements of a vector."""
    vector, m = VECTOR_BYTES // x.element_size(), x.numel() // x.shape[-1]
    most = config["PROGRAMS_PER_SM"] * gpu_of(x.device).sms // vector
    return vector * max(1, min(triton.cdiv(m, vector), most))


def launch_odd_forward(x, weight, bias, eps, residual, centred, config):
    """(out, sum, mean, rstd) of contiguous rows x [..., n]; without a residual the sum is None, and a mean, if not
    ``centred``.
    """
    n = x.shape[-1]
    m, out, total = x.numel() // n, torch.empty_like(x), None if residual is None else torch.empty_like(x)
    mean = torch.empty(m, dtype=torch.float32, device=x.device) if centred else None
    rstd = torch.empty(m, dtype=torch.float32, device=x.device)
    launch(
        _forward_kernel, (programs_apart(x, config),), x, residual, weight, bias, out, total, mean, rstd, m, n, eps,
        CENTRED=centred, HAS_RESIDUAL=residual is not None, HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None,
        **_tiles(x, config),
    )  # fmt: skip
    return out, total, mean, rstd


def launch_odd_backward(x, weight, mean, rstd, dy, dsum, partial, has_weight, has_bias, config):
    """dx of contiguous rows x [..., n]; fills partial [has_weight + has_bias, programs_apart(), n] with sums."""
    n, dx = x.shape[-1], torch.empty_like(x)
    launch(
        _backward_kernel, (programs_apart(x, config),), x, weight, mean, rstd, dy, dsum, dx, partial, x.numel() // n, n,
        CENTRED=mean is not None, HAS_WEIGHT=has_weight, HAS_BIAS=has_bias, HAS_SUM=dsum is not None,
        **_tiles(x, config),
    )  # fmt: skip
    return dx


def fits_odd(live: tuple[float, float], streams: int):
    """``fits`` for ``live`` values an element, in fp32 and in the case's dtype, and ``streams`` prefetched inputs."""

    def fits(config: Config, problem: Case, gpu: GPU) -> str:
        size, threads = element_size(problem.dtype), 32 * config["num_warps"]
        programs, (block_n, chunks) = config["PROGRAMS_PER_SM"], tiles_of_vectors(problem["n"], size, config)
        if not 2 <= chunks <= MOST_CHUNKS:
            return f"{chunks} tiles to a row"
        if programs * config["num_warps"] < 8:
            return "fewer than eight warps on an SM"
        row = block_n * chunks * size * (streams + has_residual(problem))
        shared = (config["num_stages"] - 1) * row + EXCHANGE_BYTES
        if shared > gpu.shared_bytes or shared * programs > gpu.shared_bytes_per_sm:
            return f"{programs} programs with {shared} bytes of prefetched rows exceed an SM's shared memory"
        needed = block_n * chunks / threads * (live[0] + live[1] * size / 4) + OTHER_REGISTERS
        return registers_obstacle(needed, threads * programs)

    return fits


def handles_odd(fits, held=None):
    """``handles`` of a variant with that ``fits``: many long rows that are no whole 16-byte vectors.

    Of rows that other variants read once, only those that these read slowly: of 16 bits an element, no whole 8 bytes.
    ``held``: for each element size, the columns up to which other variants read such a row once; None: always.
    """

    def handles(problem: Case, gpu: GPU) -> str:
        size, n = element_size(problem.dtype), problem["n"]
        if n * size % VECTOR_BYTES == 0:
            return "rows of whole 16-byte vectors"
        if n < _SHORTEST or problem["m"] < _FEWEST * gpu.sms:
            return "short rows, or few: the edges are most of the work, or weight"
        if (held is None or n <= held[size]) and (size > 2 or n * size % _NARROW_BYTES == 0):
            return "rows of 32-bit elements or whole 8 bytes, as fast in variants that read them as they lie"
        if all(fits(config, problem, gpu) for config in points(SPACE)):
            return "rows longer than the registers of a program"
        return ""

    return handles


def odd_default(fits, warps_per_sm: int):
    """``default``: rows prefetched where they can be, so many warps on an SM, in programs of four or eight of them."""

    def default(problem: Case, gpu: GPU) -> dict:
        fitting = [config for config in points(SPACE) if not fits(config, problem, gpu)] or list(points(SPACE))
        wanted = 4 if problem["n"] <= _MOST_OF_FOUR_WARPS else 8
        return min(
            fitting,
            key=lambda c: (
                -c["num_stages"],
                abs(c["num_warps"] * c["PROGRAMS_PER_SM"] - warps_per_sm),
                abs(c["num_warps"] - wanted),
            ),
        )

    return default
