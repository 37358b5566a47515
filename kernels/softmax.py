"""Softmax over rows: y[i, j] = exp(x[i, j] - m_i) / l_i, with m_i = max_j x[i, j] and l_i = sum_j exp(x[i, j] - m_i).

Its logarithm is y = x - m_i - log(l_i).  Under a causal mask row i of each matrix of q rows takes the columns
j <= i + n - q alone; under a mask those that a boolean says, or x plus a bias.

Forward reads x and writes y, MN elements each.  Backward is dx = y * (dy - sum_j y * dy), of the logarithm
dx = dy - exp(y) * sum_j dy: it reads y and dy and writes dx, 3 MN.  Both do a handful of operations an element, so
memory bounds them: a row should be read once and enough bytes kept in flight.  Arithmetic is fp32 whatever the dtype.

Variants: `one_pass` holds whole rows in registers, backward's `held` those of dy; `online` and backward's `stream` read
a row of any length twice, the second time from cache as far as it reaches, forward with the running maximum and sum of
Milakov and Gimelshein (arXiv:1805.02867).
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Case,
    Declaration,
    Pass,
    Variant,
    case,
    choose,
    compiled,
    eager,
    element_size,
    gpu_of,
    torch_dtype,
)
from atlas.declaration.rows import (
    OTHER_REGISTERS,
    REGISTERS,
    THREAD_REGISTERS,
    VECTOR_BYTES,
    block_n,
    fits_stream,
    most_warps,
    rows_obstacle,
    stream_default,
)
from atlas.operators import FP32, CustomOperator, Differentiable, autocast_rule, autocasting, launch

from kernels.common.axes import axis_of
from kernels.common.rows import LOWEST


@triton.jit
def _normalize(x, LOG: tl.constexpr):
    """Softmax of each row of a tile, or its logarithm; what is -inf takes no part.

    A row that holds NaN or +inf, or -inf alone, comes out as NaN, as in torch: the exponentials make it so.
    """
    shifted = x - tl.max(x, axis=1)[:, None]
    e = tl.exp(shifted)
    total = tl.sum(e, axis=1)
    y = shifted - tl.log(total)[:, None] if LOG else e * (1.0 / total)[:, None]
    return y


@triton.jit
def _pull(y, dy, inner, LOG: tl.constexpr):
    """dx of a tile, given each row's inner = sum of y * dy, or of dy for the logarithm."""
    dx = dy - tl.exp(y) * inner if LOG else y * (dy - inner)
    return dx


@triton.jit
def _masked(x, mask_ptr, offs, inside):
    """x where a boolean mask is true and -inf elsewhere, or x plus an additive one."""
    if mask_ptr.dtype.element_ty == tl.int1:
        x = tl.where(tl.load(mask_ptr + offs, mask=inside, other=0), x, -float("inf"))
    else:
        x += tl.load(mask_ptr + offs, mask=inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def _one_pass_kernel(
    x_ptr, mask_ptr, y_ptr, m, n, q, group, groups, stride_group, cycle, stride_cycle,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
    LOG: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows; BLOCK_N >= n, so they stay in registers from load to store.

    EVEN says that the tiles cover the rows exactly; without a mask 8192 x 8192 bf16 is 1 % faster (H200, Triton 3.6).
    mask_ptr is None where there is no mask; else its row for row r begins at :func:`_mask_rows`' offset.
    """
    n = n // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    inside = (offs_m < m) & (offs_n < n) | EVEN
    taken = inside
    if CAUSAL:
        taken = inside & (offs_n <= offs_m % q + (n - q))
    # -inf is the identity of max and becomes 0, the identity of the sum.
    x = tl.load(x_ptr + offs_m * n + offs_n, mask=taken, other=-float("inf")).to(tl.float32)
    if mask_ptr is not None:
        x = _masked(
            x, mask_ptr, offs_m // group % groups * stride_group + offs_m % cycle * stride_cycle + offs_n, taken
        )
    tl.store(y_ptr + offs_m * n + offs_n, _normalize(x, LOG), mask=inside)


@triton.jit
def _unmerged(x, inner):
    """x itself, which the compiler cannot tell: it converts 16-bit values to fp32 again and need not keep both.

    `inner` is NaN only where the whole row comes out as NaN, so the bit that it flips there is never seen.
    """
    if x.dtype.primitive_bitwidth == 16:
        x = (x.to(tl.int16, bitcast=True) ^ (inner != inner).to(tl.int16)).to(x.dtype, bitcast=True)
    return x


@triton.jit
def _one_pass_backward_kernel(
    y_ptr, dy_ptr, dx_ptr, m, n, q,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
    LOG: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M rows; BLOCK_N >= n, so they stay in registers from load to store.

    Between their two uses 16-bit rows stay 16 bits wide, two to a register: 2^15 of y and dy fit 32 warps so (60
    registers a thread on sm_90, and spills otherwise; Triton 3.7).
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    offs = offs_m * n + offs_n
    inside = (offs_m < m) & (offs_n < n) | EVEN
    taken = inside
    if CAUSAL:
        taken = inside & (offs_n <= offs_m % q + (n - q))
    # 0 is the identity of the sum.
    y = tl.load(y_ptr + offs, mask=taken, other=0.0)
    dy = tl.load(dy_ptr + offs, mask=taken, other=0.0)
    if LOG:
        inner = tl.sum(dy.to(tl.float32), axis=1)[:, None]
    else:
        inner = tl.sum(y.to(tl.float32) * dy.to(tl.float32), axis=1)[:, None]
    y, dy = _unmerged(y, inner).to(tl.float32), _unmerged(dy, inner).to(tl.float32)
    dx = _pull(y, dy, inner, LOG)
    if CAUSAL:
        dx = tl.where(taken, dx, 0.0)  # where inner is NaN, too
    tl.store(dx_ptr + offs, dx, mask=inside)


@triton.jit
def _held_backward_kernel(
    y_ptr, dy_ptr, dx_ptr, n, q,
    BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
    LOG: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One program owns one row of CHUNKS tiles of BLOCK_N columns: its dy stays in registers, its y is read again.

    dy goes past L1 (`.cg`), so that L1 has room for y, which is read backwards: what was read last is in cache.  Of the
    logarithm y is read once.  EVEN says that the tiles cover the row exactly.
    """
    n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    row = tl.program_id(0).to(tl.int64)
    limit = n
    if CAUSAL:
        limit = (row % q).to(tl.int32) + (n - q) + 1
    y_ptr, dy_ptr, dx_ptr = y_ptr + row * n, dy_ptr + row * n, dx_ptr + row * n
    columns = tl.arange(0, BLOCK_N)
    dys = ()
    products = tl.zeros([BLOCK_N], tl.float32)
    for i in tl.static_range(CHUNKS):
        offs = i * BLOCK_N + columns
        taken = offs < limit if CAUSAL else (offs < n) | EVEN
        # 0 is the identity of the sum.
        dy = tl.load(dy_ptr + offs, mask=taken, other=0.0, cache_modifier=".cg")
        dys += (dy,)
        if LOG:
            products += dy.to(tl.float32)
        else:
            y = tl.load(y_ptr + offs, mask=taken, other=0.0, eviction_policy="evict_last")
            products += y.to(tl.float32) * dy.to(tl.float32)
    inner = tl.sum(products, axis=0)
    for i in tl.static_range(CHUNKS):
        offs = (CHUNKS - 1 - i) * BLOCK_N + columns
        inside = (offs < n) | EVEN
        taken = offs < limit if CAUSAL else inside
        y = tl.load(y_ptr + offs, mask=taken, other=0.0, eviction_policy="evict_first").to(tl.float32)
        dx = _pull(y, _unmerged(dys[CHUNKS - 1 - i], inner).to(tl.float32), inner, LOG)
        if CAUSAL:
            dx = tl.where(taken, dx, 0.0)  # as in _one_pass_backward_kernel
        tl.store(dx_ptr + offs, dx, mask=inside)


@triton.jit
def _cut(row, n, WIDTH: tl.constexpr):
    """A row that begins anywhere, cut for accesses of WIDTH aligned elements: (first, head, body).

    `first` is the row's first aligned element in the tensor, `head` how many lie before it (at most WIDTH - 1), `body`
    how many follow in whole lanes; up to WIDTH - 1 more remain, the tail.
    """
    first = (row * n + (WIDTH - 1)) // WIDTH * WIDTH
    head = tl.minimum(first - row * n, n).to(tl.int32)
    return first, head, (n - head) // WIDTH * WIDTH


@triton.jit
def _edges(head, body, n, WIDTH: tl.constexpr):
    """The columns before and after a row's whole lanes, and whether there are such: [2 * WIDTH] each."""
    i = tl.arange(0, 2 * WIDTH)
    offs = tl.where(i < WIDTH, i, head + body + i - WIDTH)
    return offs, tl.where(i < WIDTH, i < head, offs < n)


@triton.jit
def _scaled(x, row_max, total, LOG: tl.constexpr):
    """Softmax of elements of one row, or its logarithm, given the row's maximum and sum."""
    y = x - row_max - tl.log(total) if LOG else tl.exp(x - row_max) * (1.0 / total)
    return y


@triton.jit
def _online_kernel(
    x_ptr, mask_ptr, y_ptr, n, q, group, groups, stride_group, cycle, stride_cycle,
    LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, LOG: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One program owns one row of any length, in blocks of LANES x WIDTH elements.

    Each lane, WIDTH neighbours that one thread loads at once, has a running maximum m_i and sum l_i of its own, so
    threads need exchange nothing before the end of the sweep.  The second sweep goes backwards: what was read last is
    in cache.  Where rows begin off WIDTH elements (not ALIGNED), the few before and after the aligned ones are held
    apart.
    """
    if ALIGNED:
        n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    row = tl.program_id(0).to(tl.int64)
    first, head, body = _cut(row, n, WIDTH)
    limit = n
    if CAUSAL:
        limit = (row % q).to(tl.int32) + (n - q) + 1
    row_ptr, lanes_ptr = mask_ptr, mask_ptr
    if mask_ptr is not None:
        row_ptr = mask_ptr + row // group % groups * stride_group + row % cycle * stride_cycle
        lanes_ptr = row_ptr + head
    in_body = tl.minimum(body, limit - head) if CAUSAL else body
    lane_0, columns = tl.arange(0, LANES)[:, None] * WIDTH, tl.arange(0, WIDTH)[None, :]
    m_i = tl.full([LANES], LOWEST, tl.float32)
    l_i = tl.zeros([LANES], tl.float32)
    for start in tl.range(0, in_body, LANES * WIDTH):
        lane = start + lane_0
        offs = lane + columns
        # -inf is the identity of max and becomes 0, the identity of the sum.
        x = tl.load(x_ptr + first + offs, mask=lane < in_body, other=-float("inf"), eviction_policy="evict_last")
        x = x.to(tl.float32)
        if CAUSAL:
            x = tl.where(offs < in_body, x, -float("inf"))
        if mask_ptr is not None:
            x = _masked(x, lanes_ptr, offs, lane < in_body)
        m_new = tl.maximum(m_i, tl.max(x, axis=1))
        l_i = l_i * tl.exp(m_i - m_new) + tl.sum(tl.exp(x - m_new[:, None]), axis=1)
        m_i = m_new
    row_max = tl.max(m_i, axis=0)
    if not ALIGNED:
        offs_e, inside_e = _edges(head, body, n, WIDTH)
        taken_e = inside_e & (offs_e < limit)
        edge = tl.load(x_ptr + row * n + offs_e, mask=taken_e, other=-float("inf")).to(tl.float32)
        if mask_ptr is not None:
            edge = _masked(edge, row_ptr, offs_e, taken_e)
        row_max = tl.maximum(row_max, tl.max(edge, axis=0))
    total = tl.sum(l_i * tl.exp(m_i - row_max), axis=0)
    if not ALIGNED:
        total += tl.sum(tl.exp(edge - row_max), axis=0)
        tl.store(y_ptr + row * n + offs_e, _scaled(edge, row_max, total, LOG), mask=inside_e)
    last = (body - 1) // (LANES * WIDTH) * (LANES * WIDTH)
    for done in tl.range(0, body, LANES * WIDTH):
        lane = last - done + lane_0
        offs = lane + columns
        x = tl.load(x_ptr + first + offs, mask=lane < in_body, other=-float("inf"), eviction_policy="evict_first")
        x = x.to(tl.float32)
        if CAUSAL:
            x = tl.where(offs < in_body, x, -float("inf"))
        if mask_ptr is not None:
            x = _masked(x, lanes_ptr, offs, lane < in_body)
        # Streaming, so that what is stored does not displace what is read again (3 % on an H200, Triton 3.6).
        tl.store(y_ptr + first + offs, _scaled(x, row_max, total, LOG), mask=lane < body, cache_modifier=".cs")


@triton.jit
def _share(body, part, BLOCK: tl.constexpr, SPLITS: tl.constexpr):
    """The blocks [low, high) of a row's body that program `part` of SPLITS writes."""
    size = tl.cdiv(tl.cdiv(body, BLOCK), SPLITS) * BLOCK
    low = tl.minimum(part * size, body).to(tl.int32)
    return low, tl.minimum(low + size, body)


@triton.jit
def _gather(
    y_ptr, dy_ptr, low, high, limit, inner_i,
    LANES: tl.constexpr, WIDTH: tl.constexpr, LOG: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Each lane's sum of y * dy, or of dy for the logarithm, after [low, high) of a row; y is 0 from `limit` on."""
    if CAUSAL:
        high = tl.minimum(high, limit)
    for start in tl.range(low, high, LANES * WIDTH):
        lane = start + tl.arange(0, LANES)[:, None] * WIDTH
        offs = lane + tl.arange(0, WIDTH)[None, :]
        # 0 is the identity of the sum.
        dy = tl.load(dy_ptr + offs, mask=lane < high, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if LOG:
            inner_i += tl.sum(dy, axis=1)
        else:
            y = tl.load(y_ptr + offs, mask=lane < high, other=0.0, eviction_policy="evict_last").to(tl.float32)
            if CAUSAL:
                dy = tl.where(offs < limit, dy, 0.0)
            inner_i += tl.sum(y * dy, axis=1)
    return inner_i


@triton.jit
def _stream_backward_kernel(
    y_ptr, dy_ptr, dx_ptr, m, n, q,
    LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, SPLITS: tl.constexpr,
    LOG: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """SPLITS programs share one row of any length, in blocks of LANES x WIDTH elements, then the next of their rows.

    Each sums the whole row, its own share of it last, then sweeps backwards over its share, which it writes.  Two
    programs a row begin at opposite ends, so half as many rows are under way, and each element comes from memory once
    where these fit the L2.
    """
    if ALIGNED:
        n = n // WIDTH * WIDTH  # as in _one_pass_kernel
    for index in tl.range(tl.program_id(0).to(tl.int64), m * SPLITS, tl.num_programs(0)):
        row, part = index // SPLITS, index % SPLITS
        first, head, body = _cut(row, n, WIDTH)
        low, high = _share(body, part, LANES * WIDTH, SPLITS)
        limit = n
        if CAUSAL:
            limit = (row % q).to(tl.int32) + (n - q) + 1
        in_body = limit - head
        y_lanes, dy_lanes = y_ptr + first, dy_ptr + first
        inner_i = tl.zeros([LANES], tl.float32)
        if SPLITS > 1:
            inner_i = _gather(y_lanes, dy_lanes, high, body, in_body, inner_i, LANES, WIDTH, LOG, CAUSAL)
            inner_i = _gather(y_lanes, dy_lanes, 0, low, in_body, inner_i, LANES, WIDTH, LOG, CAUSAL)
        inner_i = _gather(y_lanes, dy_lanes, low, high, in_body, inner_i, LANES, WIDTH, LOG, CAUSAL)
        inner = tl.sum(inner_i, axis=0)
        if not ALIGNED:
            offs_e, inside_e = _edges(head, body, n, WIDTH)
            taken_e = inside_e & (offs_e < limit)
            y_edge = tl.load(y_ptr + row * n + offs_e, mask=taken_e, other=0.0).to(tl.float32)
            dy_edge = tl.load(dy_ptr + row * n + offs_e, mask=taken_e, other=0.0).to(tl.float32)
            inner += tl.sum(dy_edge if LOG else y_edge * dy_edge, axis=0)
            dx_edge = _pull(y_edge, dy_edge, inner, LOG)
            if CAUSAL:
                dx_edge = tl.where(taken_e, dx_edge, 0.0)
            tl.store(dx_ptr + row * n + offs_e, dx_edge, mask=inside_e & (part == 0))
        last = low + (high - low - 1) // (LANES * WIDTH) * (LANES * WIDTH)
        for done in tl.range(0, high - low, LANES * WIDTH):
            lane = last - done + tl.arange(0, LANES)[:, None] * WIDTH
            offs = lane + tl.arange(0, WIDTH)[None, :]
            taken = lane < high
            if CAUSAL:
                taken = lane < tl.minimum(high, in_body)
            y = tl.load(y_lanes + offs, mask=taken, other=0.0, eviction_policy="evict_first").to(tl.float32)
            dy = tl.load(dy_lanes + offs, mask=taken, other=0.0, eviction_policy="evict_first").to(tl.float32)
            dx = _pull(y, dy, inner, LOG)
            if CAUSAL:
                dx = tl.where(offs < in_body, dx, 0.0)
            tl.store(dx_ptr + first + offs, dx, mask=lane < high, cache_modifier=".cs")


def _mask_rows(shape: torch.Size, mask: torch.Tensor) -> dict[str, int]:
    """Where the mask's row for row r of scores of ``shape`` begins, in elements, as arguments of a kernel:

        r // group % groups * stride_group + r % cycle * stride_cycle

    So a mask may repeat over leading dimensions and over a run of others.  Raises ValueError for what needs more, or
    whose rows are not contiguous or of another length.
    """
    dims: list[tuple[int, int]] = []  # (size, stride) of the leading dimensions, neighbours merged
    for size, stride in _expanded_rows(shape, mask):
        if dims and dims[-1][1] == size * stride:
            dims[-1] = (dims[-1][0] * size, stride)
        elif size > 1:
            dims.append((size, stride))
    if len(dims) > 1 and not dims[0][1]:
        dims = dims[1:]
    if len(dims) > 3 or (len(dims) == 3 and dims[1][1]):
        raise _unfit(shape, mask)
    dims += [(1, 0)] * (2 - len(dims))
    (groups, stride_group), (cycle, stride_cycle) = dims[0], dims[-1]
    between = dims[1][0] if len(dims) == 3 else 1
    rows = between * cycle, groups, stride_group, cycle, stride_cycle
    return dict(zip(_MASK_ROWS, rows, strict=True))


def _expanded_rows(shape, mask):
    """Size and stride of each leading dimension of the mask when expanded to ``shape``."""
    fits = mask.dim() and mask.shape[-1] == shape[-1] and (mask.stride(-1) == 1 or shape[-1] == 1)
    lacking = len(shape) - mask.dim()
    fits = fits and lacking >= 0 and all(m in (1, s) for m, s in zip(mask.shape, shape[lacking:], strict=True))
    if not fits:
        raise _unfit(shape, mask)
    return list(zip(shape, mask.expand(shape).stride(), strict=True))[:-1]


def _unfit(shape, mask):
    return ValueError(
        f"softmax: a mask of shape {tuple(mask.shape)} and strides {mask.stride()} for scores of shape {tuple(shape)}: "
        "its rows must be as long as the scores', and it may be broadcast over leading dimensions and one run of "
        "others; expand it and make it contiguous"
    )


def _matrix(x, causal):
    """(m, n, q): rows, their length, and how many make up a matrix of causal scores (else 1)."""
    n = x.shape[-1] if x.dim() else 1
    return x.numel() // n, n, x.shape[-2] if causal else 1


def _tiles(x, m, n, config):
    """Meta-parameters of kernels that hold BLOCK_M whole rows."""
    block_m, columns = config["BLOCK_M"], triton.next_power_of_2(n)
    vector = VECTOR_BYTES // x.element_size()
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": columns,
        "WIDTH": 1 if n % vector else vector,
        "EVEN": m % block_m == 0 and n == columns,
        "num_warps": config["num_warps"],
    }


def _lanes(x, n, config):
    """Meta-parameters of kernels that stream rows."""
    vector = VECTOR_BYTES // x.element_size()
    return {
        "LANES": config["BLOCK_N"] // vector,
        "WIDTH": vector,
        "ALIGNED": n % vector == 0,
        "num_warps": config["num_warps"],
    }


def _mask_arguments(x, mask):
    return _mask_rows(x.shape, mask) if mask is not None else dict.fromkeys(_MASK_ROWS)


def _launch_one_pass(x, mask=None, log=False, causal=False, *, config):
    y = torch.empty_like(x)
    m, n, q = _matrix(x, causal)
    tiles = _tiles(x, m, n, config)
    grid = (triton.cdiv(m, config["BLOCK_M"]),)
    launch(_one_pass_kernel, grid, x, mask, y, m, n, q, **_mask_arguments(x, mask), **tiles, LOG=log, CAUSAL=causal)
    return y


def _launch_online(x, mask=None, log=False, causal=False, *, config):
    y = torch.empty_like(x)
    m, n, q = _matrix(x, causal)
    lanes = _lanes(x, n, config)
    launch(_online_kernel, (m,), x, mask, y, n, q, **_mask_arguments(x, mask), **lanes, LOG=log, CAUSAL=causal)
    return y


def _launch_one_pass_backward(y, dy, log=False, causal=False, *, config):
    dx = torch.empty_like(y)
    m, n, q = _matrix(y, causal)
    tiles = _tiles(y, m, n, config)
    grid = (triton.cdiv(m, config["BLOCK_M"]),)
    launch(_one_pass_backward_kernel, grid, y, dy, dx, m, n, q, **tiles, LOG=log, CAUSAL=causal)
    return dx


def _launch_held_backward(y, dy, log=False, causal=False, *, config):
    dx = torch.empty_like(y)
    m, n, q = _matrix(y, causal)
    columns, chunks = triton.next_power_of_2(n), config["CHUNKS"]
    launch(
        _held_backward_kernel, (m,), y, dy, dx, n, q, BLOCK_N=columns // chunks, CHUNKS=chunks,
        WIDTH=VECTOR_BYTES // y.element_size(), EVEN=n == columns, LOG=log, CAUSAL=causal,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return dx


def _launch_stream_backward(y, dy, log=False, causal=False, *, config):
    """A program for each share of a row, or no more than PROGRAMS_PER_SM on each SM where the config says so."""
    dx = torch.empty_like(y)
    m, n, q = _matrix(y, causal)
    shares = m * config["SPLITS"]
    programs = min(shares, config["PROGRAMS_PER_SM"] * gpu_of(y.device).sms or shares)
    launch(
        _stream_backward_kernel, (programs,), y, dy, dx, m, n, q,
        **_lanes(y, n, config), SPLITS=config["SPLITS"], LOG=log, CAUSAL=causal,
    )  # fmt: skip
    return dx


def _case_of(x, mask, log, causal):
    m, n, _ = _matrix(x, causal)
    flags = {"log": True} if log else {"causal": True} if causal else {}
    if mask is not None:
        flags["mask"] = "bool" if mask.dtype == torch.bool else "added"
    if causal or mask is not None:
        flags["q"] = x.shape[-2] if x.dim() > 1 else 1
    return case(_NAMES[x.dtype], **flags, m=m, n=n)


def _run_forward(x, mask, log, causal):
    variant, config = choose(DECLARATION, "forward", _case_of(x, mask, log, causal), x.device)
    return variant.launch(x, mask, log, causal, config=config)


def _run_backward(y, dy, log, causal):
    variant, config = choose(DECLARATION, "backward", _case_of(y, None, log, causal), y.device)
    return variant.launch(y, dy, log, causal, config=config)


def _setup(ctx, inputs, output):
    _, mask, ctx.log, ctx.causal = inputs
    ctx.save_for_backward(output)
    ctx.mask = None if mask is None else (mask.shape, mask.dtype)


def _pull_back(ctx, dy):
    (y,) = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        dx = _backward_reference(y.float(), dy.float(), ctx.log).to(dy.dtype)
    else:
        dx = _backward(y, dy.contiguous(), ctx.log, ctx.causal)
    dmask = dx.sum_to_size(ctx.mask[0]).to(ctx.mask[1]) if ctx.needs_input_grad[1] else None
    return dx, dmask, None, None


_forward = CustomOperator(
    "softmax_forward",
    "(Tensor x, Tensor? mask, bool log, bool causal) -> Tensor",
    run=_run_forward,
    fake=lambda x, mask, log, causal: torch.empty_like(x),
)
_backward = CustomOperator(
    "softmax_backward",
    "(Tensor y, Tensor dy, bool log, bool causal) -> Tensor",
    run=_run_backward,
    fake=lambda y, dy, log, causal: torch.empty_like(y),
)
_softmax = Differentiable(_forward, setup_context=_setup, backward=_pull_back)


def softmax(
    input: torch.Tensor,
    dim: int = -1,
    dtype: torch.dtype | None = None,
    *,
    mask: torch.Tensor | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.softmax(input, dim, dtype=dtype)`` in fp32, fp16 or bf16, for any ``dim`` and shape.

    With ``dtype`` the input is cast first.  The result is contiguous; an input whose rows along ``dim`` do not lie one
    after the other is copied first.

    ``mask`` is as of ``torch.nn.functional.scaled_dot_product_attention``: a boolean one says which elements take part,
    a floating one is added.  It is broadcast over leading dimensions and one run of others, so (q, k), (b, 1, q, k) and
    (b, 1, 1, k) will do for scores of (b, h, q, k).  ``causal`` leaves to row i of each (q, k) the columns
    j <= i + k - q.  Both go with the last ``dim`` alone.  A row of which nothing takes part is NaN, as in torch.

    Second derivatives go through torch's operations.  Raises TypeError for another dtype and a ``dim`` that is no int,
    IndexError for one that the input does not have, ValueError for a mask that does not fit.
    """
    if autocasting() and dtype is None and autocast_rule("softmax.int", input.device) == FP32:
        dtype = torch.float32
    plain = mask is None and not causal and dtype is None
    if plain and type(dim) is int and dim == -1 and input.is_contiguous() and input.dtype in _NAMES and input.numel():
        return _softmax(input, None, False, False)
    return _any_layout("softmax", input, dim, dtype, mask, False, causal)


def log_softmax(input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.nn.functional.log_softmax(input, dim, dtype=dtype)``; all else as for :func:`softmax`."""
    if autocasting() and dtype is None and autocast_rule("log_softmax.int", input.device) == FP32:
        dtype = torch.float32
    plain = type(dim) is int and dim == -1 and dtype is None
    if plain and input.is_contiguous() and input.dtype in _NAMES and input.numel():
        return _softmax(input, None, True, False)
    return _any_layout("log_softmax", input, dim, dtype, None, True, False)


def _any_layout(name, input, dim, dtype, mask, log, causal):
    """The general case of both functions: checks, a cast, rows along any dimension."""
    x = input if dtype is None else input.to(dtype)
    if x.dtype not in _NAMES:
        raise TypeError(f"{name} takes {', '.join(_DTYPES)}: {x.dtype}; name one of them as dtype= to cast the input")
    dim = axis_of(name, dim, x.dim())  # a scalar is a row of one, as in torch
    last = dim == max(x.dim(), 1) - 1
    if mask is not None:
        mask = _checked_mask(x, mask)
    if (mask is not None or causal) and (not last or x.dim() < 2):
        raise ValueError(
            f"{name}: mask and causal are for the last dim of scores (…, q, k): {tuple(x.shape)}, dim {dim}"
        )
    if not x.numel():
        return x.clone()
    if last:
        return _softmax(x.contiguous(), mask, log, causal)
    return _softmax(x.movedim(dim, -1).contiguous(), None, log, False).movedim(-1, dim).contiguous()


def _checked_mask(x, mask):
    """The mask with contiguous rows; ValueError where it does not fit the scores."""
    if (mask.dtype != torch.bool and mask.dtype not in _NAMES) or mask.device != x.device:
        raise ValueError(
            f"softmax: a mask is bool or {', '.join(_DTYPES)} on {x.device}: {mask.dtype} on {mask.device}"
        )
    if mask.dim() and mask.stride(-1) != 1 and mask.shape[-1] > 1:
        mask = mask.contiguous()
    _mask_rows(x.shape, mask)
    return mask


__all__ = ["log_softmax", "softmax"]

_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}
_MASK_ROWS = ("group", "groups", "stride_group", "cycle", "stride_cycle")


def _reference(x, mask=None, log=False, causal=False):
    if causal:
        mask = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril(x.shape[-1] - x.shape[-2])
    if mask is not None:
        x = x.masked_fill(~mask, -float("inf")) if mask.dtype == torch.bool else x + mask
    return torch.log_softmax(x, dim=-1) if log else torch.softmax(x, dim=-1)


def _backward_reference(y, dy, log=False, causal=False):
    """Under a causal mask dy above the diagonal is not looked at, and dx is 0 there whatever the row holds."""
    if not causal:
        return _user_backward(y, dy, log)
    above = torch.ones(y.shape[-2:], dtype=torch.bool, device=y.device).triu(1 + y.shape[-1] - y.shape[-2])
    return _user_backward(y, dy.masked_fill(above, 0.0)).masked_fill(above, 0.0)


def _user_backward(y, dy, log=False, causal=False):
    """The gradient as a user would write it: above a causal diagonal y is 0, so for finite rows dx is, too."""
    if log:
        return dy - y.exp() * dy.sum(dim=-1, keepdim=True)
    return y * (dy - (y * dy).sum(dim=-1, keepdim=True))


def _torch_backward(y, dy, log=False, causal=False):
    if log:
        return torch.ops.aten._log_softmax_backward_data(dy, y, -1, y.dtype)
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


def _liger(x, mask=None, log=False, causal=False):
    from liger_kernel.transformers.functional import liger_softmax

    if mask is not None or log or causal:
        raise NotImplementedError("Liger has softmax alone, without a mask")
    return liger_softmax(x)


def _liger_backward(y, dy, log=False, causal=False):
    from liger_kernel.ops.softmax import _softmax_backward
    from liger_kernel.ops.utils import calculate_settings

    if log:
        raise NotImplementedError("Liger has no logarithm of softmax")
    return _softmax_backward(dy, y, *calculate_settings(y.shape[-1]), False)


def _flag(problem: Case, name: str):
    """A flag or size that a case may not have; None then."""
    return dict(problem.sizes).get(name)


def _inputs(problem: Case, device, generator):
    m, n, q = problem["m"], problem["n"], _flag(problem, "q")
    shape = (m // q, q, n) if q else (m, n)
    x = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)
    inputs = {"x": x} | ({"log": True} if _flag(problem, "log") else {})
    if _flag(problem, "causal"):
        inputs["causal"] = True
    if _flag(problem, "mask"):
        inputs["mask"] = torch.randn(shape[-2:], dtype=x.dtype, device=device, generator=generator)
    if _flag(problem, "mask") == "bool":
        inputs["mask"] = inputs["mask"] > -1.0
    return inputs


def _backward_inputs(problem: Case, device, generator):
    inputs = _inputs(problem, device, generator)
    x = inputs["x"]
    dy = torch.randn(x.shape, dtype=x.dtype, device=device, generator=generator)
    flags = {name: inputs[name] for name in ("log", "causal") if name in inputs}
    return {"y": _reference(**inputs), "dy": dy} | flags


def _call(function, inputs):
    if inputs.get("log"):
        return log_softmax(inputs["x"])
    return function(**{"input" if name == "x" else name: value for name, value in inputs.items()})


def _cases(gpu: GPU) -> list[Case]:
    shapes = {
        "bf16": (
            (128, 1024),  # the launch is the cost
            (4096, 1024),
            (8192, 2048),
            (4096, 5120),  # a hidden size, no power of two
            (8192, 8192),
            (4096, 32768),
            (4096, 50257),  # a vocabulary of odd length: no row but each eighth starts on 16 bytes
            (4096, 128256),  # a vocabulary that no SM's registers hold
            (1024, 262144),  # and twice that: the rows under way at once fill the L2
        ),
        "fp16": ((4096, 1024), (8192, 8192), (4096, 32768)),
        "fp32": ((4096, 1024), (8192, 8192), (4096, 32768)),
    }
    found = [case(dtype, m=m, n=n) for dtype, pairs in shapes.items() for m, n in pairs]
    found += [
        case("bf16", log=True, m=4096, n=32000),  # a vocabulary, as before a loss
        case("bf16", causal=True, q=2048, m=65536, n=2048),  # scores of 32 heads
        case("bf16", mask="bool", q=2048, m=65536, n=2048),
    ]
    largest = gpu.memory_bytes // 8 // 3  # the three matrices of the backward pass in an eighth of the memory
    return [c for c in found if c["m"] * c["n"] * element_size(c.dtype) <= largest]


_EDGE_CASES = tuple(
    case(dtype, reason, **flags, m=m, n=n)
    for dtype in _DTYPES
    for m, n, flags, reason in (
        (1, 1, {}, "one element: softmax is 1 whatever it is"),
        (7, 1, {}, "rows of one element"),
        (1, 1000, {}, "one row, not a power of two"),
        (37, 129, {}, "odd rows, one element past a power of two: no row but the first starts on 16 bytes"),
        (33, 64, {}, "one row more than whole tiles of rows"),
        (3, 4097, {}, "rows one element longer than a block of the streaming variants: a tail of one"),
        (8, 2049, {}, "eight odd rows: each begins elsewhere in a lane of 16 bytes"),
        (2, 20_000, {}, "several blocks and a tail"),
        (2, 70_001, {}, "a row that two programs share, each with a tail"),
        (6, 129, {"log": True}, "the logarithm of odd rows"),
        (3, 4104, {"log": True}, "the logarithm of several blocks"),
        (26, 13, {"causal": True, "q": 13}, "square causal scores: the first row takes one column"),
        (10, 2049, {"causal": True, "q": 5}, "fewer rows than columns: the diagonal ends in a corner, off 16 bytes"),
        (18, 64, {"mask": "bool", "q": 9}, "a mask for both matrices"),
        (4, 2051, {"mask": "added", "q": 2}, "an additive mask off 16 bytes, in several blocks"),
    )
)

# Of the shapes with as many elements one that every variant takes: n = 8192 is the longest row of backward's registers.
_HUGE_CASES = (case("bf16", "row offsets beyond 2^31: one row more than 2^31 elements hold", m=2**18 + 1, n=8192),)


_LIVE = {"one_pass": 1.0, "backward": 2.0}
"""fp32 registers for each element of a tile (what ptxas of Triton 3.7 needs without spilling); 16-bit rows of the
backward pass take half."""


def _live(problem: Case, kind: str) -> float:
    packed = "backward" in kind and element_size(problem.dtype) == 2
    return _LIVE[kind] / (2 if packed else 1)


def _fits_rows(kind: str):
    """``fits`` of the variants that hold a block of rows a program."""

    def fits(config: dict, problem: Case, gpu: GPU) -> str:
        if config["num_warps"] > most_warps(gpu):
            return "over 1024 threads"
        if config["BLOCK_M"] > 1 and problem["n"] >= 8192:
            return "rows that need no company to keep memory busy"
        if config["BLOCK_M"] * block_n(problem) > 64 * 32 * config["num_warps"]:
            return "over 64 elements a thread"
        return rows_obstacle(config, problem, _live(problem, kind))

    return fits


def _handles_rows(kind: str, streams: int):
    """``handles`` of the same: rows of up to 2^14 elements of ``streams`` inputs, and those of 128 KiB that fit.

    A program that fills more than half of an SM's registers runs alone, and memory idles while it exchanges its sums,
    the less the more bytes it has asked for.  On an H200 (Triton 3.6) rows of 2^15 bf16 in registers reach 2.9 TB/s
    forward, and 4.1 TB/s in fp32, where the row is 128 KiB.
    """

    def handles(problem: Case, gpu: GPU) -> str:
        n, columns = problem["n"], block_n(problem)
        long = columns * element_size(problem.dtype) * streams == 2**17
        if columns * streams <= 2**14 or (long and columns * _live(problem, kind) <= REGISTERS // 2):
            return ""
        return f"rows of {n} elements, over {2**14 // streams}"

    return handles


def _one_pass_default(problem: Case, gpu: GPU) -> dict:
    """Two 16-byte vectors a thread; short rows share the four warps that an SM's schedulers take at once."""
    size, two_vectors = element_size(problem.dtype), 2 * 32 * VECTOR_BYTES
    fitting = 4 * two_vectors // (block_n(problem) * size)
    block_m = max(1, min(fitting, triton.next_power_of_2(problem["m"]), _ROWS_SPACE["BLOCK_M"][-1]))
    warps = block_m * problem["n"] * size // two_vectors
    return {"BLOCK_M": block_m, "num_warps": 1 << max(1, min(most_warps(gpu), warps)).bit_length() - 1}


def _fits_online(config: dict, problem: Case, gpu: GPU) -> str:
    if config["num_warps"] > most_warps(gpu):
        return "over 1024 threads"
    if problem["n"] >= 2**15 and config["num_warps"] < 8:
        return "so few warps a row that the rows under way crowd the L2"
    return fits_stream(config, problem, gpu)


def _overflow(problem: Case, gpu: GPU) -> float:
    """What the rows of y and dy of one program on each SM take, in units of the L2."""
    return gpu.sms * 2 * problem["n"] * element_size(problem.dtype) / gpu.l2_bytes


def _fits_stream(config: dict, problem: Case, gpu: GPU) -> str:
    if config["SPLITS"] > 1 or config["PROGRAMS_PER_SM"]:
        if _overflow(problem, gpu) < 0.5:
            return "the L2 holds the rows under way"
        if config["num_warps"] < most_warps(gpu) or config["BLOCK_N"] * element_size(problem.dtype) < 2**15:
            return "so few bytes in flight that one program does not keep an SM's share of memory busy"
    return _fits_online(config, problem, gpu)


def _online_default(problem: Case, gpu: GPU) -> dict:
    """Two vectors a thread."""
    config = stream_default(1, _STREAM_BLOCKS)(problem, gpu)
    return config | {"num_warps": min(config["num_warps"], most_warps(gpu))}


def _backward_stream_default(problem: Case, gpu: GPU) -> dict:
    """Two vectors a thread of y and dy together; two programs a row where single ones crowd the L2."""
    config = stream_default(2, _STREAM_BLOCKS)(problem, gpu)
    config["BLOCK_N"] = max(_STREAM_BLOCKS[0], config["BLOCK_N"] // 2)
    config["num_warps"] = min(config["num_warps"], most_warps(gpu))
    config |= {"SPLITS": 1, "PROGRAMS_PER_SM": 0}
    # Twice as many where an SM has the registers: on sm_75 they spill.
    widest = gpu.warps_per_sm * 2**10 // element_size(problem.dtype) // 2
    split = {"BLOCK_N": widest, "num_warps": most_warps(gpu), "SPLITS": 2, "PROGRAMS_PER_SM": 1}
    return split if _overflow(problem, gpu) > 0.75 and not _fits_stream(split, problem, gpu) else config


def _fits_held(config: dict, problem: Case, gpu: GPU) -> str:
    threads, held = 32 * config["num_warps"], block_n(problem) * element_size(problem.dtype)
    if config["num_warps"] > most_warps(gpu):
        return "over 1024 threads"
    if held < config["CHUNKS"] * threads * VECTOR_BYTES:
        return "less than one 16-byte vector a thread"
    needed, available = held / 4 / threads + OTHER_REGISTERS, min(THREAD_REGISTERS, REGISTERS // threads)
    return f"{needed:.0f} registers a thread, of {available}: dy would spill" if needed > available else ""


def _handles_held(problem: Case, gpu: GPU) -> str:
    """Rows of which dy alone fits half of an SM's registers."""
    size = element_size(problem.dtype)
    if block_n(problem) * size != 2 * REGISTERS:
        return f"rows of {problem['n']} elements: padded to a power of two not 128 KiB"
    if problem["n"] * size % VECTOR_BYTES:
        return "rows not of whole 16-byte vectors: their masks spill"
    return "" if any(not _fits_held(c, problem, gpu) for c in _HELD_CONFIGS) else "no program of 128 KiB of registers"


def _cost(problem: Case) -> float:
    """Elements of a matrix that are read: of causal scores those on and below the diagonal."""
    m, n, q = problem["m"], problem["n"], _flag(problem, "q")
    if not _flag(problem, "causal"):
        return m * n
    return m // q * sum(max(0, min(n, i + n - q + 1)) for i in range(q)) if q else 0


def _forward_bytes(c: Case) -> dict[str, float]:
    size = element_size(c.dtype)
    found = {"x": _cost(c) * size, "y": c["m"] * c["n"] * size}
    if _flag(c, "mask"):
        found["mask"] = c["q"] * c["n"] * (1 if c["mask"] == "bool" else size)
    return found


def _backward_bytes(c: Case) -> dict[str, float]:
    size = element_size(c.dtype)
    return {"y": _cost(c) * size, "dy": _cost(c) * size, "dx": c["m"] * c["n"] * size}


_STREAM_BLOCKS = (1024, 2048, 4096, 8192, 16384, 32768)
_ROWS_SPACE = {"BLOCK_M": (1, 2, 4, 8, 16), "num_warps": (1, 2, 4, 8, 16, 32)}
_HELD_SPACE = {"CHUNKS": (4, 8), "num_warps": (16, 32)}
_HELD_CONFIGS = [{"CHUNKS": 4, "num_warps": warps} for warps in (32, 16)]
_ONLINE_SPACE = {"BLOCK_N": _STREAM_BLOCKS, "num_warps": (4, 8, 16, 32)}
_STREAM_SPACE = _ONLINE_SPACE | {"SPLITS": (1, 2), "PROGRAMS_PER_SM": (0, 1)}  # 0: a program for each share of a row

DECLARATION = Declaration(
    name="softmax",
    family="rows",
    summary="y = exp(x - max) / sum over rows",
    function=softmax,
    call=_call,
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("x",),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("y",),
        variants=(
            Variant(
                name="one_pass",
                summary="rows in registers, one block of rows a program",
                launch=_launch_one_pass,
                space=_ROWS_SPACE,
                default=_one_pass_default,
                fits=_fits_rows("one_pass"),
                handles=_handles_rows("one_pass", streams=1),
            ),
            Variant(
                name="online",
                summary="rows of any length streamed twice, with running maximum and sum",
                launch=_launch_online,
                space=_ONLINE_SPACE,
                default=_online_default,
                fits=_fits_online,
            ),
        ),
        peers={
            "torch": eager(_reference),
            "torch.compile": compiled(_reference),
            "liger": eager(_liger, requires="liger_kernel"),
        },
        bytes=_forward_bytes,
        flops=lambda c: {"max": _cost(c), "exp(x - max)": 2 * _cost(c), "sum": _cost(c), "scale": _cost(c)},
        reduction=lambda c: c["n"],
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dx",),
        variants=(
            Variant(
                name="one_pass",
                summary="rows in registers, one block of rows a program",
                launch=_launch_one_pass_backward,
                space=_ROWS_SPACE,
                default=_one_pass_default,
                fits=_fits_rows("backward"),
                handles=_handles_rows("backward", streams=2),
            ),
            Variant(
                name="held",
                summary="dy of a row in registers, y read again from L1",
                follows="one_pass",
                launch=_launch_held_backward,
                space=_HELD_SPACE,
                default=lambda problem, gpu: next(c for c in _HELD_CONFIGS if not _fits_held(c, problem, gpu)),
                fits=_fits_held,
                handles=_handles_held,
            ),
            Variant(
                name="stream",
                summary="rows of any length streamed twice: sum of y * dy, then dx",
                launch=_launch_stream_backward,
                space=_STREAM_SPACE,
                default=_backward_stream_default,
                fits=_fits_stream,
            ),
        ),
        peers={
            "torch": eager(_torch_backward),
            "torch.compile": compiled(_user_backward),
            "liger": eager(_liger_backward, requires="liger_kernel"),
        },
        bytes=_backward_bytes,
        flops=lambda c: {"y * dy": _cost(c), "sum": _cost(c), "y * (dy - sum)": 2 * _cost(c)},
        reduction=lambda c: c["n"],
    ),
)
