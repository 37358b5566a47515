"""Embedding: out[i, :] = weight[index[i], :], the rows of a table that m tokens name.

weight is [v, n].  Forward reads the rows that occur, once if the cache holds those that recur, and writes out, MN
elements.  Backward is dweight[r, :] = sum of dy[i, :] over the tokens i with index[i] = r: it reads dy, MN, and writes
dweight, VN, zeros where no token names the row.  Of 16 384 tokens and a vocabulary of 128 256 the writing is nine
tenths, so the sums are taken in the one pass that writes.  Additions are fp32 and in one order, without atomics.

Backward in three steps: the tokens are sorted by row (chunks in registers, then each element's rank among all chunks,
by binary search), so those of a row are neighbours, a run; the runs' starts are found, and every aligned tile of SPLIT
tokens that lies in one run is summed by a program of its own, or a frequent token would keep one program busy long
after the others; last, each row adds up its run: tokens at its ends one by one, the tiles between from their sums.
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
    gpu_of,
    torch_dtype,
)
from atlas.operators import Differentiable, Operator, launch


@triton.jit
def _gather(index_ptr, weight_ptr, out_ptr, offs_m, offs_n, m, v, n, stride_wv, EVEN: tl.constexpr):
    """Copy one tile.  An index outside [0, v) reads nothing, and its row becomes NaN."""
    mask_m, mask_n = (offs_m < m) | EVEN, (offs_n < n) | EVEN
    index = tl.load(index_ptr + offs_m, mask=mask_m, other=0).to(tl.int64)
    known = (index >= 0) & (index < v)
    rows = weight_ptr + index[:, None] * stride_wv
    x = tl.load(rows + offs_n[None, :], mask=known[:, None] & mask_n[None, :], other=float("nan"))
    tl.store(out_ptr + offs_m[:, None] * n + offs_n[None, :], x, mask=mask_m[:, None] & mask_n[None, :])


@triton.jit
def _tiles_kernel(
    index_ptr, weight_ptr, out_ptr, m, v, n, stride_wv,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M tokens times BLOCK_N columns; neighbouring programs share tokens."""
    # n and the stride are multiples of WIDTH; so said, the compiler accesses WIDTH elements at once
    n, stride_wv = n // WIDTH * WIDTH, stride_wv // WIDTH * WIDTH
    blocks = tl.cdiv(n, BLOCK_N)
    offs_m = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    _gather(index_ptr, weight_ptr, out_ptr, offs_m, offs_n, m, v, n, stride_wv, EVEN)


@triton.jit
def _persistent_kernel(
    index_ptr, weight_ptr, out_ptr, m, v, n, stride_wv,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One program owns every `num_programs`-th tile of BLOCK_M tokens and all columns; the next indices and rows are
    prefetched, for each row waits for its index."""
    n, stride_wv = n // WIDTH * WIDTH, stride_wv // WIDTH * WIDTH  # as in _tiles_kernel
    offs_n = tl.arange(0, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.num_programs(0), num_stages=NUM_STAGES):
        offs_m = (tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        _gather(index_ptr, weight_ptr, out_ptr, offs_m, offs_n, m, v, n, stride_wv, EVEN)


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
    index_ptr, packed_ptr, sorted_ptr, order_ptr, m, v, padding_idx, CHUNK: tl.constexpr, SINGLE: tl.constexpr
):
    """One program owns CHUNK tokens: packed = row * CHUNK + position in the chunk, ascending.

    Tokens without a gradient, of padding_idx or outside [0, v), are given row v, and the end of the last chunk v + 1:
    they come last.  A SINGLE chunk needs no merging and is unpacked at once.
    """
    position = tl.arange(0, CHUNK)
    offs_m = tl.program_id(0) * CHUNK + position
    index = tl.load(index_ptr + offs_m, mask=offs_m < m, other=-1)
    counted = (index >= 0) & (index < v) & (index != padding_idx)
    row = tl.where(counted, index, tl.where(offs_m < m, v, v + 1)).to(packed_ptr.dtype.element_ty)
    packed = tl.sort(row * CHUNK + position)
    if SINGLE:
        tl.store(sorted_ptr + offs_m, packed // CHUNK, mask=offs_m < m)
        tl.store(order_ptr + offs_m, packed % CHUNK, mask=offs_m < m)
    else:
        tl.store(packed_ptr + offs_m, packed)


@triton.jit
def _merge_chunks_kernel(
    packed_ptr, sorted_ptr, order_ptr, m, chunks,
    CHUNK: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK elements of one sorted chunk, and stores them where they stand among all.

    That is the number of elements before them in every chunk.  Equal rows keep the order of their tokens: those of
    earlier chunks come first, those of later ones after.
    """
    first = tl.program_id(0) * BLOCK
    own = first // CHUNK
    packed = tl.load(packed_ptr + first + tl.arange(0, BLOCK))
    row = packed // CHUNK
    rank = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, chunks, BLOCK_C):
        chunk = start + tl.arange(0, BLOCK_C)[:, None]
        bound = tl.where(chunk < own, (row + 1)[None, :], row[None, :]) * CHUNK
        bound = tl.where(chunk == own, packed[None, :], bound)
        rank += tl.sum(_count_less(packed_ptr + chunk * CHUNK, CHUNK, bound, chunk < chunks, BITS), axis=0)
    tl.store(sorted_ptr + rank, row, mask=rank < m)
    tl.store(order_ptr + rank, own * CHUNK + packed % CHUNK, mask=rank < m)


@triton.jit
def _runs_kernel(
    dy_ptr, sorted_ptr, order_ptr, start_ptr, partial_ptr, m, v, n, row_programs,
    BITS: tl.constexpr, BLOCK_V: tl.constexpr, SPLIT: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Each of the first row_programs owns BLOCK_V rows and finds where their runs start; start_ptr is [v + 1].

    Each further program owns a tile of SPLIT sorted tokens times BLOCK_N columns and sums it if it lies in one run;
    partial_ptr is [m // SPLIT, n].
    """
    n = n // WIDTH * WIDTH  # as in _tiles_kernel
    pid = tl.program_id(0)
    if pid < row_programs:
        offs_v = pid * BLOCK_V + tl.arange(0, BLOCK_V)
        tl.store(start_ptr + offs_v, _count_less(sorted_ptr, m, offs_v, offs_v <= v, BITS), mask=offs_v <= v)
    else:
        blocks = tl.cdiv(n, BLOCK_N)
        tile = (pid - row_programs) // blocks
        first, last = tl.load(sorted_ptr + tile * SPLIT), tl.load(sorted_ptr + tile * SPLIT + SPLIT - 1)
        if (first == last) & (first < v):
            offs_n = (pid - row_programs) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
            token = tl.load(order_ptr + tile * SPLIT + tl.arange(0, SPLIT)).to(tl.int64)
            # 0 is the identity of the sum.
            dy = tl.load(dy_ptr + token[:, None] * n + offs_n[None, :], mask=(offs_n < n)[None, :], other=0.0)
            total = tl.sum(dy.to(tl.float32), axis=0)
            tl.store(partial_ptr + tile.to(tl.int64) * n + offs_n, total, mask=offs_n < n)


@triton.jit
def _sum_runs_kernel(
    dy_ptr, order_ptr, start_ptr, partial_ptr, dweight_ptr, v, n,
    SPLIT: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_V rows of dweight times BLOCK_N columns and adds up their runs, side by side.

    Of a run the tokens outside whole tiles of SPLIT are added one by one, `head` of them before the tiles, then the
    tiles' sums: the same order whatever the blocks.
    """
    n = n // WIDTH * WIDTH  # as in _tiles_kernel
    blocks = tl.cdiv(n, BLOCK_N)
    row = tl.program_id(0) // blocks * BLOCK_V + tl.arange(0, BLOCK_V)
    offs_n = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask_v, mask_n = row < v, offs_n < n
    begin = tl.load(start_ptr + row, mask=mask_v, other=0)  # beyond v an empty run
    end = tl.load(start_ptr + row + 1, mask=mask_v, other=0)
    tile = (begin + SPLIT - 1) // SPLIT
    tiles = tl.maximum(end // SPLIT - tile, 0)
    head = tl.where(tiles > 0, tile * SPLIT, end) - begin
    singles = end - begin - tiles * SPLIT
    total = tl.zeros([BLOCK_V, BLOCK_N], tl.float32)
    # Unrolled, so that several loads are under way: nothing else hides their latency in the longest run.
    for i in tl.range(0, tl.max(singles, axis=0), loop_unroll_factor=4):
        there = i < singles
        at = begin + i + tl.where(i < head, 0, tiles * SPLIT)
        token = tl.load(order_ptr + at, mask=there, other=0).to(tl.int64)
        # 0 is the identity of the sum.
        dy = tl.load(dy_ptr + token[:, None] * n + offs_n, mask=there[:, None] & mask_n, other=0.0)
        total += dy.to(tl.float32)
    for i in tl.range(0, tl.max(tiles, axis=0), loop_unroll_factor=4):
        there = i < tiles
        at = (tile + i).to(tl.int64)
        total += tl.load(partial_ptr + at[:, None] * n + offs_n, mask=there[:, None] & mask_n, other=0.0)
    # Streaming: the rows are not read again here, unlike dy, order and starts.
    out = dweight_ptr + row.to(tl.int64)[:, None] * n + offs_n
    tl.store(out, total, mask=mask_v[:, None] & mask_n, cache_modifier=".cs")


_VECTOR_BYTES = 16
"""The widest access of one thread; narrower ones spend more instructions on the same bytes."""

_CHUNKS = ((1024, 64), (8192, 256), (math.inf, 1024))
"""Below how many tokens how many of them one program sorts in registers: small chunks are sorted sooner, and each more
is searched once for every token."""

_SPLIT = 16
"""Tokens of a run summed by a program of their own: a row then waits for 2 x 15 single tokens at most."""

_MERGED, _MERGED_CHUNKS = 128, 16  # elements a program ranks, and chunks it searches at a time
_ROWS_SEARCHED = 256
_PARTIAL_COLUMNS = 512


def _width(x, *strides):
    """Elements of a 16-byte vector where rows consist of whole ones, and begin with one, else 1."""
    width = _VECTOR_BYTES // x.element_size()
    return 1 if any(stride % width for stride in (x.shape[-1], *strides)) else width


def _gathering(index, weight, config):
    """(out, the kernels' arguments, their constants) of a forward pass."""
    m, (v, n), stride = index.numel(), weight.shape, weight.stride(0)
    out = torch.empty((*index.shape, n), dtype=weight.dtype, device=weight.device)
    even = m % config["BLOCK_M"] == 0 and n % config["BLOCK_N"] == 0
    flags = {"BLOCK_M": config["BLOCK_M"], "BLOCK_N": config["BLOCK_N"], "WIDTH": _width(weight, stride), "EVEN": even}
    return out, (index, weight, out, m, v, n, stride), flags


def _launch_tiles(index, weight, padding_idx, *, config):
    out, args, flags = _gathering(index, weight, config)
    if out.numel():
        programs = triton.cdiv(index.numel(), config["BLOCK_M"]) * triton.cdiv(weight.shape[1], config["BLOCK_N"])
        launch(_tiles_kernel, (programs,), *args, **flags, num_warps=config["num_warps"])
    return out


def _launch_persistent(index, weight, padding_idx, *, config):
    block = {"BLOCK_N": triton.next_power_of_2(weight.shape[1])}
    out, args, flags = _gathering(index, weight, config | block)
    if out.numel():
        tiles = triton.cdiv(index.numel(), config["BLOCK_M"])
        programs = min(tiles, config["PROGRAMS_PER_SM"] * gpu_of(weight.device).sms)
        flags["NUM_STAGES"] = config["num_stages"]
        launch(_persistent_kernel, (programs,), *args, **flags, num_warps=config["num_warps"])
    return out


def _sorted_tokens(index, v, padding_idx):
    """(row, token) of all tokens by row, those of one row in their order; row v for tokens without a gradient."""
    m = index.numel()
    chunk = next(chunk for below, chunk in _CHUNKS if m < below)
    chunks = triton.cdiv(m, chunk)
    wide = (v + 2) * chunk > 2**31
    packed = torch.empty(chunks * chunk, dtype=torch.int64 if wide else torch.int32, device=index.device)
    rows, order = (torch.empty(m, dtype=torch.int32, device=index.device) for _ in range(2))
    launch(
        _sort_chunks_kernel, (chunks,), index, packed, rows, order, m, v, padding_idx,
        CHUNK=chunk, SINGLE=chunks == 1, num_warps=max(1, chunk // 128),
    )  # fmt: skip
    if chunks > 1:
        block = min(chunk, _MERGED)
        launch(
            _merge_chunks_kernel, (chunks * chunk // block,), packed, rows, order, m, chunks,
            CHUNK=chunk, BITS=chunk.bit_length(), BLOCK=block, num_warps=4,
            BLOCK_C=min(_MERGED_CHUNKS, triton.next_power_of_2(chunks)),
        )  # fmt: skip
    return rows, order


def _launch_runs(dy, index, rows, padding_idx, *, config):
    m, n, v = index.numel(), dy.shape[-1], rows
    dweight = torch.empty((v, n), dtype=dy.dtype, device=dy.device)
    if not dweight.numel():
        return dweight
    by_row, order = _sorted_tokens(index, v, padding_idx)
    start = torch.empty(v + 1, dtype=torch.int32, device=dy.device)
    partial = torch.empty((m // _SPLIT, n), dtype=torch.float32, device=dy.device)
    row_programs = triton.cdiv(v + 1, _ROWS_SEARCHED)
    tile_programs = m // _SPLIT * triton.cdiv(n, _PARTIAL_COLUMNS)
    launch(
        _runs_kernel, (row_programs + tile_programs,), dy, by_row, order, start, partial, m, v, n, row_programs,
        BITS=m.bit_length(), BLOCK_V=_ROWS_SEARCHED, SPLIT=_SPLIT, BLOCK_N=_PARTIAL_COLUMNS, WIDTH=_width(dy),
        num_warps=4,
    )  # fmt: skip
    programs = triton.cdiv(v, config["BLOCK_V"]) * triton.cdiv(n, config["BLOCK_N"])
    launch(
        _sum_runs_kernel, (programs,), dy, order, start, partial, dweight, v, n, SPLIT=_SPLIT,
        BLOCK_V=config["BLOCK_V"], BLOCK_N=config["BLOCK_N"], WIDTH=_width(dy), num_warps=config["num_warps"],
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


_forward = Operator(
    "embedding_forward",
    "(Tensor index, Tensor weight, int padding_idx) -> Tensor",
    run=_run_forward,
    fake=lambda index, weight, padding_idx: weight.new_empty((*index.shape, weight.shape[1])),
)
_backward = Operator(
    "embedding_backward",
    "(Tensor dy, Tensor index, SymInt rows, int padding_idx) -> Tensor",
    run=_run_backward,
    fake=lambda dy, index, rows, padding_idx: dy.new_empty((rows, dy.shape[-1])),
)
_embedding = Differentiable(_forward, setup_context=_setup_context, backward=_pull_back)


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
        "fp16": ((4096, 32_000, 4096), (16384, 50_257, 768), (16384, 128_256, 4096)),
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
    if config["BLOCK_M"] > 1 and config["BLOCK_N"] < problem["n"]:
        return "several tokens a tile, though one has columns for several tiles"
    return _obstacle(config["BLOCK_M"], problem["m"], config["BLOCK_N"], config["num_warps"], problem)


def _fits_persistent(config: dict, problem: Case, gpu: GPU) -> str:
    programs, warps = config["PROGRAMS_PER_SM"], config["PROGRAMS_PER_SM"] * config["num_warps"]
    block_n = triton.next_power_of_2(problem["n"])
    tile = config["BLOCK_M"] * block_n * element_size(problem.dtype)
    shared = (config["num_stages"] - 1) * (tile + 8 * config["BLOCK_M"])  # rows and their indices
    if shared > gpu.shared_bytes or shared * programs > gpu.shared_bytes_per_sm:
        return f"{programs} programs with {shared} bytes of prefetched rows exceed an SM's shared memory"
    if warps > gpu.warps_per_sm:
        return f"{programs} programs of {config['num_warps']} warps exceed an SM's {gpu.warps_per_sm}"
    if warps < 16 and tile > 2 * 32 * config["num_warps"] * _VECTOR_BYTES:
        return f"{warps} warps an SM, though the tiles would feed more"
    return _obstacle(config["BLOCK_M"], problem["m"], block_n, config["num_warps"], problem)


def _fits_runs(config: dict, problem: Case, gpu: GPU) -> str:
    if config["BLOCK_V"] > 1 and config["BLOCK_N"] < problem["n"] and config["BLOCK_N"] < _BLOCKS[-1]:
        return "several rows a tile, though one has columns for several tiles"
    return _obstacle(config["BLOCK_V"], problem["v"], config["BLOCK_N"], config["num_warps"], problem)


def _obstacle(block: int, rows: int, block_n: int, num_warps: int, problem: Case) -> str:
    """Why a tile of ``block`` of the ``rows`` times ``block_n`` columns is no use, or ``""``."""
    vectors = block * block_n * element_size(problem.dtype) / (32 * num_warps * _VECTOR_BYTES)
    if vectors < 1 and num_warps > 1:
        return "less than one 16-byte vector a thread"
    if vectors > 4:
        return f"{vectors:g} 16-byte vectors a thread; up to 4 keep memory busy without spills"
    if block_n > max(triton.next_power_of_2(problem["n"]), _BLOCKS[0]):
        return "a block wider than the table"
    if block > 1 and block >= 2 * rows:
        return "a tile with room for twice the rows there are"
    return ""


def _tile(problem: Case, rows: int, vectors: int, warps: int) -> tuple[int, int, int]:
    """(rows, columns, warps) of a tile: ``vectors`` 16-byte vectors a thread, rows as whole as ``warps`` allow."""
    elements = warps * 32 * vectors * _VECTOR_BYTES // element_size(problem.dtype)
    block_n = max(_BLOCKS[0], min(triton.next_power_of_2(problem["n"]), elements, _BLOCKS[-1]))
    block = max(1, min(triton.next_power_of_2(rows), elements // block_n, 16)) if block_n >= problem["n"] else 1
    return block, block_n, max(1, min(warps, block * block_n * warps // elements))


def _tiles_default(problem: Case, gpu: GPU) -> dict:
    """Two 16-byte vectors a thread, four warps, or eight for rows that fill them."""
    wide = problem["n"] * element_size(problem.dtype) >= 8 * 32 * 2 * _VECTOR_BYTES
    block, block_n, warps = _tile(problem, problem["m"], 2, 8 if wide else 4)
    return {"BLOCK_M": block, "BLOCK_N": block_n, "num_warps": warps}


def _persistent_default(problem: Case, gpu: GPU) -> dict:
    """Two vectors a thread, and as many stages and programs as the shared memory has room for."""
    size, block_n = element_size(problem.dtype), triton.next_power_of_2(problem["n"])
    warps = max(1, min(16, block_n * size // (32 * 2 * _VECTOR_BYTES)))
    configs = [
        {"BLOCK_M": 1, "num_warps": warps, "num_stages": stages, "PROGRAMS_PER_SM": programs}
        for programs in _PERSISTENT_SPACE["PROGRAMS_PER_SM"][::-1]
        for stages in _PERSISTENT_SPACE["num_stages"][::-1]
    ]
    return next((config for config in configs if not _fits_persistent(config, problem, gpu)), configs[-1])


def _runs_default(problem: Case, gpu: GPU) -> dict:
    """As the forward pass, one row at least of the widest block."""
    block, block_n, warps = _tile(problem, problem["v"], 2, 8)
    return {"BLOCK_V": block, "BLOCK_N": block_n, "num_warps": warps}


def _handles_persistent(problem: Case, gpu: GPU) -> str:
    return _fits_persistent(_persistent_default(problem, gpu), problem, gpu)


_BLOCKS = (256, 512, 1024, 2048, 4096)
_TILES_SPACE = {"BLOCK_M": (1, 2, 4, 8, 16), "BLOCK_N": _BLOCKS, "num_warps": (1, 2, 4, 8, 16)}
_PERSISTENT_SPACE = {
    "BLOCK_M": (1, 2, 4),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (3, 4),
    "PROGRAMS_PER_SM": (2, 4, 8),
}
_RUNS_SPACE = {"BLOCK_V": (1, 2, 4, 8, 16), "BLOCK_N": _BLOCKS, "num_warps": (1, 2, 4, 8, 16)}

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
                launch=_launch_tiles,
                space=_TILES_SPACE,
                default=_tiles_default,
                fits=_fits_tiles,
            ),
            Variant(
                name="persistent",
                summary="as many programs as fit the SMs, next indices and rows prefetched",
                launch=_launch_persistent,
                space=_PERSISTENT_SPACE,
                default=_persistent_default,
                fits=_fits_persistent,
                handles=_handles_persistent,
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
                summary="tokens sorted, then one pass over dweight adds up each row's run",
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
