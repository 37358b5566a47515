"""torch.func and forward-mode derivatives of every public function that has a gradient: as torch's own, or an error.

The operators' side of it is in ``tests/core/test_contexts.py``; here each function's gradient is tried, since the other
derivatives are taken from it.
"""

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional

import kernels

TARGET = torch.tensor([0, 3, 2])
TABLE = torch.randn(3, 2, generator=torch.Generator().manual_seed(7))


def rotated(x):
    """rope of [1, 3, 1, 4], written in torch."""
    x, (one, two) = x.view(3, 4), x.view(3, 4).chunk(2, dim=1)
    cos, sin = TABLE.cos(), TABLE.sin()
    return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=1).view(1, 3, 1, 4)


FUNCTIONS = {
    "softmax": (kernels.softmax, torch.softmax, [(3, 5)], (-1,)),
    "log_softmax": (kernels.log_softmax, torch.log_softmax, [(3, 5)], (0,)),
    "sum": (kernels.sum, torch.sum, [(3, 5)], (0,)),
    "mean": (kernels.mean, torch.mean, [(3, 5)], (-1,)),
    "amax": (kernels.amax, torch.amax, [(3, 5)], (-1,)),
    "max": (lambda x: kernels.max(x, 1)[0], lambda x: torch.max(x, 1)[0], [(3, 5)], ()),
    "gelu": (kernels.gelu, functional.gelu, [(3, 5)], ()),
    "silu": (kernels.silu, functional.silu, [(3, 5)], ()),
    "swiglu": (kernels.swiglu, lambda gate, up: functional.silu(gate) * up, [(3, 5), (3, 5)], ()),
    "linear": (kernels.linear, functional.linear, [(3, 5), (4, 5), (4,)], ()),
    "linear with gelu": (
        lambda *tensors: kernels.linear(*tensors, activation="gelu"),
        lambda *tensors: functional.gelu(functional.linear(*tensors)),
        [(3, 5), (4, 5), (4,)],
        (),
    ),
    "linear with silu and a residual": (
        lambda x, w, r: kernels.linear(x, w, activation="silu", residual=r),
        lambda x, w, r: functional.silu(functional.linear(x, w)) + r,
        [(3, 5), (4, 5), (3, 4)],
        (),
    ),
    "matmul": (kernels.matmul, torch.matmul, [(3, 5), (5, 4)], ()),
    "bmm": (kernels.bmm, torch.bmm, [(2, 3, 5), (2, 5, 4)], ()),
    "layer_norm": (
        lambda x, w, b: kernels.layer_norm(x, (5,), w, b),
        lambda x, w, b: functional.layer_norm(x, (5,), w, b),
        [(3, 5), (5,), (5,)],
        (),
    ),
    "rms_norm": (
        lambda x, w: kernels.rms_norm(x, (5,), w, 1e-6),
        lambda x, w: functional.rms_norm(x, (5,), w, 1e-6),
        [(3, 5), (5,)],
        (),
    ),
    "layer_norm_linear": (
        kernels.layer_norm_linear,
        lambda x, w, c: functional.linear(functional.layer_norm(x, (5,)), w, c),
        [(3, 5), (4, 5), (4,)],
        (),
    ),
    "cross_entropy": (kernels.cross_entropy, functional.cross_entropy, [(3, 5)], (TARGET,)),
    "linear_cross_entropy": (
        kernels.linear_cross_entropy,
        lambda x, w, target: functional.cross_entropy(functional.linear(x, w), target),
        [(3, 5), (4, 5)],
        (TARGET,),
    ),
    "embedding": (
        lambda w: kernels.embedding(torch.tensor([0, 1, 1]), w),
        lambda w: functional.embedding(torch.tensor([0, 1, 1]), w),
        [(4, 5)],
        (),
    ),
    "vector_add": (kernels.vector_add, torch.add, [(3, 5), (3, 5)], ()),
    "multiply_add": (kernels.multiply_add, torch.addcmul, [(3, 5), (3, 5), (3, 5)], ()),
    "rope": (lambda x: kernels.rope(x, TABLE.cos(), TABLE.sin()), rotated, [(1, 3, 1, 4)], ()),
    "grouped_mm": (
        lambda a, b: kernels.grouped_mm(a, b, offs=torch.tensor([1, 3], dtype=torch.int32)),
        lambda a, b: torch.cat((a[:1] @ b[0], a[1:] @ b[1])),
        [(3, 5), (2, 5, 4)],
        (),
    ),
}


def dual(function, tensors, tangents):
    with forward_ad.dual_level():
        out = function(*map(forward_ad.make_dual, tensors, tangents))
        return forward_ad.unpack_dual(out).tangent


def weighted(function):
    """A scalar of what ``function`` gives, in which each element counts otherwise."""

    def scalar(*tensors):
        out = function(*tensors)
        return (out * torch.arange(1.0, 1 + out.numel()).view(out.shape)).sum()

    return scalar


def every(function, tensors):
    return tuple(range(len(tensors)))


TRANSFORMS = {
    "jvp": lambda f, tensors, tangents: torch.func.jvp(f, tensors, tangents)[1],
    "dual tensors": dual,
    "grad": lambda f, tensors, _: torch.func.grad(weighted(f), argnums=every(f, tensors))(*tensors),
    "jacrev": lambda f, tensors, _: torch.func.jacrev(f, argnums=every(f, tensors))(*tensors),
    "vmap": lambda f, tensors, other: torch.func.vmap(f)(*map(lambda *pair: torch.stack(pair), tensors, other)),
    "vmap of grad": lambda f, tensors, other: torch.func.vmap(torch.func.grad(weighted(f), argnums=every(f, tensors)))(
        *map(lambda *pair: torch.stack(pair), tensors, other)
    ),
}


def case(name, seed=0):
    ours, theirs, shapes, more = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(seed)
    tensors, other = (tuple(torch.randn(shape, generator=generator) for shape in shapes) for _ in range(2))
    return (lambda *t: ours(*t, *more)), (lambda *t: theirs(*t, *more)), tensors, other


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_transform_gives_what_it_gives_of_torch_s_function(name, transform):
    ours, theirs, tensors, other = case(name)
    found, expected = (TRANSFORMS[transform](function, tensors, other) for function in (ours, theirs))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["softmax", "linear with gelu", "layer_norm"])
def test_transforms_may_be_nested(name):
    """A Hessian is forward mode over reverse mode under vmap."""
    ours, theirs, tensors, _ = case(name)
    found, expected = (torch.func.hessian(weighted(function))(*tensors) for function in (ours, theirs))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


def test_attention_has_gradients_under_transforms_and_says_that_it_has_none_in_forward_mode():
    tensors = tuple(torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    ours, theirs = kernels.scaled_dot_product_attention, functional.scaled_dot_product_attention
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for transform in ("grad", "vmap", "vmap of grad", "jacrev"):
            found, expected = (TRANSFORMS[transform](function, tensors, tensors) for function in (ours, theirs))
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    for transform in ("jvp", "dual tensors"):
        with pytest.raises(NotImplementedError, match="forward mode"):
            TRANSFORMS[transform](ours, tensors, tensors)


def test_what_has_no_gradient_has_no_derivative_in_forward_mode_either():
    x = torch.randn(1, 1, 1, 16, dtype=torch.float16)
    cache = torch.randn(1, 1, 8, 16, dtype=torch.float16)
    with pytest.raises(NotImplementedError, match="no derivative"):
        torch.func.jvp(lambda q: kernels.decode_attention(q, cache, cache), (x,), (x,))
