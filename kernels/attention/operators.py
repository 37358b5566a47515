"""The operators of attention, and their gradients; of packed sequences, too, which run untuned."""

import torch
from atlas.declaration import case, gpu_of
from atlas.declaration.products import as_interpreted
from atlas.operators import CustomOperator, Differentiable, Operator, contiguous

from .backward import into_backward
from .blocks import describable_sequences
from .cases import case_of
from .declaration import DECLARATION
from .forward import into_forward
from .hopper_forward import HEADS, hopper_default
from .hopper_packed import forward_packed
from .spaces import HOPPER, TMA, describes, for_hopper


def _run_varlen(q, k, v, cu_q, cu_k, max_q, max_k, causal, scale):
    lse = torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device)
    problem, gpu = _packed_case(q, k, cu_q, max_q, max_k, causal), gpu_of(q.device)
    hopper = gpu.capabilities >= HOPPER and not for_hopper(HEADS, problem, gpu)
    if hopper and all(map(describable_sequences, (q, k, v))):
        out = torch.empty_like(q)
        config = hopper_default(problem, gpu)
        forward_packed(q, k, v, out, lse, cu_q, cu_k, max_q, max_k, causal, scale, config=config)
        return out, lse
    out = as_interpreted(torch.empty_like(q))
    descriptors, config = packed_config("forward", problem, gpu, q, k, v)
    lengths = cu_q.shape[0] - 1, max_q, max_k
    into_forward(descriptors, q, k, v, out, lse, cu_q, cu_k, lengths, causal, scale, config)
    return out.to(q.dtype), lse


def _run_varlen_backward(q, k, v, out, lse, dout, dlse, cu_q, cu_k, max_q, max_k, causal, scale):
    gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    problem = _packed_case(q, k, cu_q, max_q, max_k, causal)
    descriptors, config = packed_config("backward", problem, gpu_of(q.device), q, k, v, dout)
    lengths, saved = (cu_q.shape[0] - 1, max_q, max_k), (q, k, v, out, lse, dout, dlse)
    into_backward(descriptors, saved, gradients, cu_q, cu_k, lengths, causal, scale, config)
    return gradients


def _packed_case(q, k, cu_q, max_q, max_k, causal):
    """The case of as many sequences of the longest length, for defaults: packed sequences run untuned."""
    sizes = {"b": cu_q.shape[0] - 1, "h": q.shape[1], "g": k.shape[1], "l": max_q, "s": max_k, "d": q.shape[-1]}
    return case(DECLARATION.dtype_of(q), **sizes, causal=causal)


def packed_config(direction, problem, gpu, *tensors):
    """(whether by descriptors, the variant's untuned config)."""
    descriptors = gpu.capabilities >= TMA and not describes(problem, gpu) and all(map(describable_sequences, tensors))
    variant = DECLARATION.passes[direction].variant("descriptor" if descriptors else "tiled")
    return descriptors, variant.default(problem, gpu)


def fake_forward(q, k, v, *others):
    """(out, lse) as they will be."""
    return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def fake_varlen(q, k, v, *others):
    """The same of packed sequences."""
    return torch.empty_like(q), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def fake_backward(q, k, v, *others):
    """(dq, dk, dv) as they will be."""
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def rows_contiguous(x):
    """The tensor, copied if the elements of a head do not lie side by side."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def incoming(out, dout, dlse):
    """Gradients of out and lse as kernels take them; either may be None."""
    if dout is None:
        dout = torch.zeros_like(out)
    elif dout.stride(-1) != 1 and dout.shape[-1] != 1:
        dout = contiguous(dout)
    return dout, None if dlse is None else contiguous(dlse)


class _Once(torch.autograd.Function):
    """Gradients as they are, which hang on q, k and v in a way that nobody computes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, *gradients):
        return tuple(gradient.view_as(gradient) for gradient in gradients)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(
            "attention has no second derivatives, and none in forward mode: use torch's scaled_dot_product_attention "
            "under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
        )


def once(saved, gradients):
    """The gradients; with create_graph=True as an error to whoever differentiates them, not as constants."""
    return _Once.apply(*saved[:3], *gradients) if torch.is_grad_enabled() else gradients


def gradients_by(backward, packed=False):
    """What :class:`Differentiable` is given beside an operator (q, k, v, *others) with such an operator backward.

    That takes (q, k, v, out, lse, dout, dlse, *others).  The first two others are tensors if ``packed``, else none is.
    """
    tensors = 5 if packed else 3

    def setup(ctx, inputs, output):
        ctx.parameters = inputs[tensors:]
        ctx.save_for_backward(*inputs[:3], *output, *inputs[3:tensors])
        ctx.set_materialize_grads(False)

    def pull_back(ctx, dout, dlse):
        nothing = (None,) * (tensors - 3 + len(ctx.parameters))
        if dout is None and dlse is None:
            return None, None, None, *nothing
        kept = ctx.saved_tensors  # asked for once: checkpoints give what they compute again once
        saved, lengths = kept[:5], kept[5:]
        gradients = backward(*saved, *incoming(saved[3], dout, dlse), *lengths, *ctx.parameters)
        return *once(saved, gradients), *nothing

    return {"setup_context": setup, "backward": pull_back}


_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dout, Tensor? dlse, bool causal, float scale)"
    " -> (Tensor, Tensor, Tensor)",
    case_of=lambda q, k, v, out, lse, dout, dlse, causal, scale: case_of(q, k, causal),
    fake=fake_backward,
)
_varlen_backward = CustomOperator(
    "attention_varlen_backward",
    "(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dout, Tensor? dlse, Tensor cu_q, Tensor cu_k, "
    "int max_q, int max_k, bool causal, float scale) -> (Tensor, Tensor, Tensor)",
    run=_run_varlen_backward,
    fake=fake_backward,
)
_forward = Operator(
    DECLARATION,
    "forward",
    "(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> (Tensor, Tensor)",
    case_of=lambda q, k, v, causal, scale: case_of(q, k, causal),
    fake=fake_forward,
)
_varlen_forward = CustomOperator(
    "attention_varlen_forward",
    "(Tensor q, Tensor k, Tensor v, Tensor cu_q, Tensor cu_k, int max_q, int max_k, bool causal, float scale)"
    " -> (Tensor, Tensor)",
    run=_run_varlen,
    fake=fake_varlen,
)
attention_operator = Differentiable(_forward, **gradients_by(_backward))
varlen_operator = Differentiable(_varlen_forward, **gradients_by(_varlen_backward, packed=True))
