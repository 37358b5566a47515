"""What a user would run instead: torch's function with the mask, flash attention's window, compiled flex_attention.

Masks are brought beforehand into the form in which a peer is fastest: numbers to add for torch, which makes them of
bools at every call, and a table of blocks for flex_attention, which then leaves empty ones out.
"""

import functools

import torch
from atlas.declaration import Case, Peer
from atlas.declaration.peers import MAX_AUTOTUNE

from .cases import seen_through


def _as_added(q, k, mask, left, right):
    """Mask and window as numbers to add in q's dtype; None for none."""
    seen = seen_through(q.shape[2], k.shape[2], left, right, q.device)
    if seen is not None:
        if mask is None or mask.dtype == torch.bool:
            mask = seen if mask is None else seen & mask
        else:
            mask = mask.masked_fill(~seen, -torch.inf)
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, -torch.inf)


def _by_torch(backend=None):
    def prepare(q, k, v, mask, scale, left, right):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        added, grouped = _as_added(q, k, mask, left, right), q.shape[1] != k.shape[1]

        def attention(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, added, scale=scale, enable_gqa=grouped)

        def alone(q, k, v):
            try:
                with sdpa_kernel(getattr(SDPBackend, backend)):
                    return attention(q, k, v)
            except RuntimeError as error:
                if "No available kernel" in str(error) or "No viable backend" in str(error):
                    raise NotImplementedError(f"torch's {backend} does not take these inputs") from error
                raise

        return alone if backend else attention

    return prepare


def _by_flash(q, k, v, mask, scale, left, right):
    reach = {"window_size_left": left - 1, "window_size_right": right - 1}  # -1 is all

    def attention(q, k, v):
        rows = (x.transpose(1, 2) for x in (q, k, v))
        lengths = q.shape[2], k.shape[2]
        out, *_ = torch.ops.aten._flash_attention_forward(
            *rows, None, None, *lengths, 0.0, False, False, scale=scale, **reach
        )
        return out.transpose(1, 2)

    return attention


def _has_window(problem: Case) -> str:
    if problem["mask"] != "none" or problem["l"] != problem["s"]:
        return "flash attention takes no mask, and aligns windows to the last query and key"
    return ""


def _by_flex(q, k, v, mask, scale, left, right, mode=None):
    from torch.nn.attention import flex_attention as flex

    lengths, grouped = (q.shape[2], k.shape[2]), q.shape[1] != k.shape[1]
    one = [size == 1 for size in (mask.shape if mask is not None else ())]

    def value(b, h, i, j):
        return mask[tuple(0 if alike else at for alike, at in zip(one, (b, h, i, j), strict=True))]

    def seen(b, h, i, j):
        found = j - i < right if right else j >= 0
        found = found & (i - j < left) if left else found
        return found & value(b, h, i, j) if mask is not None and mask.dtype == torch.bool else found

    added = mask is not None and mask.dtype != torch.bool
    blocks = None
    if not added or left or right:
        batches = (mask.shape[0] if mask.shape[0] > 1 else None) if mask is not None and not added else None
        blocks = flex.create_block_mask(seen, batches, None, *lengths, device=q.device)
    score_mod = (lambda score, b, h, i, j: score + value(b, h, i, j)) if added else None
    if mode is None:  # else what was prepared before for the same case stays compiled
        torch._dynamo.reset()
    compiled = torch.compile(flex.flex_attention, dynamic=False, mode=mode)
    return lambda q, k, v: compiled(q, k, v, score_mod, blocks, scale=scale, enable_gqa=grouped)


def _in_16_bits(problem: Case) -> str:
    return "" if problem.dtype in ("fp16", "bf16") else "for 16 bits"


def _tuned(problem: Case) -> str:
    few = problem["left"] >= 1024 or problem["mask"] == "added"
    return _in_16_bits(problem) or ("" if few else "tunes for seconds: done on few cases")


def _forward(prepare, **others):
    def prepared(q, k, v, **parameters):
        attention = prepare(q, k, v, **parameters)
        if others.get("compiles"):
            attention(q, k, v)
        return lambda: attention(q, k, v)

    return Peer(prepared, **others)


def _backward(prepare, **others):
    def prepared(q, k, v, mask, dout, scale, left, right, **saved):
        import torch._functorch.config as functorch

        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        with functorch.patch(donated_buffer=False):  # or there is one gradient of one forward pass
            out = prepare(*leaves, mask=mask, scale=scale, left=left, right=right)(*leaves)
            thunk = lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)  # noqa: E731
            thunk()
        return thunk

    return Peer(prepared, **others)


_WAYS = {
    "torch": (_by_torch(), {}),
    "efficient": (_by_torch("EFFICIENT_ATTENTION"), {}),
    "cudnn": (_by_torch("CUDNN_ATTENTION"), {}),
    "flash": (_by_flash, {"handles": _has_window}),
    "flex": (_by_flex, {"handles": _in_16_bits, "compiles": True}),
    "flex max-autotune": (
        functools.partial(_by_flex, mode=MAX_AUTOTUNE),
        {"handles": _tuned, "compiles": True, "searches": True},
    ),
}

FORWARD_PEERS = {name: _forward(prepare, **others) for name, (prepare, others) in _WAYS.items()}
BACKWARD_PEERS = {name: _backward(prepare, **others) for name, (prepare, others) in _WAYS.items()}
