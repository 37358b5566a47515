"""Activations: gelu(x) = x Phi(x), silu(x) = x sigmoid(x), and swiglu(gate, up) = silu(gate) * up.

Phi is the normal distribution, Phi(x) = (1 + erf(x / sqrt 2)) / 2; gelu's "tanh" form is x sigmoid(2 u) with
u = sqrt(2 / pi) (x + 0.044715 x^3), since 1 + tanh u = 2 sigmoid(2 u).  With f' the derivative, backward is

    dx = dy f'(x),    dgate = dy up silu'(gate),  dup = dy silu(gate)

Forward reads x (gate, up) and writes out: 2 N bytes of elements, 3 N for swiglu.  Backward reads dy too and writes a
gradient for each input: 3 N and 5 N; f is computed again, never stored.  Memory bounds all of them if the arithmetic
stays below some thirty instructions an element (16-bit, H200); so 16-bit gelu has a Phi of its own.  Arithmetic is
fp32 whatever the dtype, rounded once.

Variants: `flat` takes whole tensors as vectors; `rows` takes rows that lie apart, above all gate and up as the two
halves of one tensor of 2 n columns.
"""

import torch
from atlas.declaration import cases, elementwise
from atlas.operators import Differentiable, Operator, as_laid_out, as_rows, contiguous

from kernels.broadcast import broadcast, is_alike

from .declaration import DECLARATION
from .flat import empty
from .references import backward_reference
from .rows import columns

__all__ = ["gelu", "silu", "swiglu"]


def _case_of(x, up, kind):
    strided = (kind == "swiglu" and up is None) or not all(t is None or t.is_contiguous() for t in (x, up))
    n = columns(x, up, kind) if x.dim() else 1
    return cases.case(DECLARATION.dtype_of(x), kind=kind, strided=strided, m=x.shape[:-1].numel(), n=n)


def _setup(ctx, inputs, output):
    x, ctx.kind = inputs
    ctx.save_for_backward(x)


def _pull_back(ctx, dy):
    (x,) = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return backward_reference(x.float(), None, dy.float(), ctx.kind).to(dy.dtype), None
    return _backward(x, contiguous(dy), ctx.kind), None


def _setup_gated(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _pull_back_gated(ctx, dy):
    gate, up = ctx.saved_tensors
    if torch.is_grad_enabled():
        dgate, dup = backward_reference(gate.float(), up.float(), dy.float(), "swiglu")
        return dgate.to(dy.dtype), dup.to(dy.dtype)
    return _gated_backward(gate, up, contiguous(dy))


_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor x, Tensor dy, str kind) -> Tensor",
    case_of=lambda x, dy, kind: _case_of(x, None, kind),
    fake=lambda x, dy, kind: empty(x),
    run=lambda launch, x, dy, kind: launch(x, None, dy, kind),
)
_forward = Differentiable(
    Operator(
        DECLARATION,
        "forward",
        "(Tensor x, str kind) -> Tensor",
        case_of=lambda x, kind: _case_of(x, None, kind),
        fake=lambda x, kind: x.new_empty((*x.shape[:-1], columns(x, None, kind)) if x.dim() else ()),
        run=lambda launch, x, kind: launch(x, None, kind),
    ),
    _setup,
    _pull_back,
)
_gated_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor gate, Tensor up, Tensor dy) -> (Tensor, Tensor)",
    name="swiglu_backward",
    case_of=lambda gate, up, dy: _case_of(gate, up, "swiglu"),
    fake=lambda gate, up, dy: (empty(gate), empty(up)),
    run=lambda launch, gate, up, dy: launch(gate, up, dy, "swiglu"),
)
_gated = Differentiable(
    Operator(
        DECLARATION,
        "forward",
        "(Tensor gate, Tensor up) -> Tensor",
        name="swiglu_forward",
        case_of=lambda gate, up: _case_of(gate, up, "swiglu"),
        fake=lambda gate, up: empty(gate),
        run=lambda launch, gate, up: launch(gate, up, "swiglu"),
    ),
    _setup_gated,
    _pull_back_gated,
)


def gelu(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """``torch.nn.functional.gelu(input, approximate=approximate)`` in fp32, fp16 or bf16, for any shape.

    ``approximate`` is "none" (by erf) or "tanh".  Permuted tensors keep their layout, rows that lie apart are read
    where they are and give a contiguous result; other layouts are copied first.  Second derivatives go through torch's
    operations.  Raises TypeError for another dtype and ValueError for another ``approximate``.
    """
    if approximate == "none":
        return _elementwise("gelu", input, "gelu")
    if approximate != "tanh":
        raise ValueError(f'gelu: approximate is "none" or "tanh": {approximate!r}')
    return _elementwise("gelu", input, "gelu_tanh")


def silu(input: torch.Tensor) -> torch.Tensor:
    """``torch.nn.functional.silu(input)`` in fp32, fp16 or bf16, for any shape; layouts and errors as :func:`gelu`."""
    return _elementwise("silu", input, "silu")


def swiglu(gate: torch.Tensor, up: torch.Tensor | None = None) -> torch.Tensor:
    """``silu(gate) * up`` for two tensors of one dtype (fp32, fp16, bf16) and device, rounded once.

    Shapes are broadcast; the result then lies as torch's does.  Without ``up``, ``gate`` is [..., 2 n] and holds both:
    gate = gate[..., :n], up = gate[..., n:]; the result is [..., n] and the gradient one tensor of 2 n columns again.
    Rows that lie apart (halves of one tensor, given as two views) are read where they are; other layouts of one shape
    are copied first, and the result is contiguous.  Second derivatives go through torch's operations.  Raises TypeError
    for other or differing dtypes, ValueError for shapes and devices.
    """
    if up is not None and not is_alike(gate, up):
        return broadcast(gate, up, None, "swiglu", function="swiglu")
    elementwise.check(DECLARATION, *((gate,) if up is None else (gate, up)), function="swiglu")
    if up is not None:
        return _gated(as_rows(gate), as_rows(up))
    if not gate.dim() or gate.shape[-1] % 2:
        raise ValueError(f"swiglu of one tensor takes an even number of columns: {tuple(gate.shape)}")
    return _forward(as_rows(gate), "swiglu")


def _elementwise(name, x, kind):
    elementwise.check(DECLARATION, x, function=name)
    return as_laid_out(lambda x: _forward(x, kind), x)


@DECLARATION.public
def activation(x: torch.Tensor, up: torch.Tensor | None, kind: str) -> torch.Tensor:
    """The function of a case's ``kind``: "silu", "gelu", "gelu_tanh" or "swiglu", which alone may have an ``up``."""
    if kind == "swiglu":
        return swiglu(x, up)
    return silu(x) if kind == "silu" else gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")
