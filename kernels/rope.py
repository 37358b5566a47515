"""Rotary position embedding: each pair of elements of a head is rotated by an angle that grows with the token's place.

With c, s the cosine and sine of the angle of token and pair,

    out_1 = x_1 c - x_2 s,    out_2 = x_2 c + x_1 s

The pairs of a head of d elements are (j, j + d/2) in Llama and GPT-NeoX ("halves"), (2 j, 2 j + 1) in GPT-J
("interleaved").  Backward is the same with -s: a rotation's transpose is its inverse; nothing but the angles is kept.

Reads x and writes out, N elements each, and the tables of angles, which all heads of a token share.  A handful of
operations an element: memory bounds it, so queries and keys go in one launch, heads are read where they lie, through
their strides, and each element's partner is in the same thread.  Arithmetic is fp32 whatever the dtype.
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
    torch_dtype,
)
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import CustomOperator, Differentiable, derivative_wanted, launch

__all__ = ["rope", "rope_qk"]


@triton.jit
def _rotate_lanes(
    x_ptr, out_ptr, cos_ptr, sin_ptr, block, batches, seq, heads,
    stride_xb, stride_xs, stride_xh, stride_ob, stride_os, stride_oh, stride_cb, stride_cs, stride_cn,
    HALF: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
    HEADS_INNER: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """Rotate LANES lanes, WIDTH neighbouring pairs that one thread loads at once, HALF // WIDTH of them to a head.

    Lanes are counted through all heads as these lie in memory, so that whatever the head's size none is idle.
    """
    lane = block * LANES + tl.arange(0, LANES)
    row, first = lane // (HALF // WIDTH), lane % (HALF // WIDTH) * WIDTH
    if HEADS_INNER:
        offs_h, outer = row % heads, row // heads
        offs_s, offs_b = outer % seq, outer // seq
    else:
        offs_s, outer = row % seq, row // seq
        offs_h, offs_b = outer % heads, outer // heads
    mask = (offs_b < batches)[:, None]
    offs_b, offs_s, offs_h = offs_b.to(tl.int64), offs_s.to(tl.int64), offs_h.to(tl.int64)
    pairs = tl.arange(0, WIDTH)[None, :]
    angles = (offs_b * stride_cb + offs_s * stride_cs)[:, None] + (first[:, None] + pairs) * stride_cn
    x_ptrs = x_ptr + (offs_b * stride_xb + offs_s * stride_xs + offs_h * stride_xh)[:, None]
    out_ptrs = out_ptr + (offs_b * stride_ob + offs_s * stride_os + offs_h * stride_oh)[:, None]
    if INTERLEAVED:
        offs_d = 2 * first[:, None] + tl.arange(0, 2 * WIDTH)[None, :]
        x = tl.load(x_ptrs + offs_d, mask=mask).to(tl.float32)
        one, two = tl.split(tl.reshape(x, (LANES, WIDTH, 2)))
    else:
        offs_d = first[:, None] + pairs
        one = tl.load(x_ptrs + offs_d, mask=mask).to(tl.float32)
        two = tl.load(x_ptrs + HALF + offs_d, mask=mask).to(tl.float32)
    cos = tl.load(cos_ptr + angles, mask=mask).to(tl.float32)
    sin = tl.load(sin_ptr + angles, mask=mask).to(tl.float32)
    if INVERSE:
        sin = -sin
    turned_one = one * cos - two * sin
    turned_two = two * cos + one * sin
    if INTERLEAVED:
        turned = tl.reshape(tl.join(turned_one, turned_two), (LANES, 2 * WIDTH))
        tl.store(out_ptrs + offs_d, turned, mask=mask)
    else:
        tl.store(out_ptrs + offs_d, turned_one, mask=mask)
        tl.store(out_ptrs + HALF + offs_d, turned_two, mask=mask)


@triton.jit
def _rope_kernel(
    q_ptr, q_out_ptr, k_ptr, k_out_ptr, cos_ptr, sin_ptr, blocks_q, batches, seq, heads_q, heads_k,
    stride_qb, stride_qs, stride_qh, stride_qob, stride_qos, stride_qoh,
    stride_kb, stride_ks, stride_kh, stride_kob, stride_kos, stride_koh, stride_cb, stride_cs, stride_cn,
    HALF: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
    HEADS_INNER: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    """The first ``blocks_q`` programs own LANES lanes of queries each, the others as many of keys.

    ``k_ptr`` may be None.  A program loads all of its lanes before it stores any, and stores where it loaded:
    ``q_out_ptr`` may be ``q_ptr``.  ALIGNED: rows of the tables begin on whole lanes, which no stride of 40 tells.
    """
    if ALIGNED:
        stride_cb, stride_cs = stride_cb // WIDTH * WIDTH, stride_cs // WIDTH * WIDTH
    pid = tl.program_id(0)
    if pid < blocks_q:
        _rotate_lanes(
            q_ptr, q_out_ptr, cos_ptr, sin_ptr, pid, batches, seq, heads_q,
            stride_qb, stride_qs, stride_qh, stride_qob, stride_qos, stride_qoh, stride_cb, stride_cs, stride_cn,
            HALF, LANES, WIDTH, HEADS_INNER, INTERLEAVED, INVERSE,
        )  # fmt: skip
    elif k_ptr is not None:  # settled when compiled: without keys there is nothing to compile
        _rotate_lanes(
            k_ptr, k_out_ptr, cos_ptr, sin_ptr, pid - blocks_q, batches, seq, heads_k,
            stride_kb, stride_ks, stride_kh, stride_kob, stride_kos, stride_koh, stride_cb, stride_cs, stride_cn,
            HALF, LANES, WIDTH, HEADS_INNER, INTERLEAVED, INVERSE,
        )  # fmt: skip


def _launch(q, k, cos, sin, interleaved, heads_first, *, config):
    return _launch_outputs(q, k, cos, sin, interleaved, heads_first, False, config)


def _launch_backward(dq_out, dk_out, cos, sin, interleaved, heads_first, *, config):
    return _launch_outputs(dq_out, dk_out, cos, sin, interleaved, heads_first, True, config)


def _launch_into(q, k, q_out, k_out, cos, sin, interleaved, heads_first, inverse, config):
    batch, seq, heads_q, head_dim = _sizes(q, heads_first)
    heads_k = 0 if k is None else _sizes(k, heads_first)[2]
    half, angles = head_dim // 2, _angle_strides(cos, head_dim, interleaved)
    width = _width(half, q.element_size(), interleaved)
    lanes = 32 * config["num_warps"] * config["VECTORS"]
    blocks_q, blocks_k = (triton.cdiv(batch * seq * heads * half // width, lanes) for heads in (heads_q, heads_k))
    if blocks_q + blocks_k:
        launch(
            _rope_kernel, (blocks_q + blocks_k,), q, q_out, k, k_out, cos, sin, blocks_q, batch, seq, heads_q, heads_k,
            *_strides(q, heads_first), *_strides(q_out, heads_first),
            *_strides(k, heads_first), *_strides(k_out, heads_first), *angles,
            HALF=half, LANES=lanes, WIDTH=width, ALIGNED=angles[0] % width == 0 and angles[1] % width == 0,
            HEADS_INNER=_heads_inner(q, heads_first), INTERLEAVED=interleaved, INVERSE=inverse,
            num_warps=config["num_warps"],
        )  # fmt: skip


def _width(half, size, interleaved):
    """Pairs of a lane: a 16-byte vector of each half, or of both elements, or less that divides a head."""
    return math.gcd(half, VECTOR_BYTES // size // (2 if interleaved else 1))


def _launch_outputs(q, k, cos, sin, interleaved, heads_first, inverse, config):
    """Like the inputs, strides included, as far as these leave no gaps."""
    q_out, k_out = torch.empty_like(q), None if k is None else torch.empty_like(k)
    _launch_into(q, k, q_out, k_out, cos, sin, interleaved, heads_first, inverse, config)
    return q_out if k is None else (q_out, k_out)


def _sizes(x, heads_first):
    """(batch, seq, heads, head_dim)."""
    batch, seq, heads, head_dim = x.shape
    return (batch, heads, seq, head_dim) if heads_first else (batch, seq, heads, head_dim)


def _strides(x, heads_first):
    """Of batch, seq and heads; zeros where there is no tensor."""
    if x is None:
        return 0, 0, 0
    batch, seq, heads, _ = x.stride()
    return (batch, heads, seq) if heads_first else (batch, seq, heads)


def _heads_inner(x, heads_first):
    """Whether the heads of a token lie closer together than the tokens of a head."""
    _, stride_s, stride_h = _strides(x, heads_first)
    return stride_h <= stride_s


def _angle_strides(cos, head_dim, interleaved):
    """Of batch, seq and pairs, in a table of [seq, ...] or [batch or 1, seq, ...]."""
    stride_b = cos.stride(0) if cos.dim() == 3 and cos.shape[0] > 1 else 0
    twice = interleaved and cos.shape[-1] == head_dim  # each angle stands twice, side by side
    return stride_b, cos.stride(-2), cos.stride(-1) * (2 if twice else 1)


def _run(x, cos, sin, interleaved, heads_first, inverse):
    return _launched(x, None, cos, sin, interleaved, heads_first, inverse)


def _run_qk(q, k, cos, sin, interleaved, heads_first, inverse):
    return _launched(q, k, cos, sin, interleaved, heads_first, inverse)


def _run_in_place(x, cos, sin, interleaved, heads_first):
    _, config = _chosen("forward", x, None, interleaved, heads_first)
    _launch_into(x, None, x, None, cos, sin, interleaved, heads_first, False, config)


def _launched(q, k, cos, sin, interleaved, heads_first, inverse):
    variant, config = _chosen("backward" if inverse else "forward", q, k, interleaved, heads_first)
    return variant.launch(q, k, cos, sin, interleaved, heads_first, config=config)


def _chosen(direction, q, k, interleaved, heads_first):
    batch, seq, heads, head_dim = _sizes(q, heads_first)
    problem = case(
        _NAMES[q.dtype], batch=batch, seq=seq, heads=heads, kv_heads=0 if k is None else _sizes(k, heads_first)[2],
        head_dim=head_dim, interleaved=interleaved, heads_first=not _heads_inner(q, heads_first),
    )  # fmt: skip
    return choose(DECLARATION, direction, problem, q.device)


def _setup(ctx, inputs, output):
    _, cos, sin, *ctx.flags = inputs
    ctx.save_for_backward(cos, sin)


def _pull_back(ctx, dy):
    cos, sin = ctx.saved_tensors
    interleaved, heads_first, inverse = ctx.flags
    # Linear in dy and differentiable itself, so derivatives of any order come from the same kernel.
    return _rope(_readable(dy), cos, sin, interleaved, heads_first, not inverse), *(None,) * 5


def _setup_qk(ctx, inputs, output):
    _, _, cos, sin, *ctx.flags = inputs
    ctx.save_for_backward(cos, sin)


def _pull_back_qk(ctx, dq, dk):
    cos, sin = ctx.saved_tensors
    interleaved, heads_first, inverse = ctx.flags
    rest = (cos, sin, interleaved, heads_first, not inverse)
    if dq is None or dk is None:  # only one of the results was used
        alone = [None if grad is None else _rope(_readable(grad), *rest) for grad in (dq, dk)]
        return *alone, *(None,) * 5
    return *_rope_qk(_readable(dq), _readable(dk), *rest), *(None,) * 5


_FLAGS = "Tensor cos, Tensor sin, bool interleaved, bool heads_first"
_rope = Differentiable(
    CustomOperator(
        "rope", f"(Tensor x, {_FLAGS}, bool inverse) -> Tensor",
        run=_run, fake=lambda x, *rest: torch.empty_like(x),
    ),
    _setup,
    _pull_back,
)  # fmt: skip
_rope_qk = Differentiable(
    CustomOperator(
        "rope_qk", f"(Tensor q, Tensor k, {_FLAGS}, bool inverse) -> (Tensor, Tensor)",
        run=_run_qk, fake=lambda q, k, *rest: (torch.empty_like(q), torch.empty_like(k)),
    ),
    _setup_qk,
    _pull_back_qk,
)  # fmt: skip
_rope_in_place = CustomOperator(
    "rope_", f"(Tensor(a!) x, {_FLAGS}) -> ()", run=_run_in_place, fake=lambda x, *rest: None
)  # fmt: skip


def rope(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
    heads_first: bool = False,
    inplace: bool = False,
) -> torch.Tensor:
    """``x`` of shape (batch, seq, heads, head_dim) with each pair of elements rotated, in fp32, fp16 or bf16.

    With ``heads_first`` the shape is (batch, heads, seq, head_dim); sizes cannot tell, since seq may equal heads.
    ``cos`` and ``sin`` are tables of shape (seq, ...) or (batch or 1, seq, ...) in fp32 or the dtype of ``x``, with
    head_dim / 2 columns, or head_dim of which each angle's first is read: as Llama and GPT-NeoX have them, twice one
    after the other, or, ``interleaved``, twice side by side.  They have no gradient.

    Any strides are read where they are, a last dimension with gaps is copied first; the result has the strides of
    ``x`` as far as these leave no gaps.  ``inplace`` writes it over ``x`` and returns ``x``.  Raises TypeError for
    dtypes, ValueError for shapes, devices or tables that want a gradient, and with ``inplace`` RuntimeError for an
    ``x`` that wants one or whose last dimension has gaps.
    """
    cos, sin = _checked("rope", x, cos, sin, heads_first)
    if not inplace:
        return _rope(_readable(x), cos, sin, interleaved, heads_first, False)
    if derivative_wanted(x):
        raise RuntimeError("rope: inplace=True has no gradient; call it under torch.no_grad() or with inplace=False")
    if x.stride(-1) != 1:
        raise RuntimeError(f"rope: inplace=True takes heads of consecutive elements: strides {x.stride()}")
    _rope_in_place(x, cos, sin, interleaved, heads_first)
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(x)  # so that whoever saved x for a gradient learns of it
    return x


def rope_qk(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
    heads_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(rope(q, …), rope(k, …))`` in one launch; ``k`` may have another number of heads.  Arguments as :func:`rope`.

    Raises what :func:`rope` does, and ValueError or TypeError where ``k`` does not go with ``q``.
    """
    cos, sin = _checked("rope_qk", q, cos, sin, heads_first)
    if k.dtype != q.dtype:
        raise TypeError(f"rope_qk takes q and k of one dtype: {q.dtype}, {k.dtype}")
    heads = 1 if heads_first else 2
    if k.dim() != 4 or k.device != q.device or any(k.shape[i] != q.shape[i] for i in range(4) if i != heads):
        raise ValueError(
            f"rope_qk takes q and k that differ in dimension {heads}, the heads, alone: "
            f"{tuple(q.shape)} on {q.device}, {tuple(k.shape)} on {k.device}"
        )
    return _rope_qk(_readable(q), _readable(k), cos, sin, interleaved, heads_first, False)


def _checked(name, x, cos, sin, heads_first):
    """(cos, sin), of equal strides; raises as :func:`rope` says."""
    if x.dtype not in _NAMES or not cos.dtype == sin.dtype or cos.dtype not in (x.dtype, torch.float32):
        raise TypeError(
            f"{name} takes {', '.join(_DTYPES)} with tables of that dtype or fp32: {x.dtype}, {cos.dtype}, {sin.dtype}"
        )
    if x.dim() != 4 or x.shape[3] % 2 or not x.shape[3]:
        raise ValueError(f"{name} takes 4 dimensions, the last of an even size: {tuple(x.shape)}")
    seq, head_dim = x.shape[2 if heads_first else 1], x.shape[3]
    batches = (1, x.shape[0])
    if (
        cos.shape != sin.shape
        or cos.dim() not in (2, 3)
        or cos.shape[-2] != seq
        or cos.shape[-1] not in (head_dim, head_dim // 2)
        or (cos.dim() == 3 and cos.shape[0] not in batches)
    ):
        raise ValueError(
            f"{name}: cos {tuple(cos.shape)} and sin {tuple(sin.shape)} are not (seq, head_dim / 2 or head_dim) with "
            f"seq = {seq}, head_dim = {head_dim}, as x {tuple(x.shape)} with heads_first={heads_first} has them"
        )
    if not x.device == cos.device == sin.device:
        raise ValueError(f"{name} takes tensors of one device: {x.device}, {cos.device}, {sin.device}")
    if (cos.requires_grad or sin.requires_grad) and torch.is_grad_enabled():
        raise ValueError(f"{name} has no gradient for cos and sin: detach them")
    return (cos, sin) if cos.stride() == sin.stride() else (cos.contiguous(), sin.contiguous())


def _readable(x):
    return x if x.stride(-1) == 1 else x.contiguous()


_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}


def _reference(q, k, cos, sin, interleaved, heads_first):
    return _by_torch(q, k, *_as_taken(cos, sin, interleaved), interleaved, heads_first)


def _backward_reference(dq_out, dk_out, cos, sin, interleaved, heads_first):
    return _reference(dq_out, dk_out, cos, -sin, interleaved, heads_first)


def _by_torch(q, k, cos, sin, interleaved, heads_first):
    turned = [_turned(x, cos, sin, interleaved, heads_first) for x in (q, k) if x is not None]
    return turned[0] if k is None else tuple(turned)


def _turned(x, cos, sin, interleaved, heads_first):
    """As models write it: GPT-J's for pairs, Llama's for halves."""
    cos, sin = (table.unsqueeze(-3 if heads_first else -2) for table in (cos, sin))
    if interleaved:
        first, second = x[..., ::2], x[..., 1::2]
        return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _as_taken(cos, sin, interleaved):
    """The tables as models hold them: for halves each angle twice, one after the other."""
    return (cos, sin) if interleaved else tuple(torch.cat((table, table), dim=-1) for table in (cos, sin))


def _prepare_torch(q, k, cos, sin, interleaved, heads_first, function=_by_torch):
    tables = _as_taken(cos, sin, interleaved)
    return lambda: function(q, k, *tables, interleaved, heads_first)


def _prepare_compiled(**inputs):
    torch._dynamo.reset()
    thunk = _prepare_torch(**inputs, function=torch.compile(_by_torch, dynamic=False))
    thunk()
    return thunk


def _prepare_gradients(dq_out, dk_out, cos, sin, interleaved, heads_first, function=_by_torch):
    """A backward by autograd; what was rotated does not matter to it."""
    upstream = [dy for dy in (dq_out, dk_out) if dy is not None]
    leaves = [dy.detach().requires_grad_() for dy in upstream]
    q, k = (*leaves, None)[:2]
    out = function(q, k, *_as_taken(cos, sin, interleaved), interleaved, heads_first)
    return lambda: torch.autograd.grad(out, leaves, upstream, retain_graph=True)


def _prepare_compiled_gradients(**inputs):
    torch._dynamo.reset()
    # Donated buffers forbid retain_graph=True, which lets one forward serve every timed backward.
    with torch._functorch.config.patch(donated_buffer=False):
        thunk = _prepare_gradients(**inputs, function=torch.compile(_by_torch, dynamic=False))
        thunk()
    return thunk


def _prepare_liger(q, k, cos, sin, interleaved, heads_first):
    from liger_kernel.transformers.rope import liger_rotary_pos_emb

    return _by_liger(liger_rotary_pos_emb, q, k, cos, sin, interleaved, heads_first)


def _prepare_liger_backward(dq_out, dk_out, cos, sin, interleaved, heads_first):
    from liger_kernel.ops.rope import rope_backward

    return _by_liger(rope_backward, dq_out, dk_out, cos, sin, interleaved, heads_first)


def _by_liger(function, q, k, cos, sin, interleaved, heads_first):
    """Liger takes heads first and, where tokens lie first in memory, writes over its inputs: these are copies."""
    if interleaved or k is None:
        raise NotImplementedError("Liger rotates halves of a query and a key")
    q, k = q.clone(), k.clone()
    cos, sin = (table[None] for table in _as_taken(cos, sin, interleaved))
    if heads_first:
        return lambda: function(q, k, cos, sin)[:2]
    return lambda: tuple(x.transpose(1, 2) for x in function(q.transpose(1, 2), k.transpose(1, 2), cos, sin)[:2])


def _tensors(problem: Case, device, generator):
    """Two tensors of the shapes of q and k, the second None if there are no heads of keys."""
    dtype, heads_first = torch_dtype(problem.dtype), problem["heads_first"]

    def draw(heads):
        sizes = (heads, problem["seq"]) if heads_first else (problem["seq"], heads)
        shape = (problem["batch"], *sizes, problem["head_dim"])
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    return draw(problem["heads"]), draw(problem["kv_heads"]) if problem["kv_heads"] else None


def _tables(problem: Case, device):
    """cos and sin of every token and pair; what peers need twice they are given so, see :func:`_as_taken`."""
    half = problem["head_dim"] // 2
    frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float32, device=device) / max(half, 1))
    angles = torch.arange(problem["seq"], dtype=torch.float32, device=device)[:, None] * frequencies
    return {name: table.to(torch_dtype(problem.dtype)) for name, table in
            (("cos", angles.cos()), ("sin", angles.sin()))}  # fmt: skip


def _inputs(problem: Case, device, generator):
    q, k = _tensors(problem, device, generator)
    flags = {"interleaved": problem["interleaved"], "heads_first": problem["heads_first"]}
    return {"q": q, "k": k, **_tables(problem, device), **flags}


def _backward_inputs(problem: Case, device, generator):
    dq, dk = _tensors(problem, device, generator)
    flags = {"interleaved": problem["interleaved"], "heads_first": problem["heads_first"]}
    return {"dq_out": dq, "dk_out": dk, **_tables(problem, device), **flags}


def _call(function, inputs):
    q, k, cos, sin, interleaved, heads_first = inputs.values()
    if k is None:
        return rope(q, cos, sin, interleaved=interleaved, heads_first=heads_first)
    return function(q, k, cos, sin, interleaved=interleaved, heads_first=heads_first)


def _case(dtype, reason, batch, seq, heads, kv_heads, head_dim, interleaved=False, heads_first=False):
    return case(
        dtype, reason, batch=batch, seq=seq, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        interleaved=interleaved, heads_first=heads_first,
    )  # fmt: skip


def _cases(gpu: GPU) -> list[Case]:
    shapes = {
        "bf16": (
            (16, 1, 32, 8, 128),  # decoding: the launch is the cost
            (1, 2048, 32, 8, 128),  # Llama 3 8B
            (4, 4096, 32, 8, 128),
            (4, 4096, 32, 32, 80),  # no power of two
            (8, 2048, 16, 16, 64),
            (2, 8192, 64, 8, 128),  # 70B
            (8, 8192, 32, 8, 128),  # 1.3 GiB
            (4, 4096, 32, 8, 128, False, True),  # heads first in memory
            (4, 4096, 32, 8, 128, True),
            (4, 2048, 16, 16, 256, True),  # GPT-J 6B
            (1, 2048, 32, 0, 128),  # queries alone
        ),
        "fp16": ((1, 2048, 32, 8, 128), (4, 4096, 32, 8, 128), (4, 4096, 32, 8, 128, True)),
        "fp32": ((1, 2048, 32, 8, 128), (4, 4096, 32, 8, 128), (4, 4096, 32, 8, 128, True)),
    }
    largest = gpu.memory_bytes // 8
    declared = [_case(dtype, "", *shape) for dtype, listed in shapes.items() for shape in listed]
    return [problem for problem in declared if sum(_bytes(problem).values()) <= largest]


_EDGE_CASES = tuple(
    _case(dtype, reason, *shape)
    for dtype in _DTYPES
    for shape, reason in (
        ((2, 5, 3, 1, 16), "odd numbers of tokens and heads: tiles reach past both"),
        ((1, 7, 4, 0, 24), "x alone, and heads of no power of two"),
        ((1, 1, 1, 1, 2), "one pair"),
        ((2, 16, 4, 4, 32), "whole tiles"),
        ((2, 16, 4, 3, 32), "whole tiles of queries, not of keys"),
        ((2, 5, 3, 2, 24, True), "pairs, no power of two"),
        ((1, 16, 4, 4, 32, True), "pairs, whole tiles"),
        ((2, 9, 3, 1, 16, False, True), "heads first in memory"),
        ((1, 6, 3, 0, 16, True, True), "pairs, heads first in memory"),
    )
)

# One token more than 2^31 elements hold.
_HUGE_CASES = (_case("bf16", "offsets beyond 2^31", 1, 2**19 + 1, 32, 0, 128),)


def _bytes(problem: Case) -> dict[str, int]:
    size, head = element_size(problem.dtype), problem["batch"] * problem["seq"] * problem["head_dim"]
    table = problem["seq"] * (problem["head_dim"] // 2) * size
    return {
        "q": problem["heads"] * head * size,
        "k": problem["kv_heads"] * head * size,
        "q_out": problem["heads"] * head * size,
        "k_out": problem["kv_heads"] * head * size,
        "cos": table,
        "sin": table,
    }


def _flops(problem: Case) -> dict[str, int]:
    heads = problem["heads"] + problem["kv_heads"]
    return {"rotation": 3 * heads * problem["batch"] * problem["seq"] * problem["head_dim"]}


def _handles_lanes(problem: Case, gpu: GPU) -> str:
    half = problem["head_dim"] // 2
    heads = problem["batch"] * problem["seq"] * max(problem["heads"], problem["kv_heads"])
    lanes = heads * half // _width(half, element_size(problem.dtype), problem["interleaved"])
    return f"{lanes} lanes are counted in 32 bits" if lanes >= 2**31 - 2**12 else ""


_SPACE = {"VECTORS": (1, 2, 4), "num_warps": (2, 4, 8)}


def _variants(run):
    return (
        Variant(
            name="lanes",
            summary="16-byte lanes counted through all heads as they lie in memory; q and k in one launch",
            launch=run,
            space=_SPACE,
            default=lambda problem, gpu: {"VECTORS": 1, "num_warps": 4},
            handles=_handles_lanes,
        ),
    )


DECLARATION = Declaration(
    name="rope",
    family="elementwise",
    summary="pairs of q and k rotated by position",
    function=rope_qk,
    call=_call,
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("q", "k"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("q_out", "k_out"),
        variants=_variants(_launch),
        peers={
            "torch": Peer(_prepare_torch),
            "torch.compile": Peer(_prepare_compiled, compiles=True),
            "liger": Peer(_prepare_liger, requires="liger_kernel"),
        },
        bytes=_bytes,
        flops=_flops,
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dq", "dk"),
        variants=_variants(_launch_backward),
        peers={
            "torch": Peer(_prepare_gradients),
            "torch.compile": Peer(_prepare_compiled_gradients, compiles=True),
            "liger": Peer(_prepare_liger_backward, requires="liger_kernel"),
        },
        bytes=_bytes,
        flops=_flops,
    ),
)
