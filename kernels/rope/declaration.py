"""rope as the project knows it: its cases, the least they cost, references and peers."""

import torch
from atlas.declaration import GPU, Case, Declaration, Pass, Peer, Variant, case, element_size, torch_dtype

from .rotation import SPACE, handles_lanes, launch_backward, launch_forward

_DTYPES = ("fp32", "fp16", "bf16")


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
    from . import rope  # which is made of this declaration

    q, k, cos, sin, interleaved, heads_first = inputs.values()
    if k is None:
        return rope(q, cos, sin, interleaved=interleaved, heads_first=heads_first)
    return function(q, k, cos, sin, interleaved=interleaved, heads_first=heads_first)


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


def _variants(run):
    return (
        Variant(
            name="lanes",
            summary="16-byte lanes counted through all heads as they lie in memory; q and k in one launch",
            launch=run,
            space=SPACE,
            default=lambda problem, gpu: {"VECTORS": 1, "num_warps": 4},
            handles=handles_lanes,
        ),
    )


DECLARATION = Declaration(
    name="rope",
    family="elementwise",
    summary="pairs of q and k rotated by position",
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
        variants=_variants(launch_forward),
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
        variants=_variants(launch_backward),
        peers={
            "torch": Peer(_prepare_gradients),
            "torch.compile": Peer(_prepare_compiled_gradients, compiles=True),
            "liger": Peer(_prepare_liger_backward, requires="liger_kernel"),
        },
        bytes=_bytes,
        flops=_flops,
    ),
)
