"""Embedding: out[i, :] = weight[index[i], :], the rows of a table that m tokens name.

weight is [v, n].  Forward reads the rows that occur, once if the cache holds those that recur, and writes out, MN
elements.  Backward is dweight[r, :] = sum of dy[i, :] over the tokens i with index[i] = r: it reads dy, MN, and writes
dweight, VN, zeros where no token names the row.  Of 16 384 tokens and a vocabulary of 128 256 the writing is nine
tenths, so the sums are taken in the one pass that writes.  Additions are fp32 and in one order, without atomics.

Backward in four launches: the tokens are sorted by row (chunks in registers, then each element's rank among all
chunks, by binary search), so those of a row are neighbours, a run; every tile of SPLIT sorted tokens is summed by a
program of its own, run by run, however long the runs are, while others write the rows that no token names; last, the
runs that go on from tile to tile are joined.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Case,
    Declaration,
    Pass,
    Peer,
    Variant,
    case,
    choose,
    compiled,
    eager,
    element_size,
    torch_dtype,
)
from atlas.operators import CustomOperator, Differentiable, launch


@triton.jit
def _tiles_kernel(
    index_ptr, weight_ptr, out_ptr, m, v, n, stride_wv,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M tokens times BLOCK_N columns; neighbouring programs share columns.

    So what is under way is a slice of all rows, and those that recur are found in the cache; KEPT asks it to prefer
    them.  An index outside [0, v) reads nothing, and its row becomes NaN.
    """
    # n and the stride are multiples of WIDTH; so said, the compiler accesses WIDTH elements at once
    n, stride_wv = n // WIDTH * WIDTH, stride_wv // WIDTH * WIDTH
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_m, mask_n = (offs_m < m) | EVEN, (offs_n < n) | EVEN
    index = tl.load(index_ptr + offs_m, mask=mask_m, other=0).to(tl.int64)
    known = (index >= 0) & (index < v)
    rows = weight_ptr + index[:, None] * stride_wv
    policy: tl.constexpr = "evict_last" if KEPT else ""
    x = tl.load(
        rows + offs_n[None, :], mask=known[:, None] & mask_n[None, :], other=float("nan"), eviction_policy=policy
    )
    # Streaming, so that what is written does not displace rows that recur.
    out = out_ptr + offs_m[:, None] * n + offs_n[None, :]
    tl.store(out, x, mask=mask_m[:, None] & mask_n[None, :], cache_modifier=".cs")


@triton.jit
def _rows_kernel(
    index_ptr, weight_ptr, out_ptr, m, v, n, stride_wv,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """As _tiles_kernel, but each thread knows all indices, so none need be exchanged."""
    n, stride_wv = n // WIDTH * WIDTH, stride_wv // WIDTH * WIDTH  # as in _tiles_kernel
    first = tl.program_id(0).to(tl.int64) * BLOCK_M
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = (offs_n < n) | EVEN
    policy: tl.constexpr = "evict_last" if KEPT else ""
    indices, xs = (), ()
    for i in tl.static_range(BLOCK_M):
        indices += (tl.load(index_ptr + first + i, mask=(first + i < m) | EVEN, other=0).to(tl.int64),)
    for i in tl.static_range(BLOCK_M):
        known = (indices[i] >= 0) & (indices[i] < v)
        row = weight_ptr + indices[i] * stride_wv + offs_n
        xs += (tl.load(row, mask=mask_n & known, other=float("nan"), eviction_policy=policy),)
    for i in tl.static_range(BLOCK_M):
        out = out_ptr + (first + i) * n + offs_n
        tl.store(out, xs[i], mask=mask_n & ((first + i < m) | EVEN), cache_modifier=".cs")


@triton.jit
def _count_less(sorted_ptr, length, bound, mask, BITS: tl.constexpr):
    """How many of ``length`` < 2^BITS ascending numbers are less than each ``bound``, by binary search."""
    count = tl.zeros(bound.shape, tl.int32)
    for bit in tl.static_range(BITS):
        more = count + (1 << (BITS - 1 - bit))
        inside = mask & (more <= length)
        below = tl.load(sorted_ptr + (more - 1), mask=inside, other=0) < bound
        count = tl.where(inside & below, more, count)
    return count


@triton.jit
def _sort_chunks_kernel(
    index_ptr, packed_ptr, named_ptr, m, v, padding_idx, chunks, CHUNK: tl.constexpr, BLOCK_V: tl.constexpr
):
    """Each of the first `chunks` programs owns CHUNK tokens: packed = row * CHUNK + position in the chunk, ascending.

    Tokens without a gradient, of padding_idx or outside [0, v), are given row v, and the end of the last chunk v + 1:
    they come last.  Each further program clears BLOCK_V of the v flags that say which rows are named.
    """
    pid = tl.program_id(0)
    if pid < chunks:
        position = tl.arange(0, CHUNK)
        offs_m = pid * CHUNK + position
        index = tl.load(index_ptr + offs_m, mask=offs_m < m, other=-1)
        counted = (index >= 0) & (index < v) & (index != padding_idx)
        row = tl.where(counted, index, tl.where(offs_m < m, v, v + 1)).to(packed_ptr.dtype.element_ty)
        tl.store(packed_ptr + offs_m, tl.sort(row * CHUNK + position))
    else:
        offs_v = (pid - chunks) * BLOCK_V + tl.arange(0, BLOCK_V)
        tl.store(named_ptr + offs_v, tl.zeros([BLOCK_V], tl.int8), mask=offs_v < v)


@triton.jit
def _merge_chunks_kernel(
    packed_ptr, sorted_ptr, order_ptr, named_ptr, m, v, chunks,
    CHUNK: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK elements of one sorted chunk, and stores them where they stand among all.

    That is the number of elements before them in every chunk.  Equal rows keep the order of their tokens: those of
    earlier chunks come first, those of later ones after.  It flags their rows, too.
    """
    first = tl.program_id(0) * BLOCK
    own = first // CHUNK
    packed = tl.load(packed_ptr + first + tl.arange(0, BLOCK))
    row = packed // CHUNK
    tl.store(named_ptr + row, tl.full([BLOCK], 1, tl.int8), mask=row < v)
    rank = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, chunks, BLOCK_C):
        chunk = start + tl.arange(0, BLOCK_C)[:, None]
        bound = tl.where(chunk < own, (row + 1)[None, :], row[None, :]) * CHUNK
        bound = tl.where(chunk == own, packed[None, :], bound)
        rank += tl.sum(_count_less(packed_ptr + chunk * CHUNK, CHUNK, bound, chunk < chunks, BITS), axis=0)
    tl.store(sorted_ptr + rank, row.to(tl.int32), mask=rank < m)
    tl.store(order_ptr + rank, (own * CHUNK + packed % CHUNK).to(tl.int32), mask=rank < m)


@triton.jit
def _sum_tile(
    dy_ptr, sorted_ptr, order_ptr, partial_ptr, dweight_ptr, tile, offs_n, m, v, n,
    SPLIT: tl.constexpr, GROUP: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add up the runs of one tile of SPLIT sorted tokens, GROUP of which are under way together.

    A run that lies within the tile is a row of dweight.  Of one that began before it, `partial` takes what it has here
    if it ends here (partial[tile, 0]), and of one that goes on after it likewise (partial[tile, 1]).
    """
    mask_n = offs_n < n
    begin = tile * SPLIT
    partial = partial_ptr + tile.to(tl.int64) * 2 * n + offs_n
    continued = tl.load(sorted_ptr + begin) == tl.load(sorted_ptr + begin - 1, mask=begin > 0, other=-1)
    inherited = continued  # whether the run at hand began before the tile
    total = tl.zeros([BLOCK_N], tl.float32)
    head = total
    for start in tl.range(begin, begin + SPLIT, GROUP):
        rows, dys = (), ()
        for i in tl.static_range(GROUP):
            rows += (tl.load(sorted_ptr + start + i, mask=start + i < m, other=v),)
            token = tl.load(order_ptr + start + i, mask=start + i < m, other=0).to(tl.int64)
            dys += (tl.load(dy_ptr + token * n + offs_n, mask=mask_n & (rows[i] < v), other=0.0),)
        rows += (tl.load(sorted_ptr + start + GROUP, mask=start + GROUP < m, other=v),)
        for i in tl.static_range(GROUP):
            total += dys[i].to(tl.float32)
            if rows[i] != rows[i + 1]:
                if inherited:
                    head = total
                else:
                    # Streaming: dweight is not read again here, unlike dy and partial.
                    out = dweight_ptr + rows[i].to(tl.int64) * n + offs_n
                    tl.store(out, total, mask=mask_n & (rows[i] < v), cache_modifier=".cs")
                total = tl.zeros([BLOCK_N], tl.float32)
                inherited = False
    if continued & (inherited == 0):
        tl.store(partial, head, mask=mask_n)
    last = tl.load(sorted_ptr + begin + SPLIT - 1, mask=begin + SPLIT - 1 < m, other=v)
    after = tl.load(sorted_ptr + begin + SPLIT, mask=begin + SPLIT < m, other=v)
    if (last == after) & (last < v):
        tl.store(partial + n, total, mask=mask_n)


@triton.jit
def _clear_rows(named_ptr, dweight_ptr, offs_v, offs_n, v, n, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr):
    """Write zeros to those of BLOCK_V rows that no token names."""
    named = tl.load(named_ptr + offs_v, mask=offs_v < v, other=1)
    zeros = tl.zeros([BLOCK_V, BLOCK_N], dweight_ptr.dtype.element_ty)
    out = dweight_ptr + offs_v.to(tl.int64)[:, None] * n + offs_n[None, :]
    tl.store(out, zeros, mask=(named == 0)[:, None] & (offs_n < n)[None, :], cache_modifier=".cs")


@triton.jit
def _sum_tiles_kernel(
    dy_ptr, sorted_ptr, order_ptr, named_ptr, partial_ptr, dweight_ptr, m, v, n, sum_programs,
    SPLIT: tl.constexpr, GROUP: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Each of the first sum_programs owns a tile of sorted tokens times BLOCK_N columns, the others BLOCK_V rows."""
    n = n // WIDTH * WIDTH  # as in _tiles_kernel
    blocks = tl.cdiv(n, BLOCK_N)
    pid = tl.program_id(0)
    offs_n = pid % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    if pid < sum_programs:
        _sum_tile(
            dy_ptr, sorted_ptr, order_ptr, partial_ptr, dweight_ptr, pid // blocks, offs_n, m, v, n,
            SPLIT, GROUP, BLOCK_N,
        )  # fmt: skip
    else:
        offs_v = (pid - sum_programs) // blocks * BLOCK_V + tl.arange(0, BLOCK_V)
        _clear_rows(named_ptr, dweight_ptr, offs_v, offs_n, v, n, BLOCK_V, BLOCK_N)


@triton.jit
def _join_tiles_kernel(
    sorted_ptr, partial_ptr, dweight_ptr, m, v, n,
    SPLIT: tl.constexpr, GROUP: tl.constexpr, SEARCHED: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns the run that begins in a tile and goes on after it, if there is one, times BLOCK_N columns.

    It adds up what the tile, those that the run goes through, and the one it ends in have of it, in this order.
    """
    n = n // WIDTH * WIDTH  # as in _tiles_kernel
    blocks = tl.cdiv(n, BLOCK_N)
    tile = (tl.program_id(0) // blocks).to(tl.int64)
    offs_n = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = offs_n < n
    begin, end = tile * SPLIT, (tile + 1) * SPLIT
    before = tl.load(sorted_ptr + begin - 1, mask=begin > 0, other=-1)
    row, after = tl.load(sorted_ptr + end - 1), tl.load(sorted_ptr + end)
    if (row == after) & (row != before) & (row < v):
        through = 0
        more = True
        while more:
            at = end + (through + 1 + tl.arange(0, SEARCHED)) * SPLIT
            found = tl.sum((tl.load(sorted_ptr + at, mask=at < m, other=v) == row).to(tl.int32), axis=0)
            through += found
            more = found == SEARCHED
        partial = partial_ptr + offs_n
        total = tl.load(partial + (2 * tile + 1) * n, mask=mask_n, other=0.0)
        for start in tl.range(0, through, GROUP):
            parts = ()
            for i in tl.static_range(GROUP):
                at = partial + (2 * (tile + start + i) + 3) * n
                parts += (tl.load(at, mask=mask_n & (start + i < through), other=0.0),)
            for i in tl.static_range(GROUP):
                total += parts[i]
        total += tl.load(partial + 2 * (tile + through + 1) * n, mask=mask_n, other=0.0)
        tl.store(dweight_ptr + row.to(tl.int64) * n + offs_n, total, mask=mask_n)


_VECTOR_BYTES = 16
"""The widest access of one thread; narrower ones spend more instructions on the same bytes."""

_CHUNKS = ((1024, 64), (8192, 256), (math.inf, 1024))
"""Below how many tokens how many of them one program sorts in registers: small chunks are sorted sooner, and each more
is searched once for every token."""

_SPLITS = ((65_536, 16), (math.inf, 64))
"""Below how many tokens how many of them a program sums: few tokens are to keep all SMs busy; longer tiles cut fewer
runs, of which each piece is written and read again."""

_MERGED, _MERGED_CHUNKS = 128, 16  # elements a program ranks, and chunks it searches at a time
_CLEARED = 4096  # flags
_JOINED, _TILES_SEARCHED, _JOINED_COLUMNS = 8, 128, 512  # tiles under way together, tiles looked at for a run's end


def _width(x, *strides):
    """Elements of a 16-byte vector where rows consist of whole ones, and begin with one, else 1."""
    width = _VECTOR_BYTES // x.element_size()
    return 1 if any(stride % width for stride in (x.shape[-1], *strides)) else width


def _launch_gather(kernel):
    def run(index, weight, padding_idx, *, config):
        m, (v, n), stride = index.numel(), weight.shape, weight.stride(0)
        out = torch.empty((*index.shape, n), dtype=weight.dtype, device=weight.device)
        if out.numel():
            block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
            grid = (triton.cdiv(m, block_m), triton.cdiv(n, block_n))
            even = m % block_m == 0 and n % block_n == 0
            launch(kernel, grid, index, weight, out, m, v, n, stride, WIDTH=_width(weight, stride), EVEN=even, **config)
        return out

    return run


def _below(bounds, m):
    """The entry for m tokens of a table by number of tokens."""
    return next(entry for below, entry in bounds if m < below)


def _sorted_tokens(index, v, padding_idx):
    """(row, token) of all tokens by row, those of one row in their order, and a flag for each row that is named.

    Tokens without a gradient have row v.
    """
    m = index.numel()
    chunk = _below(_CHUNKS, m)
    chunks = triton.cdiv(m, chunk)
    wide = (v + 2) * chunk > 2**31
    packed = torch.empty(chunks * chunk, dtype=torch.int64 if wide else torch.int32, device=index.device)
    rows, order = (torch.empty(m, dtype=torch.int32, device=index.device) for _ in range(2))
    named = torch.empty(v, dtype=torch.int8, device=index.device)
    launch(
        _sort_chunks_kernel, (chunks + triton.cdiv(v, _CLEARED),), index, packed, named, m, v, padding_idx, chunks,
        CHUNK=chunk, BLOCK_V=_CLEARED, num_warps=max(1, chunk // 128),
    )  # fmt: skip
    block = min(chunk, _MERGED)
    launch(
        _merge_chunks_kernel, (chunks * chunk // block,), packed, rows, order, named, m, v, chunks,
        CHUNK=chunk, BITS=chunk.bit_length(), BLOCK=block, num_warps=4,
        BLOCK_C=min(_MERGED_CHUNKS, triton.next_power_of_2(chunks)),
    )  # fmt: skip
    return rows, order, named


def _launch_runs(dy, index, rows, padding_idx, *, config):
    m, n, v = index.numel(), dy.shape[-1], rows
    dweight = torch.empty((v, n), dtype=dy.dtype, device=dy.device)
    if not dweight.numel():
        return dweight
    by_row, order, named = _sorted_tokens(index, v, padding_idx)
    split, width = _below(_SPLITS, m), _width(dy)
    tiles, blocks = triton.cdiv(m, split), triton.cdiv(n, config["BLOCK_N"])
    partial = torch.empty((tiles, 2, n), dtype=torch.float32, device=dy.device)
    programs = (tiles + triton.cdiv(v, config["BLOCK_V"])) * blocks
    launch(
        _sum_tiles_kernel, (programs,), dy, by_row, order, named, partial, dweight, m, v, n, tiles * blocks,
        SPLIT=split, WIDTH=width, **config,
    )  # fmt: skip
    if tiles > 1:
        launch(
            _join_tiles_kernel, ((tiles - 1) * triton.cdiv(n, _JOINED_COLUMNS),), by_row, partial, dweight, m, v, n,
            SPLIT=split, GROUP=_JOINED, SEARCHED=_TILES_SEARCHED, BLOCK_N=_JOINED_COLUMNS, WIDTH=width, num_warps=4,
        )  # fmt: skip
    return dweight


def _run_forward(index, weight, padding_idx):
    problem = case(_NAMES[weight.dtype], m=index.numel(), v=weight.shape[0], n=weight.shape[1])
    variant, config = choose(DECLARATION, "forward", problem, weight.device)
    return variant.launch(index, weight, padding_idx, config=config)


def _run_backward(dy, index, rows, padding_idx):
    problem = case(_NAMES[dy.dtype], m=index.numel(), v=rows, n=dy.shape[-1])
    variant, config = choose(DECLARATION, "backward", problem, dy.device)
    return variant.launch(dy, index, rows, padding_idx, config=config)


def _setup_context(ctx, inputs, output):
    index, weight, padding_idx = inputs
    ctx.save_for_backward(index)
    ctx.rows, ctx.padding_idx = weight.shape[0], padding_idx


def _pull_back(ctx, dy):
    (index,) = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return None, _backward_reference(dy, index, ctx.rows, ctx.padding_idx), None
    return None, _backward(dy.contiguous(), index, ctx.rows, ctx.padding_idx), None


_forward = CustomOperator(
    "embedding_forward",
    "(Tensor index, Tensor weight, int padding_idx) -> Tensor",
    run=_run_forward,
    fake=lambda index, weight, padding_idx: weight.new_empty((*index.shape, weight.shape[1])),
)
_backward = CustomOperator(
    "embedding_backward",
    "(Tensor dy, Tensor index, SymInt rows, int padding_idx) -> Tensor",
    run=_run_backward,
    fake=lambda dy, index, rows, padding_idx: dy.new_empty((rows, dy.shape[-1])),
)


def _push_forward(args, tangents):
    """Linear in the table; the row of ``padding_idx``, which has no gradient, is looked up as any other."""
    index, _, padding_idx = args
    return _embedding(index, tangents[1], padding_idx)


_embedding = Differentiable(_forward, _setup_context, _pull_back, _push_forward)


def embedding(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.embedding`` of int32 or int64 indices of any shape and an fp32, fp16 or bf16 table [v, n].

    The row ``padding_idx`` gets no gradient; a negative one counts from the end.  An index outside [0, v) is no error
    that a GPU could report in time: it reads nothing, its row of the result is NaN, and it adds to no gradient.  A
    table whose rows lie apart is read where it is; other layouts are copied first.  Second derivatives go through
    torch's operations.  Raises TypeError for other dtypes, ValueError for shapes and devices that do not fit, and
    NotImplementedError for ``max_norm``, ``scale_grad_by_freq`` and ``sparse``.
    """
    if weight.dtype not in _NAMES or (input.dtype != torch.int64 and input.dtype != torch.int32):
        raise TypeError(
            f"embedding takes int32 or int64 indices and a table of {', '.join(_DTYPES)}: {input.dtype}, {weight.dtype}"
        )
    if weight.dim() != 2 or input.device != weight.device:
        raise ValueError(
            f"embedding takes a table of two dimensions on the indices' device: {tuple(weight.shape)} on "
            f"{weight.device}, indices on {input.device}"
        )
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise NotImplementedError("embedding has no max_norm, scale_grad_by_freq or sparse gradients")
    rows = weight.shape[0]
    if padding_idx is None:
        padding_idx = -1
    elif -rows <= padding_idx < rows:
        padding_idx %= rows
    else:
        raise ValueError(f"embedding: padding_idx {padding_idx} is outside a table of {rows} rows")
    if not input.numel():
        return torch.nn.functional.embedding(input, weight)  # nothing to launch for
    if weight.stride(1) != 1 or weight.stride(0) < weight.shape[1]:
        weight = weight.contiguous()
    return _embedding(input.contiguous(), weight, padding_idx)


_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}


def _reference(index, weight, padding_idx):
    if not weight.shape[1]:  # torch's gradient of such a table is an illegal access (2.11, H200), this sum's is not
        return weight.sum(dim=0).expand(*index.shape, 0)
    return torch.nn.functional.embedding(index, weight, padding_idx if padding_idx >= 0 else None)


def _backward_reference(dy, index, rows, padding_idx):
    if not dy.shape[-1]:
        return dy.sum(dim=tuple(range(dy.dim() - 1))).expand(rows, 0)
    return torch.ops.aten.embedding_dense_backward(dy, index, rows, padding_idx, False)


def _liger(index, weight, padding_idx):
    from liger_kernel.ops.experimental.embedding import LigerEmbeddingFunction

    return LigerEmbeddingFunction.apply(weight, index)


def _prepare_liger_backward(dy, index, rows, padding_idx):
    """Liger's gradient, which knows no padding_idx."""
    weight = torch.empty((rows, dy.shape[-1]), dtype=dy.dtype, device=dy.device, requires_grad=True)
    out = _liger(index, weight, padding_idx)
    return lambda: torch.autograd.grad(out, weight, dy, retain_graph=True)


def _tokens(problem: Case, device, generator):
    """Token t in [0, v) has probability ln((t + 2) / (t + 1)) / ln(v + 1), about 1 / t, as words have in texts."""
    m, v = problem["m"], problem["v"]
    if str(device) == "meta":
        return torch.empty(m, dtype=torch.int64, device=device)
    u = torch.rand(m, dtype=torch.float64, device=device, generator=generator)
    return ((v + 1.0) ** u - 1).long().clamp_(0, v - 1)


def _inputs(problem: Case, device, generator):
    shape = (problem["v"], problem["n"])
    weight = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)
    # The last row stands for padding; of a single row nothing would be left.
    padding_idx = problem["v"] - 1 if problem["v"] > 1 else -1
    return {"index": _tokens(problem, device, generator), "weight": weight, "padding_idx": padding_idx}


def _backward_inputs(problem: Case, device, generator):
    shape = (problem["m"], problem["n"])
    dy = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)
    padding_idx = problem["v"] - 1 if problem["v"] > 1 else -1
    return {
        "dy": dy, "index": _tokens(problem, device, generator), "rows": problem["v"], "padding_idx": padding_idx,
    }  # fmt: skip


def _cases(gpu: GPU) -> list[Case]:
    shapes = {
        "bf16": (
            (512, 32_000, 1024),  # forward the launch is the cost
            (4096, 32_000, 4096),
            (16384, 50_257, 768),  # short rows, and an odd number of them
            (16384, 32_000, 5120),  # a hidden size, no power of two
            (16384, 128_256, 4096),
            (131_072, 128_256, 4096),  # a whole batch: forward 1 GiB is written
            (8192, 128_256, 16384),  # backward 4 GiB are written
        ),
        "fp16": ((4096, 32_000, 4096),),
        "fp32": ((4096, 32_000, 4096), (16384, 50_257, 768), (16384, 128_256, 4096)),
    }
    return [
        case(d, m=m, v=v, n=n)
        for d, sizes in shapes.items()
        for m, v, n in sizes
        if (v + 2 * m) * n * element_size(d) <= gpu.memory_bytes // 8
    ]


_EDGE_CASES = tuple(
    case(dtype, reason, m=m, v=v, n=n)
    for dtype in _DTYPES
    for m, v, n, reason in (
        (1, 1, 1, "one element"),
        (7, 5, 33, "few tokens, and odd rows: none but the first starts on 16 bytes"),
        (5, 200, 64, "nearly all rows are named by no token: their gradient is 0"),
        (50, 1, 8, "one row named by all: its run has whole tiles of 16 tokens and single ones after them"),
        (90, 3, 129, "three long runs, which begin and end inside tiles of 16 tokens; two chunks of 64 are merged"),
        (12, 9, 4104, "whole vectors, and more columns than the widest block"),
        (130, 300, 8, "three chunks to merge, the last with a tail; most runs short, rows to search for two programs"),
    )
)

_HUGE_CASES = (
    case("bf16", "offsets beyond 2^31 in table and result", m=2**18 + 1, v=2**18 + 4096, n=8192),
)  # fmt: skip


@functools.cache
def _rows_read(m: int, v: int) -> float:
    """How many different rows ``m`` tokens name on average, with the probabilities of :func:`_tokens`."""
    row = torch.arange(v, dtype=torch.float64)
    probability = torch.log1p(1 / (row + 1)) / math.log(v + 1)
    return float((1 - (1 - probability) ** m).sum())


def _longest_run(c: Case) -> int:
    """Tokens that name the most frequent row, on average."""
    return math.ceil(c["m"] * math.log(2) / math.log(c["v"] + 1))


def _fits_tiles(config: dict, problem: Case, gpu: GPU) -> str:
    if config["BLOCK_M"] > 1 and config["BLOCK_M"] >= 2 * problem["m"]:
        return "a tile with room for twice the tokens there are"
    if config["KEPT"] and config["BLOCK_N"] * element_size(problem.dtype) > 512:
        return "a slice of which the cache holds too little"
    if config["KEPT"] and problem["m"] * problem["n"] * element_size(problem.dtype) < gpu.l2_bytes:
        return "the cache holds all that is written"
    vectors = config["BLOCK_M"] * _vectors(config, problem)
    if vectors > 16:
        return f"{vectors:g} 16-byte vectors a thread; up to 16 keep memory busy without spills"
    return _obstacle(config, problem, vectors)


def _fits_rows(config: dict, problem: Case, gpu: GPU) -> str:
    if _vectors(config, problem) > 1:
        return "over one 16-byte vector a thread of each row"
    return _fits_tiles(config, problem, gpu)


def _fits_runs(config: dict, problem: Case, gpu: GPU) -> str:
    vectors = _vectors(config, problem)
    if vectors > 1:
        return "over one 16-byte vector a thread of each token"
    return _obstacle(config, problem, vectors)


def _vectors(config: dict, problem: Case) -> float:
    """16-byte vectors that a thread has of one row of a tile."""
    return config["BLOCK_N"] * element_size(problem.dtype) / (32 * config["num_warps"] * _VECTOR_BYTES)


def _obstacle(config: dict, problem: Case, vectors: float) -> str:
    """Why a tile of so many 16-byte vectors a thread is no use, or ``""``."""
    if vectors < 1 and config["num_warps"] > 1:
        return "less than one 16-byte vector a thread"
    if config["BLOCK_N"] > max(triton.next_power_of_2(problem["n"]), _BLOCKS[0]):
        return "a block wider than the table"
    return ""


def _columns(problem: Case, most: int) -> int:
    """The columns of a block of ``most`` bytes of a row, fewer if the table has fewer."""
    return max(_BLOCKS[0], min(most // element_size(problem.dtype), triton.next_power_of_2(problem["n"])))


def _tiles_default(problem: Case, gpu: GPU) -> dict:
    """Eight 16-byte vectors a thread of four warps, 512 bytes of a row."""
    block_n = _columns(problem, 512)
    block_m = 8 * 4 * 32 * _VECTOR_BYTES // element_size(problem.dtype) // block_n
    block_m = min(block_m, triton.next_power_of_2(problem["m"]))
    warps = max(1, min(4, block_m * block_n * element_size(problem.dtype) // (32 * _VECTOR_BYTES)))
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "num_warps": warps, "KEPT": False}


def _rows_default(problem: Case, gpu: GPU) -> dict:
    """Eight rows, a 16-byte vector of each a thread."""
    block_n = _columns(problem, 1024)
    warps = max(1, block_n * element_size(problem.dtype) // (32 * _VECTOR_BYTES))
    return {
        "BLOCK_M": min(8, triton.next_power_of_2(problem["m"])),
        "BLOCK_N": block_n,
        "num_warps": warps,
        "KEPT": False,
    }


def _runs_default(problem: Case, gpu: GPU) -> dict:
    """A vector a thread of each of eight tokens."""
    block_n = _columns(problem, 2048)
    warps = max(1, block_n * element_size(problem.dtype) // (32 * _VECTOR_BYTES))
    return {"GROUP": 8, "BLOCK_V": 8, "BLOCK_N": block_n, "num_warps": warps}


_BLOCKS = (128, 256, 512, 1024)
_TILES_SPACE = {"BLOCK_M": (1, 4, 8, 16, 32, 64), "BLOCK_N": _BLOCKS, "num_warps": (1, 2, 4), "KEPT": (False, True)}
_ROWS_SPACE = {"BLOCK_M": (1, 2, 4, 8), "BLOCK_N": _BLOCKS, "num_warps": (1, 2, 4), "KEPT": (False, True)}
_RUNS_SPACE = {"GROUP": (8, 16), "BLOCK_V": (4, 8, 16), "BLOCK_N": _BLOCKS, "num_warps": (1, 2, 4)}

DECLARATION = Declaration(
    name="embedding",
    family="gather",
    summary="out = weight[index], rows of a table",
    function=embedding,
    call=lambda function, inputs: function(
        inputs["index"], inputs["weight"], inputs["padding_idx"] if inputs["padding_idx"] >= 0 else None
    ),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("weight",),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out",),
        variants=(
            Variant(
                name="tiles",
                summary="a tile of tokens times columns a program",
                launch=_launch_gather(_tiles_kernel),
                space=_TILES_SPACE,
                default=_tiles_default,
                fits=_fits_tiles,
            ),
            Variant(
                name="rows",
                summary="as tiles, every thread with all indices",
                launch=_launch_gather(_rows_kernel),
                space=_ROWS_SPACE,
                default=_rows_default,
                fits=_fits_rows,
            ),
        ),
        peers={
            "torch": eager(_reference),
            "torch.compile": compiled(_reference),
            "liger": eager(_liger, requires="liger_kernel"),
        },
        bytes=lambda c: {
            "index": c["m"] * element_size("int64"),
            "weight": _rows_read(c["m"], c["v"]) * c["n"] * element_size(c.dtype),
            "out": c["m"] * c["n"] * element_size(c.dtype),
        },
        flops=lambda c: {"none": 0},
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dweight",),
        variants=(
            Variant(
                name="runs",
                summary="tokens sorted, tiles of them summed run by run, runs of several tiles joined",
                launch=_launch_runs,
                space=_RUNS_SPACE,
                default=_runs_default,
                fits=_fits_runs,
            ),
        ),
        peers={
            "torch": eager(_backward_reference),
            "torch.compile": compiled(_backward_reference),
            "liger": Peer(_prepare_liger_backward, requires="liger_kernel"),
        },
        bytes=lambda c: {
            "index": c["m"] * element_size("int64"),
            "dy": c["m"] * c["n"] * element_size(c.dtype),
            "dweight": c["v"] * c["n"] * element_size(c.dtype),
        },
        flops=lambda c: {"sum": c["m"] * c["n"]},
        reduction=_longest_run,
    ),
)
