"""Rotary position embedding: each pair of elements of a head is rotated by an angle that grows with the token's place.

With c, s the cosine and sine of the angle of token and pair,

    out_1 = x_1 c - x_2 s,    out_2 = x_2 c + x_1 s

The pairs of a head of d elements are (j, j + d/2) in Llama and GPT-NeoX ("halves"), (2 j, 2 j + 1) in GPT-J
("interleaved").  Backward is the same with -s: a rotation's transpose is its inverse; nothing but the angles is kept.

Reads x and writes out, N elements each, and the tables of angles, which all heads of a token share.  A handful of
operations an element: memory bounds it.
"""

import torch
from atlas.declaration import case, choose
from atlas.operators import CustomOperator, Differentiable, contiguous, derivative_wanted

from .declaration import DECLARATION
from .rotation import heads_inner, launch_into, sizes

__all__ = ["rope", "rope_qk"]


def _run_in_place(x, cos, sin, interleaved, heads_first):
    _, config = _chosen("forward", x, None, interleaved, heads_first)
    launch_into(x, None, x, None, cos, sin, interleaved, heads_first, False, config)


def _launched(q, k, cos, sin, interleaved, heads_first, inverse):
    variant, config = _chosen("backward" if inverse else "forward", q, k, interleaved, heads_first)
    return variant.launch(q, k, cos, sin, interleaved, heads_first, config=config)


def _chosen(direction, q, k, interleaved, heads_first):
    batch, seq, heads, head_dim = sizes(q, heads_first)
    kv_heads = 0 if k is None else sizes(k, heads_first)[2]
    problem = case(
        DECLARATION.dtype_of(q), batch=batch, seq=seq, heads=heads, kv_heads=kv_heads,
        head_dim=head_dim, interleaved=interleaved, heads_first=not heads_inner(q, heads_first),
    )  # fmt: skip
    return choose(DECLARATION, direction, problem, q.device)


def _setup(ctx, inputs, output):
    _, cos, sin, *ctx.flags = inputs
    ctx.save_for_backward(cos, sin)


def _pull_back(ctx, dy):
    cos, sin = ctx.saved_tensors
    interleaved, heads_first, inverse = ctx.flags
    # Linear in dy and differentiable itself, so derivatives of any order come from the same kernel.
    return rope_operator(_arrived(dy), cos, sin, interleaved, heads_first, not inverse), *(None,) * 5


def _setup_qk(ctx, inputs, output):
    _, _, cos, sin, *ctx.flags = inputs
    ctx.save_for_backward(cos, sin)


def _pull_back_qk(ctx, dq, dk):
    cos, sin = ctx.saved_tensors
    interleaved, heads_first, inverse = ctx.flags
    rest = (cos, sin, interleaved, heads_first, not inverse)
    if dq is None or dk is None:  # only one of the results was used
        alone = [None if grad is None else rope_operator(_arrived(grad), *rest) for grad in (dq, dk)]
        return *alone, *(None,) * 5
    return *rope_qk_operator(_arrived(dq), _arrived(dk), *rest), *(None,) * 5


_FLAGS = "Tensor cos, Tensor sin, bool interleaved, bool heads_first"
rope_operator = Differentiable(
    CustomOperator(
        "rope", f"(Tensor x, {_FLAGS}, bool inverse) -> Tensor",
        run=lambda x, *rest: _launched(x, None, *rest), fake=lambda x, *rest: torch.empty_like(x),
    ),
    _setup,
    _pull_back,
)  # fmt: skip
rope_qk_operator = Differentiable(
    CustomOperator(
        "rope_qk", f"(Tensor q, Tensor k, {_FLAGS}, bool inverse) -> (Tensor, Tensor)",
        run=_launched, fake=lambda q, k, *rest: (torch.empty_like(q), torch.empty_like(k)),
    ),
    _setup_qk,
    _pull_back_qk,
)  # fmt: skip
in_place_operator = CustomOperator(
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
        return rope_operator(_readable(x), cos, sin, interleaved, heads_first, False)
    if derivative_wanted(x):
        raise RuntimeError("rope: inplace=True has no gradient; call it under torch.no_grad() or with inplace=False")
    if x.stride(-1) != 1:
        raise RuntimeError(f"rope: inplace=True takes heads of consecutive elements: strides {x.stride()}")
    in_place_operator(x, cos, sin, interleaved, heads_first)
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(x)  # so that whoever saved x for a gradient learns of it
    return x


@DECLARATION.public
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
    return rope_qk_operator(_readable(q), _readable(k), cos, sin, interleaved, heads_first, False)


def _checked(name, x, cos, sin, heads_first):
    """(cos, sin), of equal strides; raises as :func:`rope` says."""
    dtype = DECLARATION.dtype_of(x, function=name)
    if not cos.dtype == sin.dtype or cos.dtype not in (x.dtype, torch.float32):
        raise TypeError(f"{name} takes {dtype} with tables of {dtype} or fp32: {x.dtype}, {cos.dtype}, {sin.dtype}")
    if x.dim() != 4 or x.shape[3] % 2 or not x.shape[3]:
        raise ValueError(f"{name} takes 4 dimensions, the last of an even size: {tuple(x.shape)}")
    seq, head_dim = x.shape[2 if heads_first else 1], x.shape[3]
    if (
        cos.shape != sin.shape
        or cos.dim() not in (2, 3)
        or cos.shape[-2] != seq
        # By comparing: for torch.compile a number is not among sizes that it does not know, whatever these are.
        or (cos.shape[-1] != head_dim and cos.shape[-1] != head_dim // 2)
        or (cos.dim() == 3 and cos.shape[0] != 1 and cos.shape[0] != x.shape[0])
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


def _arrived(gradient):
    return gradient if gradient.stride(-1) == 1 else contiguous(gradient)


def _readable(x):
    return x if x.stride(-1) == 1 else x.contiguous()
