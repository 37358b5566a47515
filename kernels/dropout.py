"""Dropout fused with a residual: out = residual + x / (1 - p) where an element is kept, residual where it is dropped.

Every element is dropped with probability p, independently.  Forward reads x and residual and writes out, N elements
each (2 N without a residual); backward is dx = dout / (1 - p) where kept and 0 elsewhere, 2 N, and dresidual = dout.
The mask is drawn again in the backward pass and never stored.

Element i of its tensor, in row-major order, is kept or dropped by 32 random bits that depend on the seed and i alone:
the (i % 4)-th number of call i // 4 of Philox 4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
2011).  A call an element, as is usual, costs four times the arithmetic, more than memory leaves time for.  A thread
draws the numbers of the very neighbours that it loads at once, so no number changes threads.
"""

import itertools
import threading

import torch
import triton
import triton.language as tl
from atlas.declaration import Declaration, Pass, Random, Variant, cases, elementwise, peers
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import Differentiable, Operator, constant_result, contiguous, launch
from torch._subclasses.fake_tensor import DynamicOutputShapeException

ROUNDS = tl.constexpr(7)
"""Rounds of Philox: the fewest that pass every test of BigCrush (Salmon et al., table 2).  Ten, as torch takes, are
40 % more arithmetic in kernels that have no time to spare for it.  Which elements are kept hangs on it."""


@triton.jit
def _philox(seed, call):
    """Four blocks of 32 random bits, those of ``tl.randint4x(seed, call, ROUNDS)``; ``call`` is of 64 bits.

    A widening product gives both halves by one instruction; tl.umulhi and a product take two (Triton 3.7, sm_90).
    """
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    c0, c1 = call.to(tl.uint32), (call >> 32).to(tl.uint32)
    c2, c3 = c0 * 0, c0 * 0
    for _ in tl.static_range(ROUNDS):
        product0 = c0.to(tl.uint64) * 0xD2511F53
        product2 = c2.to(tl.uint64) * 0xCD9E8D57
        c0, c1 = (product2 >> 32).to(tl.uint32) ^ c1 ^ k0, product2.to(tl.uint32)
        c2, c3 = (product0 >> 32).to(tl.uint32) ^ c3 ^ k1, product0.to(tl.uint32)
        k0 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False)
        k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3


@triton.jit
def _bits(seed, first_call, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """32 random bits, as int32, for each of BLOCK elements: four by each call from ``first_call`` on.

    A thread loads WIDTH neighbours at once, 4 or 8, and here makes the one or two calls for them.
    """
    if WIDTH == 4:
        a, b, c, d = _philox(seed, first_call + tl.arange(0, BLOCK // 4))
    else:
        calls = first_call + 2 * tl.arange(0, BLOCK // 8)
        a, b, c, d = _philox(seed, calls)
        e, f, g, h = _philox(seed, calls + 1)
        a, b, c, d = tl.join(a, e), tl.join(b, f), tl.join(c, g), tl.join(d, h)
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [BLOCK]).to(tl.int32, bitcast=True)


@triton.jit
def _drop(
    x_ptr, residual_ptr, out_ptr, offs, mask, seed, first_call, threshold, scale,
    HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """BLOCK elements from load to store; the loads come first, to be under way while numbers are drawn."""
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + offs, mask=mask).to(tl.float32)
    keep = _bits(seed, first_call, BLOCK, WIDTH) >= threshold
    out = tl.where(keep, x * scale, 0.0)
    if HAS_RESIDUAL:
        out += residual
    tl.store(out_ptr + offs, out, mask=mask)


@triton.jit(do_not_specialize=["seed", "threshold"])
def _dropout_kernel(
    x_ptr, residual_ptr, out_ptr, n_elements, seed: tl.int64, threshold: tl.int32, scale,
    HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK consecutive elements.

    All programs but the last mask nothing: so they access 16 bytes at once whatever n_elements is.
    """
    pid = tl.program_id(0).to(tl.int64)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    first_call = pid * (BLOCK // 4)
    if (pid + 1) * BLOCK <= n_elements:
        _drop(x_ptr, residual_ptr, out_ptr, offs, None, seed, first_call, threshold, scale, HAS_RESIDUAL, BLOCK, WIDTH)
    else:
        mask = offs < n_elements
        _drop(x_ptr, residual_ptr, out_ptr, offs, mask, seed, first_call, threshold, scale, HAS_RESIDUAL, BLOCK, WIDTH)


def _launch(x, residual, p, seed, *, config):
    out = torch.empty_like(x)
    launch(
        _dropout_kernel, (triton.cdiv(x.numel(), config["BLOCK"]),),
        x, residual, out, x.numel(), seed, _threshold(p), _scale(p),
        HAS_RESIDUAL=residual is not None, BLOCK=config["BLOCK"], WIDTH=VECTOR_BYTES // x.element_size(),
        num_warps=config["num_warps"],
    )  # fmt: skip
    return out


def _launch_backward(dout, p, seed, *, config):
    return _launch(dout, None, p, seed, config=config)


def _threshold(p):
    """The int32 below which, out of 2^32 equally probable ones, a share of p lies."""
    return min(round(p * 2**32), 2**32 - 1) - 2**31


def _scale(p):
    """1 / (1 - p), so that the expectation stays what it was; 0 where nothing is to be kept.

    At p = 1 one number in 2^32 is past the largest threshold there is: 0 times its element is 0 as well.
    """
    return 1.0 / (1.0 - p) if p < 1 else 0.0


def _reference(x, residual, p, seed, mask):
    return residual + _backward_reference(x, p, seed, mask)


def _backward_reference(dout, p, seed, mask):
    return torch.where(mask, dout, 0.0) / (1 - p)


def _torch(x, residual, p, seed):
    return residual + torch.nn.functional.dropout(x, p)


def _torch_dropout(x, p, seed):
    return torch.nn.functional.dropout(x, p)


def _of_ones(peer):
    """A peer of the backward pass that is given an x, too: the autograd graph it makes of it is not timed."""
    return peers.Peer(lambda dout, **others: peer.prepare(x=torch.ones_like(dout), dout=dout, **others), peer.requires,
                peer.compiles)  # fmt: skip


_P = 0.1
"""The probability that models train with; p is no matter of speed."""

_SEED = 20_260_101
"""In all cases: every seed costs the same."""


def _away_from_zero(problem, device, generator):
    """Normal numbers moved away from 0 by 1: whichever is kept shows in the sum with a residual below 1."""
    drawn = cases.normal(problem, device, generator)(problem["m"], problem["n"])
    return torch.copysign(drawn.abs() + 1, drawn)


def _probability(problem):
    """Of the huge cases 0: torch, whose mask is another one, is what these are compared with."""
    return _P if problem["m"] * problem["n"] < 2**31 else 0.0


def _inputs(problem, device, generator):
    x = _away_from_zero(problem, device, generator)
    residual = 2 * torch.rand(x.shape, dtype=x.dtype, device=device, generator=generator) - 1
    return {"x": x, "residual": residual, "p": _probability(problem), "seed": _SEED}


def _backward_inputs(problem, device, generator):
    return {"dout": _away_from_zero(problem, device, generator), "p": _probability(problem), "seed": _SEED}


def _variant(launcher):
    """A variant that begins with one 16-byte vector a thread: while one draws numbers, others load."""
    return Variant(
        name="blocks",
        summary="one block of consecutive elements a program, four by each call of Philox",
        launch=launcher,
        space=elementwise.SPACE | {"num_warps": (1, 2, 4, 8)},
        default=elementwise.default(vectors=1),
        fits=elementwise.fits(1, 4),
    )


DECLARATION = Declaration(
    name="dropout",
    family="elementwise",
    summary="out = residual + x / (1 - p) where kept, residual elsewhere",
    cases=cases.sweep(
        "m n",
        {
            "bf16": (
                (128, 1024),  # the launch is the cost
                (4096, 1024),
                (8192, 2048),
                (4096, 5120),  # hidden sizes of language models
                (8192, 4096),
                (8192, 8192),
                (4096, 11008),
                (16384, 16384),  # 1.5 GiB of traffic
                (1021, 50257),  # an odd number of elements
            ),
            "fp16": ((4096, 1024), (4096, 5120), (8192, 8192)),
            "fp32": ((4096, 1024), (4096, 5120), (8192, 8192)),
        },
        tensors=3,
    ),
    edge_cases=cases.edge_cases(
        "m n",
        (
            (1, 1, "one element: three numbers of its call are not used"),
            (3, 5, "fewer elements than a program's; the last call decides on three"),
            (1, 2049, "a block and one element"),
            (2, 2048, "whole blocks, no tail"),
            (8, 1500, "elements enough to see a keep rate that is 3 % off; several blocks and a tail"),
        ),
    ),
    huge_cases=(cases.case("bf16", "offsets beyond 2^31, and a tail", m=1, n=2**31 + 7),),
    call=lambda function, inputs: function(inputs["x"], inputs["p"], residual=inputs["residual"], seed=inputs["seed"]),
    differentiable=("x", "residual"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out",),
        variants=(_variant(_launch),),
        peers={"torch": peers.eager(_torch), "torch.compile": peers.compiled(_torch)},
        bytes=cases.traffic("x", "residual", "out"),
        flops=lambda c: {"scale": c["m"] * c["n"], "add": c["m"] * c["n"]},
        random=Random("seed", "p", lambda inputs, outputs: outputs[0] != inputs["residual"]),
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dx",),
        variants=(_variant(_launch_backward),),
        peers={
            "torch": _of_ones(peers.gradients(_torch_dropout, ("x",), "dout")),
            "torch.compile": _of_ones(peers.compiled_gradients(_torch_dropout, ("x",), "dout")),
        },
        bytes=cases.traffic("dout", "dx"),
        flops=lambda c: {"scale": c["m"] * c["n"]},
        random=Random("seed", "p", lambda inputs, outputs: outputs[0] != 0),
    ),
)


def _case_of(x, *_):
    n = x.shape[-1] if x.dim() else 1
    return cases.case(DECLARATION.dtype_of(x), m=x.numel() // n, n=n)


_forward = Operator(
    DECLARATION,
    "forward",
    "(Tensor x, Tensor? residual, float p, SymInt seed) -> Tensor",
    case_of=_case_of,
    varying=("seed",),
)
_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor dout, float p, SymInt seed) -> Tensor",
    case_of=_case_of,
    varying=("seed",),
)


def _keep_mask(ctx, inputs, output):
    """What the mask is drawn from again is all that backward needs."""
    ctx.p, ctx.seed = inputs[-2:]


def _pull_back(ctx, dout):
    if dout is None:
        return None, None, None, None
    dx = _masked(contiguous(dout), ctx.p, ctx.seed) if ctx.needs_input_grad[0] else None
    return dx, dout if ctx.needs_input_grad[1] else None, None, None


def _pull_back_masked(ctx, dout):
    """The gradient of the gradient: both drop the same elements, so it is the same function."""
    return None if dout is None else _masked(contiguous(dout), ctx.p, ctx.seed), None, None


_dropout = Differentiable(_forward, setup_context=_keep_mask, backward=_pull_back)
_masked = Differentiable(_backward, setup_context=_keep_mask, backward=_pull_back_masked)


class _Scratch(threading.local):
    """A place of each thread's own for a seed that is drawn: to allocate one takes longer than to draw."""

    seed: torch.Tensor | None = None


_scratch = _Scratch()

_modes = torch._C._len_torch_dispatch_stack
"""How many there are that want to see operators: one of fake tensors, which have no number to draw, or a tracer."""


def _draw_seed(*_):
    """A seed from the CPU's default generator; nothing waits for a GPU."""
    if _scratch.seed is None:  # made here, where no mode sees operators; what one of inference makes is of no use later
        with torch.inference_mode(False):
            _scratch.seed = torch.empty((), dtype=torch.int64, device="cpu")
    return _scratch.seed.random_().item()


# Under torch.compile a number that differs from call to call must come from an operator.  Inductor takes none without a
# tensor, and two calls with equal arguments count as one expression: so each has the number of its place in the graph.
_library = torch.library.Library(_forward.op.namespace, "FRAGMENT")
_library.define(
    "dropout_seed(Tensor like, int place) -> SymInt",
    tags=(torch.Tag.nondeterministic_seeded, torch.Tag.pt2_compliant_tag),
)
_library.impl("dropout_seed", _draw_seed, "CompositeExplicitAutograd")


def _fake_seed(like, place):
    """Some number; where no size may be unknown (under a plain FakeTensorMode) one that nobody reads."""
    try:
        return torch.library.get_ctx().new_dynamic_size(min=0)
    except DynamicOutputShapeException:
        return 0


torch.library.register_fake(f"{_library.ns}::dropout_seed", _fake_seed, lib=_library)
_seed_operator = getattr(torch.ops, _library.ns).dropout_seed
_places = itertools.count()


@constant_result
def _place():
    """Another number for every call that is traced."""
    return next(_places)


@DECLARATION.public
def dropout(
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    residual: torch.Tensor | None = None,
    seed: int | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.dropout(input, p, training)``, plus ``residual`` where one is given; fp32, fp16 or bf16.

    ``residual`` has the input's shape, dtype and device.  ``seed``, an int of 64 bits, says which elements are dropped:
    the same ones for a seed, a p and a shape, whatever the layout and the GPU.  None draws one from torch's default
    generator of the CPU (``torch.manual_seed``), without waiting for a device.  A CUDA graph repeats the seed that it
    was captured with.

    What is dropped is 0 even where the input is NaN or infinite.  Inputs that are not contiguous are copied first, and
    the result is contiguous.  Without training, or with p = 0, nothing is dropped and the result is
    ``input`` or ``input + residual``.  Raises TypeError for other dtypes; ValueError for a p outside [0, 1], a
    seed of more than 64 bits and a residual of another shape or device.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout takes a probability p in [0, 1]: {p}")
    elementwise.check(DECLARATION, *((input,) if residual is None else (input, residual)))
    if not training or p == 0 or not input.numel():
        return input if residual is None else input + residual
    if seed is None:
        seed = _seed_operator(input, _place()) if torch.compiler.is_compiling() or _modes() else _draw_seed()
    else:
        seed = seed if isinstance(seed, int) else int(seed)  # NumPy's, say
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"dropout takes a seed of 64 bits, sign included: {seed}")
    return _dropout(input.contiguous(), None if residual is None else residual.contiguous(), float(p), seed)
