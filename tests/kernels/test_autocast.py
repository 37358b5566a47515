"""Public functions under torch.autocast: dtypes, values and gradients of torch's functions of the same name.

On the CPU torch has fewer rules than on a GPU, where the same test runs with its own (``tests/gpu``).
"""

import pytest
import torch
from atlas.operators import autocast as cast
from atlas.operators import autocast_rule
from torch.nn import functional

import kernels

H = torch.bfloat16
TARGET = torch.arange(16) % 12


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def loss(reduction, **more):
    return (
        lambda x: kernels.cross_entropy(x * 1, TARGET, reduction=reduction, **more),
        lambda x: functional.cross_entropy(x, TARGET, reduction=reduction),
        (randn(16, 12, dtype=H),),
    )


CALLS = {
    "linear": (kernels.linear, functional.linear, (randn(16, 32), randn(12, 32), randn(12))),
    "linear of 16 bits with weights in fp32": (
        kernels.linear, functional.linear, (randn(16, 32, dtype=H), randn(12, 32), randn(12)),
    ),
    "linear with an activation": (
        lambda *t: kernels.linear(*t, activation="gelu"),
        lambda *t: functional.gelu(functional.linear(*t)),
        (randn(16, 32), randn(12, 32), randn(12)),
    ),
    "matmul": (kernels.matmul, torch.matmul, (randn(16, 32), randn(32, 12))),
    "bmm": (kernels.bmm, torch.bmm, (randn(2, 16, 32), randn(2, 32, 12))),
    "attention": (
        kernels.scaled_dot_product_attention, functional.scaled_dot_product_attention,
        (randn(1, 2, 16, 32), randn(1, 2, 17, 32)[:, :, :16], randn(1, 2, 16, 32)),
    ),
    "softmax": (lambda x: kernels.softmax(x, -1), lambda x: torch.softmax(x, -1), (randn(16, 32, dtype=H),)),
    "layer_norm": (
        lambda x, w: kernels.layer_norm(x, (32,), w), lambda x, w: functional.layer_norm(x, (32,), w),
        (randn(16, 32), randn(32)),
    ),
    "rms_norm": (
        lambda x, w: kernels.rms_norm(x, (32,), w, 1e-6), lambda x, w: functional.rms_norm(x, (32,), w, 1e-6),
        (randn(16, 32), randn(32)),
    ),
    "layer_norm_linear": (
        kernels.layer_norm_linear,
        lambda x, w, c, g: functional.linear(functional.layer_norm(x, (32,), g), w, c),
        (randn(16, 32), randn(12, 32), randn(12), randn(32)),
    ),
    "cross_entropy": loss("mean"),
    "cross_entropy of each row": loss("none"),
    "cross_entropy with its gradient in place": loss("mean", inplace_gradient=True),
    "linear_cross_entropy": (
        lambda x, w: kernels.linear_cross_entropy(x, w, TARGET),
        lambda x, w: functional.cross_entropy(functional.linear(x, w), TARGET),
        (randn(16, 32), randn(12, 32)),
    ),
    "linear_cross_entropy of each row": (
        lambda x, w: kernels.linear_cross_entropy(x, w, TARGET, reduction="none"),
        lambda x, w: functional.cross_entropy(functional.linear(x, w), TARGET, reduction="none"),
        (randn(16, 32), randn(12, 32)),
    ),
    "sum": (lambda x: kernels.sum(x, -1), lambda x: x.sum(-1), (randn(16, 32, dtype=H),)),
    "mean": (lambda x: kernels.mean(x, -1), lambda x: x.mean(-1), (randn(16, 32, dtype=H),)),
    "multiply_add": (kernels.multiply_add, torch.addcmul, (randn(16, 32), randn(16, 31 + 1), randn(16, 32))),
    "gelu": (kernels.gelu, functional.gelu, (randn(16, 32, dtype=H),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_dtypes_values_and_gradients_are_torch_s(name):
    *functions, given = CALLS[name]
    results = []
    for function in functions:
        tensors = [tensor.clone().requires_grad_() for tensor in given]
        with torch.autocast("cpu", H):
            out = function(*tensors)
        (out.float() * torch.linspace(0.5, 1.5, out.numel()).view(out.shape)).sum().backward()
        results.append((out.detach(), [tensor.grad for tensor in tensors]))
    (found, gradients), (expected, theirs) = results
    assert found.dtype == expected.dtype
    assert [gradient.dtype for gradient in gradients] == [gradient.dtype for gradient in theirs]
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(gradients, theirs, rtol=4e-2, atol=4e-2)


def test_a_loss_under_autocast_is_not_rounded_to_16_bits():
    x = randn(16, 12, dtype=H)
    with torch.autocast("cpu", H):
        found = kernels.cross_entropy(x, TARGET)
    torch.testing.assert_close(found, functional.cross_entropy(x.float(), TARGET))


def test_a_backward_inside_the_context_is_that_of_the_forward():
    """Products of a launcher or of a gradient must not be cast a second time."""
    x, w = randn(16, 32).requires_grad_(), randn(12, 32).requires_grad_()
    inside, outside = [], []
    for gradients, within in ((inside, True), (outside, False)):
        with torch.autocast("cpu", H):
            out = kernels.linear(x, w, activation="gelu").float().sum()
            gradients += torch.autograd.grad(out, (x, w), retain_graph=True) if within else ()
        gradients += () if within else torch.autograd.grad(out, (x, w))
    assert all(torch.equal(*pair) for pair in zip(inside, outside, strict=True))


def test_packed_weights_take_what_a_norm_in_fp32_gives():
    layer = kernels.pack_w8(randn(64, 64, dtype=H))
    with torch.autocast("cpu", H):
        assert kernels.linear_w8a16(randn(4, 64), layer).dtype == H
    with pytest.raises(TypeError, match="float32"):
        kernels.linear_w8a16(randn(4, 64), layer)


def test_what_autocast_does_not_touch_stays():
    x, double, index = randn(3), randn(3).double(), torch.arange(3)
    assert cast("linear", x, double, index, None) == (x, double, index, None)  # outside
    with torch.autocast("cpu", H):
        found = cast("linear", x, double, index, None, x.to("meta"))
        assert found[0].dtype == H and found[1] is double and found[2] is index and found[3] is None
        assert found[4].dtype == torch.float32  # of another device
        assert cast("addcmul", x.to(H), x.to(torch.float16), x.to(H))[0].dtype == H  # no rule on the CPU
        assert autocast_rule("softmax.int", torch.device("cpu")) is None
        assert autocast_rule("linear", torch.device("cuda")) is None  # the context is the CPU's
        with torch.autocast("cpu", enabled=False):
            assert cast("linear", x)[0] is x


def test_a_compiled_function_casts_as_the_eager_one():
    x, w = randn(16, 32), randn(12, 32)
    function = torch.compile(lambda x: kernels.linear(x, w), fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", H):
        torch.testing.assert_close(function(x), kernels.linear(x, w))
    assert function(x).dtype == torch.float32
