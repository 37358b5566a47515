"""The operators of products with packed weights, and their call: of 4 bits, and of 8 as `matmul_w8a16` has them."""

from atlas.declaration import case
from atlas.operators import CustomOperator, Differentiable, Operator, autocast, autocasting, shaped

from .many_rows import DEQUANTISE
from .pull import launch_pull, pulls
from .tiles import launch_dequantise


def linear_operator(declaration, bits):
    """(linear, dequantise): the differentiable operator of x [m, k] with weights of so many bits, and their operator.

    x alone has a gradient, dy times the weights.  For few rows, and for more of large ones, a kernel brings them to 16
    bits where it multiplies; for others they are written out and the product is torch's.
    """

    def case_of(x, words, scales, zeros, n, group):  # `group` 0 for one scale a row
        dtype = declaration.dtype_of(x)
        return case(dtype, m=x.shape[0], n=n, k=x.shape[1], group=group, zeros=zeros is not None)

    def run(launch, x, words, scales, zeros, n, group):
        if not x.shape[0]:
            return x.new_empty((0, n))
        scales, zeros = _aligned(scales), None if zeros is None else _aligned(zeros)
        return launch(_aligned(x), _aligned(words), scales, zeros, n, group)

    def run_dequantise(words, scales, zeros, n, k, group):
        return launch_dequantise(bits, _aligned(words), scales, zeros, n, k, group, config=DEQUANTISE)

    def keep(ctx, inputs, output):
        x, words, scales, zeros, ctx.n, ctx.group = inputs
        ctx.save_for_backward(words, scales, zeros)
        ctx.k = x.shape[1]

    def pull_back(ctx, dy):
        packed = *ctx.saved_tensors, ctx.n, ctx.k, ctx.group
        dx = pull(dy.contiguous(), *packed) if pulls(dy, ctx.k) else dy @ dequantise(*packed)
        return dx, None, None, None, None, None

    def pull_pulled(ctx, ddx):
        return linear(ddx.contiguous(), *ctx.saved_tensors, ctx.n, ctx.group), None, None, None, None, None, None

    pull = _pull_operator(declaration, bits, pull_pulled)
    dequantise = CustomOperator(
        f"{declaration.name}_dequantise",
        "(Tensor words, Tensor scales, Tensor? zeros, int n, int k, int group) -> Tensor",
        run=run_dequantise,
        fake=lambda words, scales, zeros, n, k, group: scales.new_empty((n, k)),
    )
    operator = Operator(
        declaration,
        "forward",
        "(Tensor x, Tensor words, Tensor scales, Tensor? zeros, int n, int group) -> Tensor",
        name=declaration.name,
        case_of=case_of,
        run=run,
        fake=lambda x, words, scales, zeros, n, group: x.new_empty((x.shape[0], n)),
    )
    linear = Differentiable(operator, setup_context=keep, backward=pull_back)
    return linear, dequantise


def _pull_operator(declaration, bits, backward):
    """dx [m, k] of dy [m, n] with weights of so many bits, turned to 16 bits where they are multiplied."""

    def run(dy, words, scales, zeros, n, k, group):
        if not dy.shape[0]:
            return dy.new_empty((0, k))
        numbers = _aligned(scales), None if zeros is None else _aligned(zeros)
        return launch_pull(bits, _aligned(dy), _aligned(words), *numbers, n, k, group)

    def keep(ctx, inputs, output):
        _, words, scales, zeros, ctx.n, _, ctx.group = inputs
        ctx.save_for_backward(words, scales, zeros)

    return Differentiable(
        CustomOperator(
            f"{declaration.name}_pull",
            "(Tensor dy, Tensor words, Tensor scales, Tensor? zeros, int n, int k, int group) -> Tensor",
            run=run,
            fake=lambda dy, words, scales, zeros, n, k, group: dy.new_empty((dy.shape[0], k)),
        ),
        setup_context=keep,
        backward=backward,
    )


def _aligned(tensor):
    """The tensor, copied where it does not begin on 16 bytes."""
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def call_linear(name, linear, input, packed):
    """``input`` [..., k] through a differentiable operator of ``linear_operator``, checked."""
    if autocasting():
        (input,) = autocast("linear", input)
    words, scales, zeros, n, k, group = packed
    if input.dtype != scales.dtype:
        raise TypeError(f"{name} takes an input of the dtype that was packed: {input.dtype}, {scales.dtype}")
    if not input.dim() or input.shape[-1] != k:
        raise ValueError(f"{name} takes an input of {k} features: {tuple(input.shape)}")
    if input.device != words.device:
        raise ValueError(f"{name} takes input and weights on one device: {input.device}, {words.device}")
    zeros = None if zeros is None else zeros.contiguous()
    rows = input.reshape(-1, k).contiguous()
    y = linear(rows, words.contiguous(), scales.contiguous(), zeros, n, group)
    return y if input.dim() == 2 else shaped(y, (*input.shape[:-1], n))
