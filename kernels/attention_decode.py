"""Attention of one new token against a long cache of keys and values, for many sequences at once (decoding).

With q [b, h, t, d] (t = 1, or a few tokens that are tried at once) and caches K, V [b, g, s, d] of which sequence b has
filled the first n_b rows, its new tokens included, head i of q uses head i // (h / g) of K and V, and

    S_tj = scale q_t K_j^T  for j <= n_b - t + (number of the token, from 0),
    lse_t = log sum_j exp S_tj,    out_t = sum_j exp(S_tj - lse_t) V_j

Reads K and V once, 2 n_b d elements a sequence and head, and little else; 4 t operations for each element and head of q
that shares it.  So memory is the bound, and the task is to have enough of the cache under way in every SM:

- All h / g heads of q that share a head of the cache, and their t tokens, are rows of one product: a program reads its
  part of the cache once for all of them.  Tensor cores take 16 rows at least; those that are missing cost nothing here.
- A sequence's cache is split in chunks of equal length, one a program, so that one sequence fills the GPU, too.  A
  program keeps maximum, sum and weighted sum of V as in flash attention; a second kernel weighs the chunks' results by
  their log-sum-exp, in the order of the chunks.  Two runs agree bit by bit.
"""

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
    element_size,
    gpu_of,
    torch_dtype,
)
from atlas.declaration.products import as_interpreted
from atlas.operators import CustomOperator, autocast, autocasting, launch

__all__ = ["decode_attention"]

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The least finite fp32, where a running maximum starts: exp2(-inf - LOWEST) is 0, exp2(-inf - -inf) would be NaN."""

LN2 = tl.constexpr(math.log(2))


@triton.jit
def _fold(
    q, k_ptrs, v_ptrs, start, limit, last, m_i, l_i, acc, scale, stride_ks, stride_vs,
    BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """State (maximum m_i, sum l_i of exp2, weighted sum acc of V) after the cache's rows from ``start`` on.

    Of MASKED blocks each row of q sees the keys before its ``limit``, and those from ``last`` on are not read.
    """
    offs_n = start + tl.arange(0, BLOCK_N)
    mask_d = tl.arange(0, BLOCK_D)[None, :] < HEAD_DIM
    k_block = k_ptrs + tl.cast(start, tl.int64) * stride_ks
    v_block = v_ptrs + tl.cast(start, tl.int64) * stride_vs
    if MASKED:
        # Zeros instead of what lies behind the cache's end: a weight of 0 times a NaN would be one.
        k = tl.load(k_block, mask=(offs_n < last)[:, None] & mask_d, other=0.0)
        v = tl.load(v_block, mask=(offs_n < last)[:, None] & mask_d, other=0.0)
    elif HEAD_DIM < BLOCK_D:
        k = tl.load(k_block, mask=mask_d, other=0.0)
        v = tl.load(v_block, mask=mask_d, other=0.0)
    else:
        k = tl.load(k_block)
        v = tl.load(v_block)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if MASKED:
        s = tl.where(offs_n[None, :] < limit[:, None], s, -float("inf"))
    m_new = tl.maximum(m_i, tl.max(s, axis=1))
    p = tl.exp2(s - m_new[:, None])
    alpha = tl.exp2(m_i - m_new)
    l_i = l_i * alpha + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")
    return m_new, l_i, acc


@triton.jit
def _chunk_kernel(
    q_ptr, k_ptr, v_ptr, lens_ptr, out_ptr, lse_ptr, kv_heads, seq, chunk, splits, scale,
    stride_qb, stride_qh, stride_qt, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr, HAS_LENS: tl.constexpr,
):  # fmt: skip
    """One program owns ``chunk`` rows, a multiple of BLOCK_N, of one head of one sequence's cache.

    Its BLOCK_M rows are the GROUP heads of q that use that head, QUERIES tokens each.  WHOLE: the chunk is all of the
    cache, and out and lse are the results; else parts in fp32, [b, g, splits, GROUP, QUERIES, d] and [b, g, splits,
    GROUP, QUERIES], to base 2.  A program behind the sequence's end writes nothing.
    """
    split = tl.program_id(0) % splits
    head = tl.program_id(0) // splits % kv_heads
    batch = tl.program_id(0) // (splits * kv_heads)
    batch_64, head_64 = batch.to(tl.int64), head.to(tl.int64)
    length = seq
    if HAS_LENS:
        length = tl.minimum(tl.load(lens_ptr + batch), seq)
    first = split * chunk
    if (first < length) | WHOLE:
        last = tl.minimum(first + chunk, length)
        offs_m = tl.arange(0, BLOCK_M)
        offs_d = tl.arange(0, BLOCK_D)
        member, query = offs_m // QUERIES, offs_m % QUERIES
        mask_m = offs_m < GROUP * QUERIES
        limit = length - (QUERIES - 1) + query
        mask_md = mask_m[:, None] & (offs_d < HEAD_DIM)[None, :]
        q_ptr += batch_64 * stride_qb + head_64 * GROUP * stride_qh
        q = tl.load(
            q_ptr + (member * stride_qh + query * stride_qt)[:, None] + offs_d[None, :], mask=mask_md, other=0.0
        )
        offs_n = tl.arange(0, BLOCK_N)[:, None]
        k_ptrs = k_ptr + batch_64 * stride_kb + head_64 * stride_kh + offs_n * stride_ks + offs_d[None, :]
        v_ptrs = v_ptr + batch_64 * stride_vb + head_64 * stride_vh + offs_n * stride_vs + offs_d[None, :]
        m_i = tl.full([BLOCK_M], LOWEST, tl.float32)
        l_i = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        # Whole blocks that every row sees, then those with the ends of some.
        seen = tl.maximum(tl.minimum(last, length - (QUERIES - 1)) - first, 0) // BLOCK_N * BLOCK_N + first
        for start in tl.range(first, seen, BLOCK_N):
            m_i, l_i, acc = _fold(
                q, k_ptrs, v_ptrs, start, limit, last, m_i, l_i, acc, scale, stride_ks, stride_vs,
                BLOCK_N, HEAD_DIM, BLOCK_D, False,
            )  # fmt: skip
        for start in tl.range(seen, last, BLOCK_N, num_stages=1):
            m_i, l_i, acc = _fold(
                q, k_ptrs, v_ptrs, start, limit, last, m_i, l_i, acc, scale, stride_ks, stride_vs,
                BLOCK_N, HEAD_DIM, BLOCK_D, True,
            )  # fmt: skip
        # A row that saw no key has the sum 0: its result is 0, of weight 0.
        none = l_i == 0.0
        total = tl.where(none, 1.0, l_i)
        acc = acc / total[:, None]
        lse = tl.where(none, -float("inf"), m_i + tl.log2(total))
        if WHOLE:
            lse = lse * LN2
        row = ((batch_64 * kv_heads + head) * splits + split) * GROUP * QUERIES + offs_m
        tl.store(out_ptr + row[:, None] * HEAD_DIM + offs_d[None, :], acc, mask=mask_md)
        tl.store(lse_ptr + row, lse, mask=mask_m)


@triton.jit
def _combine_kernel(
    part_ptr, part_lse_ptr, lens_ptr, out_ptr, lse_ptr, kv_heads, seq, chunk, splits,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, HAS_LENS: tl.constexpr,
):  # fmt: skip
    """One program owns one of the ROWS rows (head of q and token) of one head of one sequence's cache."""
    row = tl.program_id(0) % ROWS
    pair = (tl.program_id(0) // ROWS).to(tl.int64)
    length = seq
    if HAS_LENS:
        length = tl.minimum(tl.load(lens_ptr + pair // kv_heads), seq)
    used = tl.cdiv(length, chunk)
    offs_s = tl.arange(0, BLOCK_S)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < HEAD_DIM
    m_i = tl.full([BLOCK_S], LOWEST, tl.float32)
    l_i = tl.zeros([BLOCK_S], tl.float32)
    acc = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    for start in tl.range(0, used, BLOCK_S):
        mask_s = start + offs_s < used
        part = (pair * splits + start + offs_s) * ROWS + row
        lse = tl.load(part_lse_ptr + part, mask=mask_s, other=-float("inf"))
        out = tl.load(part_ptr + part[:, None] * HEAD_DIM + offs_d, mask=mask_s[:, None] & mask_d[None, :], other=0.0)
        m_new = tl.maximum(m_i, lse)
        alpha, weight = tl.exp2(m_i - m_new), tl.exp2(lse - m_new)
        l_i = l_i * alpha + weight
        acc = acc * alpha[:, None] + out * weight[:, None]
        m_i = m_new
    top = tl.max(m_i, axis=0)
    share = tl.exp2(m_i - top)
    total = tl.sum(l_i * share, axis=0)
    none = total == 0.0
    total = tl.where(none, 1.0, total)
    out = tl.sum(acc * share[:, None], axis=0) / total
    lse = tl.where(none, -float("inf"), (top + tl.log2(total)) * LN2)
    tl.store(out_ptr + (pair * ROWS + row) * HEAD_DIM + offs_d, out, mask=mask_d)
    tl.store(lse_ptr + pair * ROWS + row, lse)


def _chunk(pairs, seq, programs, block_n):
    """Rows of a chunk: a multiple of ``block_n``, so that ``pairs`` caches give about ``programs`` of them."""
    blocks = max(triton.cdiv(seq, block_n), 1)
    splits = min(max(programs // pairs, 1), blocks)
    return triton.cdiv(blocks, splits) * block_n


def _launch(q, k, v, lens, scale, *, config):
    """Launch ``_chunk_kernel``, and ``_combine_kernel`` where a cache has several chunks; out and lse."""
    (batch, heads, queries, head_dim), (kv_heads, seq) = q.shape, k.shape[1:3]
    pairs, group = batch * kv_heads, heads // kv_heads
    block_n, block_d = config["BLOCK_N"], triton.next_power_of_2(head_dim)
    chunk = seq
    if "PROGRAMS" in config:
        chunk = _chunk(pairs, seq, gpu_of(q.device).sms * config["PROGRAMS"], block_n)
    splits = max(triton.cdiv(seq, chunk), 1) if chunk else 1
    out = torch.empty((batch, heads, queries, head_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    part, part_lse = out, lse
    if splits > 1:
        part = torch.empty((pairs, splits, group * queries, head_dim), dtype=torch.float32, device=q.device)
        part_lse = torch.empty((pairs, splits, group * queries), dtype=torch.float32, device=q.device)
    q, k, v = as_interpreted(q), as_interpreted(k), as_interpreted(v)
    launch(
        _chunk_kernel, (pairs * splits,), q, k, v, lens, part, part_lse, kv_heads, seq, chunk, splits,
        scale * math.log2(math.e), *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        GROUP=group, QUERIES=queries, HEAD_DIM=head_dim, BLOCK_M=max(triton.next_power_of_2(group * queries), 16),
        BLOCK_N=block_n, BLOCK_D=block_d, WHOLE=splits == 1, HAS_LENS=lens is not None,
        num_warps=config["num_warps"], num_stages=config["num_stages"],
    )  # fmt: skip
    if splits > 1:
        launch(
            _combine_kernel, (batch * heads * queries,), part, part_lse, lens, out, lse, kv_heads, seq, chunk, splits,
            ROWS=group * queries, HEAD_DIM=head_dim, BLOCK_D=block_d,
            BLOCK_S=min(triton.next_power_of_2(splits), 32), HAS_LENS=lens is not None, num_warps=4,
        )  # fmt: skip
    return out, lse


def _case_of(q, k, lens):
    return case(
        _NAMES[q.dtype], batch=q.shape[0], heads=q.shape[1], kv_heads=k.shape[1], seq=k.shape[2], queries=q.shape[2],
        head_dim=q.shape[3], ragged=lens is not None,
    )  # fmt: skip


def _run(q, k, v, lens, scale):
    variant, config = choose(DECLARATION, "forward", _case_of(q, k, lens), q.device)
    return variant.launch(q, k, v, lens, scale, config=config)


def _fake(q, k, v, lens, scale):
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


_operator = CustomOperator(
    "decode_attention", "(Tensor q, Tensor k, Tensor v, Tensor? lens, float scale) -> (Tensor, Tensor)",
    run=_run, fake=_fake,
)  # fmt: skip


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_lens: torch.Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of the newest tokens ``q`` [b, h, t, d] to caches [b, g, s, d]; out [b, h, t, d].

    fp16 or bf16; h is a multiple of g, and (h / g) t at most 64.  ``cache_lens`` [b], int32, says how many rows of its
    cache each sequence has filled, the t new tokens included; without it all s.  Token i of t sees all rows but the
    last t - 1 - i, as ``is_causal`` aligned to the lower right; one that sees none has the result 0.  ``scale`` is
    1 / sqrt(d) if not given, and ``return_lse`` gives the log-sum-exp of the scores [b, h, t], fp32, too.  A cache may
    have any strides but in d, so [b, s, g, d] goes in transposed.  ``cache_lens`` is not read by the host: entries
    beyond s count as s.

    There is no gradient.  Raises TypeError for dtypes, ValueError for shapes, devices and strides.
    """
    if autocasting():
        q, k_cache, v_cache = autocast("scaled_dot_product_attention", q, k_cache, v_cache)
    _check(q, k_cache, v_cache, cache_lens)
    if q.stride(3) != 1:
        q = q.contiguous()
    if q.requires_grad or k_cache.requires_grad or v_cache.requires_grad:
        q, k_cache, v_cache = q.detach(), k_cache.detach(), v_cache.detach()
    if not q.shape[-1]:  # heads of no elements: all scores are 0, as those of one that is 0
        wide = (torch.nn.functional.pad(x, (0, 1)) for x in (q, k_cache, v_cache))
        out, lse = decode_attention(*wide, cache_lens, 1.0, return_lse=True)
        return (out[..., :0], lse) if return_lse else out[..., :0]
    if scale is None:
        scale = q.shape[-1] ** -0.5
    elif not -math.inf < scale < math.inf:
        q, scale = q * scale, 1.0  # scores are what the product of the two is
    if not q.numel():
        out, lse = _fake(q, k_cache, v_cache, cache_lens, scale)
    else:
        out, lse = _operator(q, k_cache, v_cache, cache_lens, float(scale))
    return (out, lse) if return_lse else out


_MOST_ROWS = 64


def _check(q, k, v, lens):
    if q.dtype not in _NAMES or k.dtype is not q.dtype or v.dtype is not q.dtype:
        raise TypeError(
            f"decode_attention takes one dtype out of {', '.join(_DTYPES)}: {q.dtype}, {k.dtype}, {v.dtype}"
        )
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"decode_attention takes q [b, h, t, d] and caches [b, g, s, d] of one b and d: {shapes}")
    (_, heads, queries, head_dim), kv_heads = q.shape, k.shape[1]
    if q.numel() and (not kv_heads or heads % kv_heads):
        raise ValueError(f"decode_attention takes a multiple of the cache's heads in q: {heads} and {kv_heads}")
    if q.numel() and heads // kv_heads * queries > _MOST_ROWS:
        raise ValueError(
            f"decode_attention takes up to {_MOST_ROWS} tokens times heads of q that share a head of the cache: "
            f"{heads // kv_heads * queries}; longer ones are for scaled_dot_product_attention"
        )
    if head_dim > 256:
        raise ValueError(f"decode_attention takes heads of up to 256 dimensions: {head_dim}")
    if k.stride(3) != 1 or v.stride(3) != 1:
        raise ValueError("decode_attention takes caches whose last dimension is contiguous, since it copies none")
    if k.device != q.device or v.device != q.device or (lens is not None and lens.device != q.device):
        raise ValueError("decode_attention takes tensors of one device")
    if lens is not None and (lens.dtype is not torch.int32 or lens.shape != q.shape[:1] or not lens.is_contiguous()):
        raise ValueError(f"decode_attention takes cache_lens int32 [{q.shape[0]}]: {lens.dtype} {tuple(lens.shape)}")


_DTYPES = ("bf16", "fp16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}


def _visible(q, k, lens):
    """Which keys each token sees, [b, 1, t, s]."""
    queries, seq = q.shape[2], k.shape[2]
    length = torch.full((q.shape[0],), seq, device=q.device) if lens is None else lens.clamp(max=seq)
    limit = length[:, None] - (queries - 1) + torch.arange(queries, device=q.device)
    return (torch.arange(seq, device=q.device) < limit[..., None])[:, None]


def _reference(q, k, v, lens, scale):
    batch, heads, queries, head_dim = q.shape
    rows = q.reshape(batch, k.shape[1], -1, head_dim)  # the heads that share one of the cache
    mask = (
        _visible(q, k, lens).expand(batch, heads // k.shape[1], queries, k.shape[2]).reshape(batch, 1, -1, k.shape[2])
    )
    scores = (rows @ k.mT * scale).masked_fill(~mask, -math.inf)
    lse = scores.logsumexp(-1)
    out = (scores - lse.clamp(min=-1e30)[..., None]).exp() @ v
    return out.reshape(q.shape), lse.reshape(q.shape[:3])


def _lens(problem: Case, device):
    """Lengths from all of the cache down to a quarter of it; None where all are full."""
    if not problem["ragged"]:
        return None
    if torch.device(device).type == "meta":
        return torch.empty(problem["batch"], dtype=torch.int32, device=device)
    return torch.tensor(_lengths(problem), dtype=torch.int32, device=device)


def _lengths(problem: Case) -> list[int]:
    batch, seq = problem["batch"], problem["seq"]
    if not problem["ragged"]:
        return [seq] * batch
    least = max(seq // 4, problem["queries"])
    return [seq - (seq - least) * i // max(batch - 1, 1) for i in range(batch)]


def _inputs(problem: Case, device, generator):
    def draw(heads, length):
        shape = (problem["batch"], heads, length, problem["head_dim"])
        return torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)

    return {
        "q": draw(problem["heads"], problem["queries"]),
        "k": draw(problem["kv_heads"], problem["seq"]),
        "v": draw(problem["kv_heads"], problem["seq"]),
        "lens": _lens(problem, device),
        "scale": problem["head_dim"] ** -0.5,
    }


def _bytes(problem: Case) -> dict[str, float]:
    """The filled part of the cache, q, and what is written."""
    size, rows = element_size(problem.dtype), problem["batch"] * problem["heads"] * problem["queries"]
    cache = sum(_lengths(problem)) * problem["kv_heads"] * problem["head_dim"] * size
    small = rows * problem["head_dim"] * size
    return {"k": cache, "v": cache, "q": small, "out": small, "lse": rows * 4}


def _flops(problem: Case) -> dict[str, float]:
    products = 2 * sum(_lengths(problem)) * problem["heads"] * problem["queries"] * problem["head_dim"]
    return {"q @ k": products, "p @ v": products}


def _problem(dtype, reason, batch, seq, head_dim=128, heads=32, kv_heads=8, queries=1, ragged=False):
    return case(
        dtype, reason, batch=batch, heads=heads, kv_heads=kv_heads, seq=seq, queries=queries, head_dim=head_dim,
        ragged=ragged,
    )  # fmt: skip


def _cases(gpu: GPU) -> list[Case]:
    cases = [
        _problem("bf16", "one user, 16 MiB: launches are the cost", 1, 4096),
        _problem("bf16", "one user, a long document", 1, 16384),
        _problem("bf16", "one user, 128 Ki tokens", 1, 131072),
        _problem("bf16", "a few users", 8, 4096),
        _problem("bf16", "a few users, long", 8, 16384),
        _problem("bf16", "two users, longer", 2, 65536),
        _problem("bf16", "a batch", 32, 4096),
        _problem("bf16", "a batch, long", 32, 16384),
        _problem("bf16", "a large batch: no need to split", 128, 4096),
        _problem("bf16", "lengths from a quarter to all", 32, 16384, ragged=True),
        _problem("bf16", "four tokens tried at once", 16, 16384, queries=4),
        _problem("bf16", "heads of 64", 32, 16384, head_dim=64),
        _problem("fp16", "the other dtype", 8, 16384),
    ]
    return [c for c in cases if sum(_bytes(c).values()) <= gpu.memory_bytes // 16]


_EDGE_CASES = tuple(
    _problem(dtype, reason, batch, seq, head_dim, heads, kv_heads, queries, ragged)
    for dtype in _DTYPES
    for batch, seq, head_dim, heads, kv_heads, queries, ragged, reason in (
        (1, 1, 64, 4, 1, 1, False, "a cache of one row: the token itself"),
        (1, 64, 64, 4, 2, 1, False, "whole blocks only"),
        (2, 203, 64, 8, 2, 1, False, "a tail in the last block"),
        (3, 300, 64, 4, 1, 1, True, "lengths that differ: chunks behind a sequence's end"),
        (2, 130, 64, 4, 2, 4, True, "four tokens, whose last keys differ, across the border of a block"),
        (2, 70, 128, 3, 3, 1, False, "as many heads in the cache as in q: one row of sixteen is used"),
        (1, 96, 80, 4, 2, 1, False, "a head dimension that is no power of two"),
        (1, 90, 64, 20, 1, 1, False, "more than sixteen heads share one of the cache"),
    )
)

_HUGE_CASES = (_problem("bf16", "offsets into K and V beyond 2^31", 3, 2**20 + 5, heads=8, ragged=True),)


def _masked(q, k, v, lens, scale):
    """Keyword arguments of ``scaled_dot_product_attention``; the mask, where one is due, is made beforehand."""
    mask = None if lens is None and q.shape[2] == 1 else _visible(q, k, lens)
    return {"attn_mask": mask, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}


def _prepare_torch(q, k, v, lens, scale):
    arguments = _masked(q, k, v, lens, scale)
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **arguments)


def _of_backend(name):
    """A peer of one backend of torch's; one that does not take the case is unsupported with torch's reason."""

    def prepare(q, k, v, lens, scale):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        arguments = _masked(q, k, v, lens, scale)
        if name == "FLASH_ATTENTION" and arguments["attn_mask"] is not None:
            raise NotImplementedError("torch's flash attention takes no mask, which lengths and several tokens need")

        def attend():
            with sdpa_kernel(getattr(SDPBackend, name)):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, **arguments)

        try:
            attend()
        except RuntimeError as error:
            raise NotImplementedError(f"torch's {name} does not take it: {error}") from error
        return attend

    return Peer(prepare)


_FLEX_SHAPE = (32, 16384)


def _prepare_flex(q, k, v, lens, scale):
    """``flex_attention``, compiled: it has kernels for few queries, which split the cache."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if (k.shape[0], k.shape[2]) != _FLEX_SHAPE:
        raise NotImplementedError(
            "flex_attention is compiled for seconds on every case, and ended far behind on those where it was timed: "
            f"now at {_FLEX_SHAPE[0]} caches of {_FLEX_SHAPE[1]} rows alone"
        )
    block_mask = None
    if lens is not None or q.shape[2] > 1:
        seq, queries = k.shape[2], q.shape[2]
        length = torch.full((q.shape[0],), seq, device=q.device) if lens is None else lens

        def sees(batch, head, query, key):
            return key < length[batch] - (queries - 1) + query

        block_mask = create_block_mask(sees, q.shape[0], None, queries, seq, device=q.device)
    torch._dynamo.reset()
    fast = torch.compile(flex_attention, dynamic=False)
    arguments = {"block_mask": block_mask, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    fast(q, k, v, **arguments)
    return lambda: fast(q, k, v, **arguments)


def _copies_asynchronously(gpu: GPU) -> bool:
    return gpu.backend == "cuda" and int(gpu.arch) >= 80


def _fits(config, problem: Case, gpu: GPU) -> str:
    block = config["BLOCK_N"] * triton.next_power_of_2(problem["head_dim"]) * element_size(problem.dtype)
    asynchronous = _copies_asynchronously(gpu)
    # On sm_75 tl.dot is FMA, which holds its operands in registers as fp32.
    most = 64 if gpu.backend == "cuda" and not asynchronous else 256
    if block // (32 * config["num_warps"]) > most:
        return f"more than {most} bytes of a block of K a thread: registers spill"
    if gpu.functional:
        return ""
    if asynchronous and block < 16 * 1024:
        return "blocks of less than 16 KiB, which longer ones beat (H200)"
    if not asynchronous and config["num_stages"] > 2:
        return "no asynchronous copies, so further stages do nothing"
    # Blocks of K and V that are on their way while one is multiplied; without asynchronous copies one is all there is.
    shared = 2 * block * (config["num_stages"] - 1 if asynchronous else 1)
    if shared + 12 * 1024 > gpu.shared_bytes:
        return f"{shared // 1024} KiB of the cache in shared memory, beside what reductions need"
    under_way = shared * config.get("PROGRAMS", 2) // 1024
    if asynchronous and under_way < 48:  # latency times bandwidth asks for some 32 KiB
        return f"{under_way} KiB of the cache under way in an SM: too few to hide latency"
    return ""


_SPACE = {
    "BLOCK_N": (32, 64, 128),
    "PROGRAMS": (1, 2),
    "num_warps": (2, 4),
    "num_stages": (2, 3, 4),
}


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    if _copies_asynchronously(gpu):
        block_n = min(max(8192 // triton.next_power_of_2(problem["head_dim"]), 32), 128)  # 16 KiB of K
        return {"BLOCK_N": block_n, "PROGRAMS": 2, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_N": 32, "PROGRAMS": 2, "num_warps": 4, "num_stages": 2}


def _whole_default(problem: Case, gpu: GPU) -> dict[str, int]:
    return {name: value for name, value in _default(problem, gpu).items() if name != "PROGRAMS"}


DECLARATION = Declaration(
    name="attention_decode",
    family="attention",
    summary="attention of new tokens to a long cache",
    function=decode_attention,
    call=lambda function, inputs: function(
        inputs["q"], inputs["k"], inputs["v"], inputs["lens"], inputs["scale"], return_lse=True
    ),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out", "lse"),
        variants=(
            Variant(
                name="split",
                summary="caches split in chunks, one a program, whose results a second kernel combines",
                launch=_launch,
                space=_SPACE,
                default=_default,
                fits=_fits,
                follows="whole",
            ),
            Variant(
                name="whole",
                summary="one program for each head of each cache, which idles SMs where these are few",
                launch=_launch,
                space={name: values for name, values in _SPACE.items() if name != "PROGRAMS"},
                default=_whole_default,
                fits=_fits,
            ),
        ),
        peers={
            "torch": Peer(_prepare_torch),
            "torch.flash": _of_backend("FLASH_ATTENTION"),
            "torch.cudnn": _of_backend("CUDNN_ATTENTION"),
            "flex_attention": Peer(_prepare_flex, compiles=True),
        },
        bytes=_bytes,
        flops=_flops,
        reduction=lambda c: c["seq"],
    ),
)
