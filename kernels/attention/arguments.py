"""What every function of attention does with its arguments first: checks, autocast, a scale above 0, empty tensors."""

import math

import torch
from atlas.operators import autocast, autocasting, shaped

from .cases import LARGEST_HEAD
from .declaration import DECLARATION
from .operators import rows_contiguous


def checked(name, query, key, value, dims, layout, heads_at, grouped):
    """The three tensors as kernels take them, value's heads of any size; raises for what is not supported."""
    if autocasting():
        query, key, value = autocast("scaled_dot_product_attention", query, key, value)
    DECLARATION.dtype_of(query, key, value, function=name)
    if not query.dim() == key.dim() == value.dim() == dims:
        raise NotImplementedError(
            f"{name} takes tensors of {dims} dimensions, {layout}: {tuple(query.shape)}, {tuple(key.shape)}, "
            f"{tuple(value.shape)}; reshape them, or use torch"
        )
    if query.device != key.device or query.device != value.device:
        raise ValueError(f"{name} takes tensors of one device: {query.device}, {key.device}, {value.device}")
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        raise ValueError(f"{name}: shapes do not agree: {shapes}")
    if max(query.shape[-1], value.shape[-1]) > LARGEST_HEAD:
        raise NotImplementedError(f"{name} takes heads of up to {LARGEST_HEAD}: {shapes}; use torch")
    heads, heads_k = query.shape[heads_at], key.shape[heads_at]
    if heads != heads_k and not (grouped and heads_k and heads % heads_k == 0):
        raise ValueError(
            f"{name} takes as many heads of key and value as of query, or with enable_gqa=True a number that divides "
            f"them: {shapes}"
        )
    return rows_contiguous(query), rows_contiguous(key), rows_contiguous(value)


def batched(name, query, key, value, enable_gqa):
    """:func:`checked` of tensors (batch, heads, length, head_dim) of one batch, as :func:`in_four` gives them.

    One head of key and value is all queries' without ``enable_gqa``, too: torch broadcasts it.
    """
    grouped = enable_gqa or (key.dim() == 4 and key.shape[1] == 1)
    return checked(name, query, key, value, 4, "(batch, heads, length, head_dim)", 1, grouped)


def in_one_batch(query, key, value):
    """Whether the three have four dimensions and one batch, as kernels take them."""
    return query.dim() == key.dim() == value.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0]


def in_four(name, query, key, value):
    """(query, key, value, leading): the three as (batch, heads, length, head_dim), and what out has before its length.

    Dimensions before the heads are the batch and are broadcast, as torch's function does; tensors of two have one head.
    """
    given = query, key, value
    dims = [x.dim() for x in given]
    if min(dims) < 2:
        raise ValueError(f"{name} takes tensors of two dimensions and more, (..., length, head_dim): {_shapes(given)}")
    heads = [x if x.dim() > 2 else x.unsqueeze(0) for x in given]
    batch = []
    for place in range(max(dims), 3, -1):
        sizes = {x.shape[-place] for x in given if x.dim() >= place} - {1}
        if len(sizes) > 1:
            raise ValueError(f"{name}: the dimensions before the heads cannot be broadcast: {_shapes(given)}")
        batch.append(sizes.pop() if sizes else 1)
    leading = (*batch, heads[0].shape[-3]) if max(dims) > 2 else ()
    return *(in_batch(x, batch) for x in heads), leading


def _shapes(tensors):
    return ", ".join(str(tuple(x.shape)) for x in tensors)


def as_given(leading, out, lse):
    """out and lse of what :func:`in_four` gave, in the dimensions of what it was given."""
    return shaped(out, (*leading, *out.shape[2:])), shaped(lse, (*leading, lse.shape[2]))


def narrowed(out, columns):
    """The first columns of a result, without the others' memory, and like any result no view."""
    return out if out.shape[-1] == columns else out[..., :columns].clone()


def in_batch(x, batch):
    """A tensor whose dimensions before the last three are broadcast to ``batch``, as one."""
    return x.expand(*batch, *x.shape[-3:]).reshape(math.prod(batch), *x.shape[-3:])


def window_of(name, window, is_causal, len_q, len_k):
    """(left, right) of a window as kernels take it: keys on either side, the query's own among them, 0 for all.

    ``len_q`` of them on the left, or ``len_k`` on the right, are all for a window aligned to the first query and key.
    """
    left, right = (None, None) if window is None else window
    for reach in (left, right):
        if reach is not None and not (isinstance(reach, int) and reach >= -1):
            raise ValueError(
                f"{name}: a window is (keys before, keys after), each -1 or None for all of them: {window}"
            )
    left, right = (0 if reach is None else reach + 1 for reach in (left, right))
    right = 1 if is_causal else right
    return 0 if left >= len_q else left, 0 if right > 1 and right >= len_k else right


def scaled(query, scale):
    """(query, scale > 0) of the same scores: rows' maxima are taken before scores are scaled."""
    scale = scale_of(query, scale)
    if 0 < scale < math.inf:
        return query, scale
    if -math.inf < scale < 0:
        return -query, -scale
    return query * scale, 1.0  # 0, infinite, or NaN: scores are what the product of the two is


def one_wide(*heads):
    """Heads of no elements as such of one, 0: their scores are all 0, and kernels take them."""
    return (torch.nn.functional.pad(x, (0, 1)) for x in heads)


def one_size(query, key, value):
    """The three with zeros behind the narrower heads: scores are the same, out has columns of 0 behind value's own."""
    columns = max(query.shape[-1], value.shape[-1])
    return (torch.nn.functional.pad(x, (0, columns - x.shape[-1])) for x in (query, key, value))


def scale_of(query, scale):
    """The scale that a call means."""
    return (query.shape[-1] or 1) ** -0.5 if scale is None else float(scale)


def empty(query, key, value, rows):
    """Attention to nothing, or of nothing: 0 and -inf, with gradients of 0, whatever the inputs hold."""
    never = torch.zeros((), dtype=torch.bool, device=query.device)
    if value.shape[-1] != query.shape[-1]:
        query = query[..., :1].expand(*query.shape[:-1], value.shape[-1])
    out = torch.where(never, query, 0.0) + torch.where(never, key.sum() + value.sum(), 0.0)
    return out, torch.full(rows, -math.inf, dtype=torch.float32, device=query.device)
