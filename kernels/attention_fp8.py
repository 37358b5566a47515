"""Attention of 8-bit heads: out = softmax(scale Q K^T) V with Q, K, V of fp8 (e4m3), and a scale for each head.

The algorithm is that of :mod:`kernels.attention`, forward alone.  With Q [b, h, l, d], K and V [b, g, s, d] of e4m3,
which stand for q_scale Q, k_scale K and v_scale V (q_scale [b, h], k_scale and v_scale [b, g], fp32),

    S = scale q_scale k_scale Q K^T,    lse_i = log sum_j exp S_ij,    out = v_scale softmax(S) V

Tensor cores multiply e4m3 twice as fast as bf16, and K and V are half as many bytes.  Rounded on the way is P: as
256 exp(S - m), between 0 and 256, to e4m3, with a relative error of up to 2^-4, and below 2^-14 of a row's largest
number to multiples of 2^-17 of that.  out is divided by the sum of P as it was before.  S, sums and lse are fp32.

So out has two errors: that of whoever quantised Q, K and V, which is not this kernel's, and that of P.  The second
averages out over the keys that a query looks at: against exact attention to the same e4m3 numbers it is 1.4 to 1.9 % of
out's root mean square (H200, normal numbers).

Takes 4 b h l s d operations, half of them under a causal mask, and as many exponentials as bf16 does: those, not the
products, are the bound for heads of 64.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Capability,
    Case,
    Config,
    Declaration,
    Pass,
    Peer,
    Variant,
    case,
    choose,
    gpu_of,
)
from atlas.operators import CustomOperator, launch

import kernels.hopper.attention_fp8 as hopper
from kernels._attention_cases import (
    _by,
    _by_groups,
    _products,
    _scores,
    _torch,
)
from kernels._attention_cases import _reference as _exact
from kernels._attention_cases import _sized as _case_sized
from kernels._attention_spaces import (
    _HOPPER,
    _for_hopper,
    _too_much,
)
from kernels.attention import (
    LN2,
    LOWEST,
    _describable,
    _head_of,
    _keys_of,
    _place,
    _read,
    _sees,
    _strides,
    _write,
)

__all__ = ["attention_fp8", "quantise_heads"]

LIFT = tl.constexpr(8.0)
"""log2 of what P is multiplied by before it is rounded: 256, below e4m3's largest number, 448."""


@triton.jit
def _attend(
    acc, l_i, m_i, q, k_ptr, v_ptr, first, start, whole, end, len_k, scale, stride_ks, stride_vs,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, MASKED: tl.constexpr, PROMOTE: tl.constexpr,
):  # fmt: skip
    """(acc, l_i, m_i) of queries from ``first`` on after the keys from ``start``, a multiple of BLOCK_N, to ``end``.

    With PROMOTE blocks' sums are added in fp32 registers: Hopper's tensor cores add fp8 products with some 14 bits.
    """
    for n in tl.range(start, end, BLOCK_N):
        k = _read(k_ptr, 0, 0, n, len_k - n, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D, MASKED, False)
        s = tl.dot(q, tl.trans(k))
        if MASKED:  # noqa: SIM102 (settled when compiled, unlike the other)
            if n >= whole:
                s = tl.where(_sees(first, n, len_k, 0, CAUSAL, BLOCK_M, BLOCK_N), s, -float("inf"))
        v = _read(v_ptr, 0, 0, n, len_k - n, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D, MASKED, False)
        m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale)
        alpha = tl.exp2(m_i - m_new)
        p = tl.exp2(s * scale - (m_new - LIFT)[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)
        if PROMOTE:
            acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        else:
            acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    return acc, l_i, m_i


@triton.jit(do_not_specialize=["heads", "group", "len_q", "len_k"])
def _tiled_kernel(
    q_ptr, k_ptr, v_ptr, q_scale_ptr, k_scale_ptr, v_scale_ptr, out_ptr, lse_ptr, scale, heads, group, len_q, len_k,
    stride_qb, stride_qh, stride_qs, stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    stride_ob, stride_oh, stride_os,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, PROMOTE: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_M queries of one head.  ``scale`` has log2(e) in it; scales and lse are contiguous."""
    batch, head, block = _place(tl.cdiv(len_q, BLOCK_M), heads, CAUSAL)
    first, head_k = block * BLOCK_M, head // group
    b, place = batch.to(tl.int64), batch * heads + head
    scale = scale * tl.load(q_scale_ptr + place) * tl.load(k_scale_ptr + place // group)
    v_scale = tl.load(v_scale_ptr + place // group)
    q_ptr = _head_of(q_ptr, b, head, 0, stride_qb, stride_qh, stride_qs, False)
    k_ptr = _head_of(k_ptr, b, head_k, 0, stride_kb, stride_kh, stride_ks, False)
    v_ptr = _head_of(v_ptr, b, head_k, 0, stride_vb, stride_vh, stride_vs, False)
    q = _read(q_ptr, 0, 0, first, len_q - first, stride_qs, HEAD_DIM, BLOCK_M, BLOCK_D, True, False)
    whole, end = _keys_of(first, len_k, 0, CAUSAL, BLOCK_M, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    m_i = tl.full((BLOCK_M,), LOWEST, tl.float32)
    acc, l_i, m_i = _attend(
        acc, l_i, m_i, q, k_ptr, v_ptr, first, 0, whole, whole, len_k, scale, stride_ks, stride_vs,
        CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, False, PROMOTE,
    )  # fmt: skip
    acc, l_i, m_i = _attend(
        acc, l_i, m_i, q, k_ptr, v_ptr, first, whole, whole, end, len_k, scale, stride_ks, stride_vs,
        CAUSAL, HEAD_DIM, BLOCK_M, BLOCK_N, BLOCK_D, True, PROMOTE,
    )  # fmt: skip
    offs_m = first + tl.arange(0, BLOCK_M)
    lse_ptrs = lse_ptr + place.to(tl.int64) * len_q + offs_m
    tl.store(lse_ptrs, (m_i + (tl.log2(l_i) - LIFT)) * LN2, mask=offs_m < len_q)
    out_ptr = _head_of(out_ptr, b, head, 0, stride_ob, stride_oh, stride_os, False)
    _write(out_ptr, acc * (v_scale / l_i)[:, None], first, len_q - first, stride_os, HEAD_DIM, BLOCK_M, BLOCK_D)


def _block_d(head_dim):
    """Columns of a block: the least power of two that ``tl.dot`` takes of 8 bits and holds the head."""
    return max(32, triton.next_power_of_2(head_dim))


def _launch_tiled(q, k, v, scales, causal, scale, out_dtype=torch.bfloat16, *, config):
    """(out, lse) of q [b, h, l, d], k and v [b, g, s, d]; out lies in memory as q does, as far as q leaves no gaps."""
    batch, heads, len_q, head_dim = q.shape
    out = torch.empty_like(q, dtype=out_dtype)
    q, k, v, written = map(_as_interpreted, (q, k, v, out))
    lse = torch.empty((batch, heads, len_q), dtype=torch.float32, device=q.device)
    launch(
        _tiled_kernel, (batch * heads * triton.cdiv(len_q, config["BLOCK_M"]),),
        q, k, v, *scales, written, lse,
        scale / math.log(2), heads, heads // k.shape[1], len_q, k.shape[2],
        *_strides(q), *_strides(k), *_strides(v), *_strides(written),
        CAUSAL=causal, HEAD_DIM=head_dim, BLOCK_D=_block_d(head_dim), PROMOTE=head_dim <= 128, **config,
    )  # fmt: skip
    return written.to(out_dtype), lse


def _as_interpreted(x):
    """For the interpreter in fp32: it takes e4m3's NaN for a number and truncates to bf16, as torch does not (3.7.1).

    P is not rounded there.
    """
    return x.float() if gpu_of(x.device).functional else x


def _launch_hopper(q, k, v, scales, causal, scale, out_dtype=torch.bfloat16, *, config):
    """:func:`_launch_tiled` in Gluon; what the copy engine cannot read goes the way of pointers.

    So does out in fp32, whose blocks would take more shared memory than the configs count with.
    """
    if out_dtype.itemsize == 2 and all(map(_describable, (q, k, v))):
        return hopper.forward(q, k, v, *scales, causal, scale, out_dtype, config=config)
    plain = _default(_case_of(q, k, causal), gpu_of(q.device))
    return _launch_tiled(q, k, v, scales, causal, scale, out_dtype, config=plain)


def _run(q, k, v, q_scale, k_scale, v_scale, causal, scale, out_dtype):
    variant, config = choose(DECLARATION, "forward", _case_of(q, k, causal), q.device)
    return variant.launch(q, k, v, (q_scale, k_scale, v_scale), causal, scale, out_dtype, config=config)


def _fake(q, k, v, q_scale, k_scale, v_scale, causal, scale, out_dtype):
    return torch.empty_like(q, dtype=out_dtype), q.new_empty(q.shape[:3], dtype=torch.float32)


def _case_of(q, k, causal):
    b, h, length, d = q.shape
    return case("fp8e4m3", b=b, h=h, g=k.shape[1], l=length, s=k.shape[2], d=d, causal=causal)


_attention = CustomOperator(
    "attention_fp8",
    "(Tensor q, Tensor k, Tensor v, Tensor q_scale, Tensor k_scale, Tensor v_scale, bool causal, float scale, "
    "ScalarType out_dtype) -> (Tensor, Tensor)",
    run=_run,
    fake=_fake,
)


def quantise_heads(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``(values, scale)`` with x ~ values * scale[..., None, None]: heads of x [b, h, l, d] in e4m3, a scale for each.

    A head's scale is its largest magnitude over 448, fp32 [b, h], and 1 for a head of zeros.  Values are rounded to the
    nearest: a relative error of up to 2^-4.  NaN and infinities make their head NaN.  Plain torch: ``torch.compile``
    makes one kernel of it.

    Raises TypeError for other than floating numbers, ValueError for other than four dimensions.
    """
    if not x.is_floating_point():
        raise TypeError(f"quantise_heads takes floating numbers: {x.dtype}")
    if x.dim() != 4:
        raise ValueError(f"quantise_heads takes (batch, heads, length, head_dim): {tuple(x.shape)}")
    x = x.float()
    largest = torch.finfo(_E4M3).max
    most = x.abs().amax(dim=(2, 3), keepdim=True) if x.numel() else x.new_zeros((*x.shape[:2], 1, 1))
    scale = torch.where(most == 0, 1.0, most / largest)
    return (x / scale).clamp(-largest, largest).to(_E4M3), scale[:, :, 0, 0]


def attention_fp8(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_scale: torch.Tensor,
    key_scale: torch.Tensor,
    value_scale: torch.Tensor,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    out_dtype: torch.dtype = torch.bfloat16,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, lse) of ``scaled_dot_product_attention`` of float8_e4m3fn, as :func:`quantise_heads` makes it of others.

    query is [batch, heads, length, head_dim], key and value [batch, heads, length of its own, head_dim], with
    ``enable_gqa`` of fewer heads, which then serve groups of neighbouring heads of query.  Each stands for itself times
    its scale: fp32, positive and finite, of one element, or one for each batch and head.  output is ``out_dtype``
    (bf16, fp16 or fp32), lse [batch, heads, length] fp32: the natural logarithm of the sum of exp(score) over the keys
    that a query sees.  ``is_causal`` lets query i see the keys 0 … i, also where the lengths differ.

    P is rounded to e4m3 too: see the module.  head_dim is at most 256.  Strides may be any; rows that do not begin at
    16 bytes, and heads of other than 64, 128 or 256, are slower on Hopper.  Has no gradient.

    Raises TypeError for other dtypes, ValueError for shapes, scales or devices that do not agree, NotImplementedError
    for larger heads, where a gradient is asked for, and for a GPU without tensor cores for fp8.
    """
    _check(query, key, value, enable_gqa)
    if out_dtype not in _OUT:
        raise TypeError(f"attention_fp8 returns bf16, fp16 or fp32, not {out_dtype}")
    scales = [
        _checked_scale(name, x, factor)
        for name, x, factor in (
            ("query", query, query_scale), ("key", key, key_scale), ("value", value, value_scale)
        )
    ]  # fmt: skip
    if not query.shape[-1]:  # heads of no elements: all scores are 0, as those of one that is 0
        wide = (x.new_zeros((*x.shape[:3], 1)) for x in (query, key, value))
        out, lse = attention_fp8(*wide, *scales, is_causal, 1.0, enable_gqa, out_dtype)
        return out[..., :0], lse
    if scale is None:
        scale = query.shape[-1] ** -0.5
    if not 0 < scale < math.inf:
        raise ValueError(f"attention_fp8 takes a positive and finite scale, not {scale}")
    if not (query.numel() and key.numel()):
        lse = torch.full(query.shape[:3], -math.inf, dtype=torch.float32, device=query.device)
        return torch.zeros(query.shape, dtype=out_dtype, device=query.device), lse
    query, key, value = (x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous() for x in (query, key, value))
    return _attention(query, key, value, *scales, is_causal, float(scale), out_dtype)


def _check(query, key, value, grouped):
    """Raise for what the kernels do not take."""
    if {query.dtype, key.dtype, value.dtype} != {_E4M3}:
        raise TypeError(f"attention_fp8 takes tensors of {_E4M3}: {query.dtype}, {key.dtype}, {value.dtype}")
    if {query.device, key.device, value.device} != {query.device}:
        raise ValueError(f"attention_fp8 takes tensors of one device: {query.device}, {key.device}, {value.device}")
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not query.dim() == key.dim() == value.dim() == 4 or key.shape != value.shape:
        raise ValueError(f"attention_fp8 takes (batch, heads, length, head_dim), of key and value alike: {shapes}")
    if query.shape[0] != key.shape[0] or query.shape[-1] != key.shape[-1]:
        raise ValueError(f"attention_fp8: shapes do not agree: {shapes}")
    if query.shape[-1] > _LARGEST_HEAD:
        raise NotImplementedError(f"attention_fp8 takes heads of up to {_LARGEST_HEAD}: {shapes}")
    heads, heads_k = query.shape[1], key.shape[1]
    if heads != heads_k and not (grouped and heads_k and heads % heads_k == 0):
        raise ValueError(
            f"attention_fp8 takes as many heads of key and value as of query, or with enable_gqa=True a number that "
            f"divides them: {shapes}"
        )


def _checked_scale(name, x, scale):
    """A scale as kernels read it, contiguous [batch, heads]."""
    if scale.dtype != torch.float32 or scale.device != x.device or (scale.numel() != 1 and scale.shape != x.shape[:2]):
        raise ValueError(
            f"attention_fp8 takes {name}_scale as fp32 on {x.device}, of one element or {tuple(x.shape[:2])}: "
            f"{scale.dtype} on {scale.device}, {tuple(scale.shape)}"
        )
    if torch.is_grad_enabled() and scale.requires_grad:
        raise NotImplementedError("attention_fp8 has no gradient: detach its scales")
    return (scale.reshape(1, 1).expand(x.shape[:2]) if scale.numel() == 1 else scale).contiguous()


_E4M3 = torch.float8_e4m3fn
_OUT = frozenset({torch.bfloat16, torch.float16, torch.float32})
_LARGEST_HEAD = 256


def _reference(q, k, v, scales, causal, scale):
    """(out, lse) by the formula, of the numbers that e4m3 holds: the error of having rounded to them is not in it."""
    return _exact(*_meant(q, k, v, scales), causal, scale)


def _meant(q, k, v, scales):
    """Q, K and V of float64 as they are meant, times their scales."""
    return [x * by.double()[:, :, None, None] for x, by in zip((q, k, v), scales, strict=True)]


_LEAST_NORMAL = 2.0**-14
"""e4m3's, of a row's largest weight, 256: weights below are rounded as if they were as large."""


def _spread(q, k, v, scales, causal, scale):
    """(out's, None): of the terms p_ij v_jd that out_id is a sum of, each rounded with P, the root of the squares' sum.

    An earlier block's weights are rounded by a maximum that is at most the row's: what they lose is no more.
    """
    parts = []
    for q_i, k_i, v_i in _by_groups(*_meant(q, k, v, scales)):
        p = torch.softmax(_scores(q_i, k_i, causal, scale), dim=-1)
        if p.shape[-1]:
            unseen = p == 0
            p = p.clamp_(min=_LEAST_NORMAL * p.amax(dim=-1, keepdim=True)).masked_fill_(unseen, 0.0)
        parts.append((p.square_() @ v_i.square()).sqrt_())
    return torch.cat(parts).view(q.shape), None


def _in_bf16(attention):
    """A peer that computes in bf16 what it could have had in the first place: it is not timed at converting to it."""

    def prepare(q, k, v, scales, causal, scale):
        q, k, v = (
            (x.float() * by[:, :, None, None]).to(torch.bfloat16) for x, by in zip((q, k, v), scales, strict=True)
        )
        return lambda: attention(q=q, k=k, v=v, causal=causal, scale=scale)

    return Peer(prepare)


def _inputs(problem: Case, device, generator):
    b, h, g, length, s, d = (problem[name] for name in ("b", "h", "g", "l", "s", "d"))

    def draw(*shape):
        return torch.randn(shape, device=device, generator=generator).to(_E4M3)

    def scale(heads):
        return 0.5 + torch.rand((b, heads), device=device, generator=generator)

    # Scales in one tuple, for none is to be infinite: of out times infinity the signs of rounding errors would count.
    tensors = {"q": draw(b, h, length, d), "k": draw(b, g, s, d), "v": draw(b, g, s, d)}
    return tensors | {
        "scales": (scale(h), scale(g), scale(g)),
        "causal": problem["causal"],
        "scale": d**-0.5,
    }


def _bytes(problem: Case) -> dict[str, int]:
    b, h, g, length, s, d = (problem[name] for name in ("b", "h", "g", "l", "s", "d"))
    keys = b * g * s * d
    return {"q": b * h * length * d, "k": keys, "v": keys, "out": 2 * b * h * length * d, "lse": 4 * b * h * length}


_sized = functools.partial(_case_sized, "fp8e4m3")


def _cases(gpu: GPU) -> list[Case]:
    cases = [
        _sized("16 384 tokens of a model 2048 wide", causal, b=16384 // length, h=2048 // d, l=length, d=d)
        for d, length in ((128, 1024), (128, 4096), (128, 16384), (64, 16384), (256, 16384))
        for causal in (False, True)
    ]
    cases.append(_sized("32 heads share 8 of keys", True, b=4, h=32, g=8, l=4096, d=128))
    return [c for c in cases if sum(_bytes(c).values()) <= gpu.memory_bytes // 64]


_SHAPES = (
    # Few rows: of large magnitudes a row may hang on which of two scores is larger, and tensor cores have 14 bits.
    ((3, 3, 3, 3, 5, 64, False), "a few queries and keys of several heads, no mask: hard inputs reach all alike"),
    ((1, 1, 1, 1, 2, 128, False), "one query"),
    ((1, 2, 2, 70, 70, 64, True), "a diagonal, and tails on both sides"),
    ((1, 4, 2, 50, 90, 128, True), "more keys than queries; of four heads two share each of two of keys"),
    ((2, 2, 1, 130, 200, 128, False), "several blocks of queries and of keys, tails on both sides"),
    ((1, 1, 1, 200, 333, 64, True), "blocks of keys that only the later of two groups of queries sees"),
    ((1, 1, 1, 128, 256, 64, False), "whole blocks"),
    ((1, 1, 1, 90, 50, 80, True), "more queries than keys under a mask; heads of no power of two"),
    ((1, 1, 1, 24, 140, 256, True), "the largest head"),
    ((1, 2, 1, 33, 65, 7, False), "rows of 7 bytes, which no descriptor describes"),
)
_EDGE_CASES = tuple(
    _sized(reason, causal, b=b, h=h, g=g, l=length, s=s, d=d) for (b, h, g, length, s, d, causal), reason in _SHAPES
)


_HUGE_CASES = (
    _sized("offsets into queries beyond 2^31", False, b=1, h=2**13 + 8, g=1, l=2**11, s=64, d=128),
    _sized("offsets into keys beyond 2^31, within a head", False, b=1, h=1, l=64, s=2**24 + 3, d=128),
)


def _shared(config: Config, problem: Case) -> int:
    """Bytes of shared memory of ``tiled``: the queries, and two blocks of keys a stage; V's once more, transposed."""
    columns = (2 * config["num_stages"] + 1) * config["BLOCK_N"]
    return (config["BLOCK_M"] + columns) * _block_d(problem["d"]) + config["BLOCK_M"] * config["BLOCK_N"] + 2048


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot launch, or cannot be the best; ``""`` for one worth a trial."""
    rows, columns, threads = config["BLOCK_M"], config["BLOCK_N"], 32 * config["num_warps"]
    if reason := _too_much(_shared(config, problem), gpu):
        return reason
    if gpu.functional:
        return "" if (rows, columns, threads) == (64, 64, 128) else "more programs than the interpreter has time for"
    d = _block_d(problem["d"])
    sums = d if d > 128 else 2 * d  # of the block and of all blocks
    live = rows * (sums + columns) // threads
    if not 64 <= live <= 160:
        return f"{live} sums and scores a thread: registers spill, or too little work"
    return "" if rows >= 16 * config["num_warps"] else "a warp multiplies at least 16 rows"


_SPACE = {"BLOCK_M": (64, 128), "BLOCK_N": (32, 64, 128), "num_warps": (4, 8), "num_stages": (2,)}

# The first that fits.
_DEFAULTS = ((128, 64, 8, 2), (64, 64, 4, 2), (128, 32, 8, 2), (64, 32, 4, 2))


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    configs = [dict(zip(_SPACE, values, strict=True)) for values in _DEFAULTS]
    return next((config for config in configs if not _fits(config, problem, gpu)), configs[-1])


def _handles(problem: Case, gpu: GPU) -> str:
    """Why no variant takes a case on a GPU: ``tl.dot`` of e4m3 does not compile there."""
    return "" if gpu.functional or Capability.FP8 in gpu.capabilities else f"{gpu.name} has no {Capability.FP8}"


_HOPPER_SPACE = {"CONSUMERS": (2, 3), "STAGES": (2, 3, 4), "PINGPONG": (False, True)}


def _fits_hopper(config: Config, problem: Case, gpu: GPU) -> str:
    if reason := _too_much(hopper.shared_bytes(config, problem["d"]), gpu):
        return reason
    if config["CONSUMERS"] == 3 and problem["d"] > 64:
        return "three groups have 160 registers a thread, which would spill"
    return "" if config["STAGES"] == _stages(problem) else "shared memory holds more blocks of keys"


def _stages(problem: Case) -> int:
    return 4 if problem["d"] == 64 else 3


def _hopper_default(problem: Case, gpu: GPU) -> dict[str, int]:
    return {"CONSUMERS": 2, "STAGES": _stages(problem), "PINGPONG": False}


DECLARATION = Declaration(
    name="attention_fp8",
    family="attention",
    summary="out = softmax(scale Q K^T) V of fp8 heads, with their scales, causal or not, and log-sum-exp",
    function=attention_fp8,
    call=lambda function, inputs: function(
        inputs["q"],
        inputs["k"],
        inputs["v"],
        *inputs["scales"],
        is_causal=inputs["causal"],
        scale=inputs["scale"],
        enable_gqa=True,
    ),
    dtypes=("fp8e4m3",),
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out", "lse"),
        variants=(
            Variant(
                name="gluon",
                summary="a warp that loads and groups of warps that multiply; V transposed before (Hopper alone)",
                launch=_launch_hopper,
                space=_HOPPER_SPACE,
                default=_hopper_default,
                fits=_fits_hopper,
                handles=functools.partial(_for_hopper, hopper.HEADS),
                needs=_HOPPER,
                follows="tiled",
            ),
            Variant(
                name="tiled",
                summary="a block of queries a program; keys and values through pointers, masks on the diagonal alone",
                launch=_launch_tiled,
                space=_SPACE,
                default=_default,
                fits=_fits,
                handles=_handles,
            ),
        ),
        peers={
            "torch": _in_bf16(_torch),
            "cudnn": _in_bf16(_by("CUDNN_ATTENTION")),
            "flash": _in_bf16(_by("FLASH_ATTENTION")),
        },
        bytes=_bytes,
        flops=_products("Q K^T", "P V"),
        reduction=lambda c: c["d"] + c["s"],
        spread=_spread,
    ),
)
