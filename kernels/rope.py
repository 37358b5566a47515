"""Rotary position embedding: each pair of elements of a head is rotated by an angle that grows with the token's place.

With c, s the cosine and sine of the angle of token and pair,

    out_1 = x_1 c - x_2 s,    out_2 = x_2 c + x_1 s

The pairs of a head of d elements are (j, j + d/2) in Llama and GPT-NeoX ("halves"), (2 j, 2 j + 1) in GPT-J
("interleaved").  Backward is the same with -s: a rotation's transpose is its inverse; nothing but the angles is kept.

Reads x and writes out, N elements each, and the tables of angles, which all heads of a token share.  A handful of
operations an element: memory bounds it, so queries and keys go in one launch, heads are read where they lie, through
their strides, and each element's partner is in the same thread.  Arithmetic is fp32 whatever the dtype.
"""

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
from atlas.operators import Differentiable, Operator, launch

__all__ = ["rope", "rope_qk"]


@triton.jit
def _block_of(block, seq, heads, BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, HEADS_INNER: tl.constexpr):
    """(batch, tokens [BLOCK_S * BLOCK_H], heads [same]) of a block; blocks are counted as they lie in memory.

    Heads run faster than tokens, so that neighbouring rows share their angles.
    """
    blocks_s, blocks_h = tl.cdiv(seq, BLOCK_S), tl.cdiv(heads, BLOCK_H)
    if HEADS_INNER:
        first_h, outer = block % blocks_h * BLOCK_H, block // blocks_h
        first_s, batch = outer % blocks_s * BLOCK_S, outer // blocks_s
    else:
        first_s, outer = block % blocks_s * BLOCK_S, block // blocks_s
        first_h, batch = outer % blocks_h * BLOCK_H, outer // blocks_h
    rows = tl.arange(0, BLOCK_S * BLOCK_H)
    return batch.to(tl.int64), (first_s + rows // BLOCK_H).to(tl.int64), (first_h + rows % BLOCK_H).to(tl.int64)


@triton.jit
def _rotate_block(
    x_ptr, out_ptr, cos_ptr, sin_ptr, block, seq, heads,
    stride_xb, stride_xs, stride_xh, stride_ob, stride_os, stride_oh, stride_cb, stride_cs, stride_cn,
    HALF: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr,
    HEADS_INNER: tl.constexpr, INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Rotate BLOCK_H heads of BLOCK_S tokens, a row of the tile each; BLOCK_D >= HALF pairs.  EVEN: none is masked."""
    batch, offs_s, offs_h = _block_of(block, seq, heads, BLOCK_S, BLOCK_H, HEADS_INNER)
    offs_n = tl.arange(0, BLOCK_D)[None, :]
    mask_m = ((offs_s < seq) & (offs_h < heads))[:, None]
    mask = None if EVEN else mask_m & (offs_n < HALF)
    angles = (batch * stride_cb + offs_s * stride_cs)[:, None] + offs_n * stride_cn
    x_ptrs = x_ptr + (batch * stride_xb + offs_s * stride_xs + offs_h * stride_xh)[:, None]
    out_ptrs = out_ptr + (batch * stride_ob + offs_s * stride_os + offs_h * stride_oh)[:, None]
    if INTERLEAVED:
        # Whole rows in vectors; the pairs are taken apart and joined again within threads.
        offs_d = tl.arange(0, 2 * BLOCK_D)[None, :]
        mask_d = None if EVEN else mask_m & (offs_d < 2 * HALF)
        x = tl.load(x_ptrs + offs_d, mask=mask_d).to(tl.float32)
        first, second = tl.split(tl.reshape(x, (BLOCK_S * BLOCK_H, BLOCK_D, 2)))
    else:
        first = tl.load(x_ptrs + offs_n, mask=mask).to(tl.float32)
        second = tl.load(x_ptrs + HALF + offs_n, mask=mask).to(tl.float32)
    cos = tl.load(cos_ptr + angles, mask=mask).to(tl.float32)
    sin = tl.load(sin_ptr + angles, mask=mask).to(tl.float32)
    if INVERSE:
        sin = -sin
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    if INTERLEAVED:
        turned = tl.reshape(tl.join(turned_first, turned_second), (BLOCK_S * BLOCK_H, 2 * BLOCK_D))
        tl.store(out_ptrs + offs_d, turned, mask=mask_d)
    else:
        tl.store(out_ptrs + offs_n, turned_first, mask=mask)
        tl.store(out_ptrs + HALF + offs_n, turned_second, mask=mask)


@triton.jit
def _rope_kernel(
    q_ptr, q_out_ptr, k_ptr, k_out_ptr, cos_ptr, sin_ptr, blocks_q, seq, heads_q, heads_k,
    stride_qb, stride_qs, stride_qh, stride_qob, stride_qos, stride_qoh,
    stride_kb, stride_ks, stride_kh, stride_kob, stride_kos, stride_koh, stride_cb, stride_cs, stride_cn,
    HALF: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_SQ: tl.constexpr, BLOCK_HQ: tl.constexpr,
    BLOCK_SK: tl.constexpr, BLOCK_HK: tl.constexpr, HEADS_INNER: tl.constexpr, INTERLEAVED: tl.constexpr,
    INVERSE: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The first ``blocks_q`` programs own a block of queries each, the others one of keys.

    ``k_ptr`` may be None.  A program loads all of its block before it stores any, and stores where it loaded:
    ``q_out_ptr`` may be ``q_ptr``.
    """
    pid = tl.program_id(0)
    if pid < blocks_q:
        _rotate_block(
            q_ptr, q_out_ptr, cos_ptr, sin_ptr, pid, seq, heads_q,
            stride_qb, stride_qs, stride_qh, stride_qob, stride_qos, stride_qoh, stride_cb, stride_cs, stride_cn,
            HALF, BLOCK_D, BLOCK_SQ, BLOCK_HQ, HEADS_INNER, INTERLEAVED, INVERSE, EVEN,
        )  # fmt: skip
    elif k_ptr is not None:  # settled when compiled: without keys there is nothing to compile
        _rotate_block(
            k_ptr, k_out_ptr, cos_ptr, sin_ptr, pid - blocks_q, seq, heads_k,
            stride_kb, stride_ks, stride_kh, stride_kob, stride_kos, stride_koh, stride_cb, stride_cs, stride_cn,
            HALF, BLOCK_D, BLOCK_SK, BLOCK_HK, HEADS_INNER, INTERLEAVED, INVERSE, EVEN,
        )  # fmt: skip


def _launch(q, k, cos, sin, interleaved, heads_first, *, config):
    return _launch_outputs(q, k, cos, sin, interleaved, heads_first, False, config)


def _launch_backward(dq_out, dk_out, cos, sin, interleaved, heads_first, *, config):
    return _launch_outputs(dq_out, dk_out, cos, sin, interleaved, heads_first, True, config)


def _launch_outputs(q, k, cos, sin, interleaved, heads_first, inverse, config):
    """Like the inputs, strides included, as far as these leave no gaps."""
    q_out, k_out = torch.empty_like(q), None if k is None else torch.empty_like(k)
    _launch_into(q, k, q_out, k_out, cos, sin, interleaved, heads_first, inverse, config)
    return q_out if k is None else (q_out, k_out)


def _launch_into(q, k, q_out, k_out, cos, sin, interleaved, heads_first, inverse, config):
    batch, seq, heads_q, head_dim = _sizes(q, heads_first)
    heads_k = 0 if k is None else _sizes(k, heads_first)[2]
    half, angles = head_dim // 2, _angle_strides(cos, head_dim, interleaved)
    block_d = triton.next_power_of_2(half)
    rows = _rows(config, block_d, q.element_size())
    (block_sq, block_hq), (block_sk, block_hk) = (_block(rows, heads, config) for heads in (heads_q, heads_k))
    blocks_q = batch * triton.cdiv(seq, block_sq) * triton.cdiv(heads_q, block_hq)
    blocks_k = batch * triton.cdiv(seq, block_sk) * triton.cdiv(heads_k, block_hk)
    whole = seq % block_sq == 0 and heads_q % block_hq == 0 and seq % block_sk == 0 and heads_k % block_hk == 0
    if blocks_q + blocks_k and half:
        launch(
            _rope_kernel, (blocks_q + blocks_k,), q, q_out, k, k_out, cos, sin, blocks_q, seq, heads_q, heads_k,
            *_strides(q, heads_first), *_strides(q_out, heads_first),
            *_strides(k, heads_first), *_strides(k_out, heads_first), *angles,
            HALF=half, BLOCK_D=block_d, BLOCK_SQ=block_sq, BLOCK_HQ=block_hq, BLOCK_SK=block_sk, BLOCK_HK=block_hk,
            HEADS_INNER=_heads_inner(q, heads_first), INTERLEAVED=interleaved, INVERSE=inverse,
            EVEN=whole and block_d == half, num_warps=config["num_warps"],
        )  # fmt: skip


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


def _rows(config, block_d, size):
    """Rows of a tile: VECTORS 16-byte vectors of each half a thread."""
    return max(1, 32 * config["num_warps"] * config["VECTORS"] * VECTOR_BYTES // (block_d * size))


def _block(rows, heads, config):
    """(tokens, heads) of a tile of ``rows``, at most HEADS heads and no more than there are, up to a power of two."""
    block_h = min(rows, config["HEADS"], triton.next_power_of_2(max(heads, 1)))
    return rows // block_h, block_h


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
    Operator(
        "rope", f"(Tensor x, {_FLAGS}, bool inverse) -> Tensor",
        run=_run, fake=lambda x, *rest: torch.empty_like(x),
    ),
    _setup,
    _pull_back,
)  # fmt: skip
_rope_qk = Differentiable(
    Operator(
        "rope_qk", f"(Tensor q, Tensor k, {_FLAGS}, bool inverse) -> (Tensor, Tensor)",
        run=_run_qk, fake=lambda q, k, *rest: (torch.empty_like(q), torch.empty_like(k)),
    ),
    _setup_qk,
    _pull_back_qk,
)  # fmt: skip
_rope_in_place = Operator(
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
    if x.requires_grad and torch.is_grad_enabled():
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


def _fits(config: dict, problem: Case, gpu: GPU) -> str:
    size, block_d = element_size(problem.dtype), triton.next_power_of_2(problem["head_dim"] // 2)
    if config["HEADS"] > 1:
        if config["HEADS"] > _rows(config, block_d, size):
            return "more heads than rows in a tile"
        if config["HEADS"] >= 2 * max(problem["heads"], problem["kv_heads"]):
            return "a tile with room for twice the heads there are"
    return ""


def _default(problem: Case, gpu: GPU) -> dict:
    """One vector of each half a thread, of four warps; as many heads together as lie together."""
    config = {"VECTORS": 1, "HEADS": 1, "num_warps": 4}
    if not problem["heads_first"]:
        fitting = [heads for heads in _SPACE["HEADS"] if not _fits(config | {"HEADS": heads}, problem, gpu)]
        config["HEADS"] = fitting[-1]
    return config


_SPACE = {"VECTORS": (1, 2), "HEADS": (1, 4, 16), "num_warps": (2, 4, 8)}


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


def _variants(run):
    return (
        Variant(
            name="blocks",
            summary="tiles of some heads of some tokens; q and k in one launch",
            launch=run,
            space=_SPACE,
            default=_default,
            fits=_fits,
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
