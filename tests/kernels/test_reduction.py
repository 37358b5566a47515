"""Reductions on the interpreter: values, NaN, ties, axes and layouts, gradients, refusals."""

import numpy
import pytest
import torch
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.problems import Problem

from kernels.reduction import DECLARATION, amax, filled, max, mean, sum
from kernels.reduction.layout import laid_out
from kernels.reduction.tiling import Block

CPU = torch.device("cpu")
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}
FORWARD = DECLARATION.forward.variants
FUNCTIONS = {"sum": sum, "mean": mean, "amax": amax}
NAN, INF = float("nan"), float("inf")

# For each variant a case in which several programs share each result, and nothing is a multiple of anything.
SHARED = {
    "blocks": (2, 333, 21),
    "rows": (6, 131, 1),
    "stream": (3, 5003, 1),
    "stream_twice": (3, 5003, 1),
    "columns": (2, 333, 21),
    "folded": (2, 333, 21),
    "columns_twice": (2, 333, 21),
    "strided": (2, 333, 21),
    "whole": (2, 333, 21),
}
STRIDED = {"far": 1, "between": 1, "gap": 0}
"""What a case of `strided` has beside the sizes."""


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run(variant, x, op):
    """The variant's outputs with its default config, as a tuple."""
    strided = variant.name == "strided"
    flags = STRIDED if strided else {}
    problem = case("fp32", outer=x.shape[0], n=x.shape[1], inner=x.shape[2], op=op, **flags)
    results = variant.launch(x[:, None, None] if strided else x, op, config=variant.default(problem, INTERPRETER))
    results = results if isinstance(results, tuple) else (results,)
    return tuple(result.squeeze(1) for result in results) if strided else results


def assert_close(found, expected, dtype=torch.float32):
    tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=4 * tolerance, equal_nan=True)


@pytest.mark.parametrize("variant", FORWARD, ids=lambda v: v.name)
def test_a_few_configs_of_each_variant_agree_with_float64(variant):
    outer, n, inner = SHARED[variant.name]
    flags = STRIDED if variant.name == "strided" else {}
    op = "amax" if variant.name == "folded" else "max"
    problem = case("bf16", outer=outer, n=n, inner=inner, op=op, **flags)
    drawn = Problem(DECLARATION, "forward", problem, CPU, seed=2)
    shapes = {
        tuple(c.get(k) for k in ("BLOCK_C", "PER_SM", "WHOLE")): c for c in variant.configs(drawn.case, INTERPRETER)
    }
    assert shapes
    for config in list(shapes.values())[:4]:
        assert not drawn.judge(variant.launch(**drawn.inputs, config=config)).reason, config


@pytest.mark.parametrize("variant", FORWARD, ids=lambda v: v.name)
def test_nan_infinities_and_ties_come_out_as_in_torch(variant):
    outer, n, inner = SHARED[variant.name]
    x = randn(outer, n, inner).round()  # ties everywhere
    x[0, n - 1, 0], x[0, n // 2, 0] = NAN, -NAN  # of two NaNs the first one's index
    x[1] = -INF  # no element is larger than what a maximum starts from
    expected = x.max(1)
    if variant.name == "folded":  # neither finds indices nor counts ties
        torch.testing.assert_close(run(variant, x, "amax")[0], expected.values, rtol=0, atol=0, equal_nan=True)
        return
    values, indices = run(variant, x, "max")
    assert torch.equal(values.isnan(), expected.values.isnan())
    assert torch.equal(values.nan_to_num(), expected.values.nan_to_num())
    assert torch.equal(indices, expected.indices)
    out, ties = run(variant, x, "ties")
    assert torch.equal(out.nan_to_num(), expected.values.nan_to_num())
    assert torch.equal(ties, (x == x.amax(1, keepdim=True)).sum(1).float())


@pytest.mark.parametrize("filling", [0.0, NAN, 1e30])
def test_a_counter_needs_no_zeroed_memory_and_leaves_no_trace(filling, monkeypatch):
    stream = DECLARATION.forward.variant("stream")
    x, kept, empty = randn(1, 9000, 1), [], torch.empty

    def filled(*shape, **given):
        kept.append(empty(*shape, **given).fill_(filling))
        return kept[-1]

    monkeypatch.setattr(torch, "empty", filled)
    assert_close(run(stream, x, "sum")[0], x.double().sum(1))
    assert not kept[-1][:2].any()  # the counter, two words of fp32


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((5, 7), 0),
        ((3, 4, 6), 1),
        ((3, 4, 6), None),
        ((3, 4, 6), (1, -1)),
        ((3, 4, 6), (0, 2)),
        ((), 0),
        ((), (-1,)),
        ((), []),
        ((4, 5), ()),
        ((4, 5), []),
        ((3, 4, 6), [2, 0]),
    ],
    ids=str,
)
def test_any_axes_are_reduced(name, shape, dim):
    x = randn(*shape, dtype=torch.bfloat16)
    reference = getattr(torch, name)
    for keepdim in (False, True):
        found = FUNCTIONS[name](x, dim, keepdim) if dim is not None or name != "amax" else amax(x, keepdim=keepdim)
        expected = reference(x.double(), dim if dim is not None else (), keepdim)
        assert found.shape == expected.shape
        assert_close(found, expected, torch.bfloat16)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_axes_named_are_all_of_them_in_every_layout_and_for_gradients(name):
    for x in (randn(3, 4, 6), randn(3, 4, 6).transpose(0, 1), randn(3, 8, 6)[:, ::2]):
        leaf, exact = x.clone().requires_grad_(), x.double().requires_grad_()
        for dim in ([], ()):
            found, expected = FUNCTIONS[name](leaf, dim), getattr(torch, name)(exact, dim)
            assert not found.dim()
            assert_close(found.detach(), expected.detach())
            assert_close(torch.autograd.grad(found, leaf)[0], torch.autograd.grad(expected, exact)[0])


def values(result):
    """Those of max without its indices."""
    return result if isinstance(result, torch.Tensor) else result.values


@pytest.mark.parametrize("function", [sum, mean, amax, max])
def test_a_scalar_has_one_axis(function):
    for dim in (1, -2, 5):
        with pytest.raises(IndexError, match=f"dim {dim} is outside"):
            function(torch.tensor(3.0), dim)
        if function is not max:
            with pytest.raises(IndexError, match=f"dim {dim}"):
                function(torch.tensor(3.0), (dim,))
    if function is not max:
        with pytest.raises(RuntimeError, match="more than once"):
            function(torch.tensor(3.0), (0, -1))
    assert values(function(torch.tensor(3.0), -1)) == values(function(torch.tensor(3.0), 0)) == 3


@pytest.mark.parametrize("function", [sum, mean, amax, max])
def test_a_dim_is_what_counts_as_an_integer(function):
    x = randn(4, 5)
    assert torch.equal(values(function(x, numpy.int64(1))), values(function(x, 1)))
    for dim in (True, 1.0, "1", (1.0,), (True,), {1}):
        with pytest.raises(TypeError, match="integers as dim"):
            function(x, dim)


@pytest.mark.parametrize("function", [sum, mean, amax, max])
def test_a_dim_of_more_axes_than_torch_takes_is_refused(function):
    assert function(torch.ones([1] * 64), 63) is not None
    with pytest.raises(RuntimeError, match="64 axes"):
        function(torch.ones([1] * 65), 0)


def test_keepdim_of_the_largest_of_all_is_refused_as_in_torch():
    for keep in (torch.max, max):
        with pytest.raises(TypeError, match="keepdim|keeps"):
            keep(randn(2, 3), keepdim=True)


def test_the_larger_of_two_tensors_is_left_to_torch():
    with pytest.raises(NotImplementedError, match=r"torch\.maximum"):
        max(randn(2, 3), randn(2, 3))


def test_what_is_no_tensor_is_refused():
    for function in (sum, mean, amax, max):
        with pytest.raises(TypeError, match="takes a tensor"):
            function(2.5)


def test_max_over_all_gives_a_value_and_along_an_axis_values_and_indices():
    x = randn(4, 6)
    assert torch.equal(max(x), x.max())
    for dim, keepdim in ((0, False), (-1, True)):
        assert all(map(torch.equal, max(x, dim, keepdim), x.max(dim, keepdim)))
    assert max(x, 1).indices.dtype == torch.int64


def test_layouts_that_are_not_contiguous_are_read_through_their_strides():
    base = randn(12, 10, 6)
    for x in (base.transpose(0, 2), base[:, ::2], base.permute(1, 2, 0), base[:1].expand(3, 10, 6)):
        for dim in (0, 1, (0, 2)):
            assert_close(sum(x, dim), x.double().sum(dim))
        assert all(map(torch.equal, max(x, 1, True), x.max(1, True)))


@pytest.mark.parametrize("name", ["sum", "amax"])
@pytest.mark.parametrize(
    "x, dim",
    [
        (randn(3, 5, 4, 6), (0, 2)),
        (randn(3, 5, 4, 6), (1, -1)),
        (randn(3, 5, 4, 6).permute(2, 0, 3, 1), (0, 1, 2)),
        (randn(3, 8, 4, 9)[:, 1:6, :, :7], (0, 3)),
        (randn(3, 1, 4).expand(3, 5, 4), (0, 1)),
        (randn(7, 12)[:, ::2], 1),
        (randn(7, 12)[:, :9], None),
    ],
    ids=["apart", "in turn", "permuted", "gaps", "expanded", "each second", "all with gaps"],
)
def test_axes_apart_and_gaps_are_read_where_they_lie(name, x, dim):
    dim = tuple(range(x.dim())) if dim is None else dim
    view, begin, _, _ = laid_out(name, x, dim, False)
    assert begin is None and view.data_ptr() == x.data_ptr()
    for keepdim in (False, True):
        found, expected = x.detach().requires_grad_(), x.double().requires_grad_()
        ours, torchs = FUNCTIONS[name](found, dim, keepdim), getattr(torch, name)(expected, dim, keepdim)
        assert_close(ours, torchs)
        weights = randn(*ours.shape, seed=1)
        (ours * weights).sum().backward(), (torchs * weights).sum().backward()
        assert_close(found.grad, expected.grad)


@pytest.mark.parametrize("dynamic", [False, True], ids=["", "of unknown sizes"])
def test_axes_apart_compile_into_one_graph(dynamic):
    x, exact = randn(3, 7, 6).requires_grad_(), randn(3, 7, 6).requires_grad_()

    def function(x, sum, amax):
        return sum(x.sin(), (0, 2)) * amax(x[:, :, 1:], (0, 2))

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    compiled(x, sum, amax).square().sum().backward()
    function(exact, torch.sum, torch.amax).square().sum().backward()
    assert_close(x.grad, exact.grad)


def test_an_input_in_another_order_of_axes_is_not_copied():
    x = randn(6, 8, 5).permute(2, 0, 1)  # the reduced axis is the last in memory
    found = sum(x, 0, keepdim=True)
    assert_close(found, x.double().sum(0, keepdim=True))
    assert x.permute(1, 2, 0).is_contiguous()


def test_a_dtype_is_cast_to_before_the_sum_as_torch_does():
    x = torch.full((3, 3000), 60.0, dtype=torch.float16)  # 180 000: more than fp16 holds
    assert_close(sum(x, 1, dtype=torch.float32), x.double().sum(1))
    assert sum(x, 1).isinf().all()
    assert_close(mean(x, 1), x.double().mean(1), torch.float16)
    assert_close(sum(torch.arange(12).view(3, 4), 0, dtype=torch.float32), torch.arange(12.0).view(3, 4).sum(0))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (4, 0)], ids=str)
def test_empty_input_gives_what_torch_gives(shape):
    x = torch.empty(shape)
    for dim in (None, 0):
        torch.testing.assert_close(sum(x, dim), x.sum(dim))
        torch.testing.assert_close(mean(x, dim), x.mean(dim), equal_nan=True)
    with pytest.raises((RuntimeError, IndexError)):
        max(x)
    with pytest.raises((RuntimeError, IndexError)):
        amax(x)


def _values(name, x, dim, ours):
    """The differentiable result of one of the operations, ours or torch's."""
    if name == "max":
        return (max(x, dim) if ours else x.max(dim)).values
    return FUNCTIONS[name](x, dim) if ours else getattr(torch, name)(x, dim)


@pytest.mark.parametrize("name", [*FUNCTIONS, "max"])
@pytest.mark.parametrize(("shape", "dim"), [((6, 33), -1), ((3, 20, 5), 1)], ids=str)
def test_gradients_agree_with_float64_autograd_and_ties_share(name, shape, dim):
    x = (2 * randn(*shape)).round().requires_grad_()  # ties
    dy = randn(*x.detach().amax(dim).shape, seed=1)
    exact = x.detach().double().requires_grad_()
    _values(name, exact, dim, False).backward(dy.double())
    _values(name, x, dim, True).backward(dy)
    assert_close(x.grad, exact.grad)


def test_the_gradient_of_a_maximum_that_is_nan_is_nan_as_in_torch():
    x = randn(3, 40)
    x[1, 7] = NAN
    x, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    amax(x, 1).backward(torch.ones(3))
    exact.amax(1).backward(torch.ones(3, dtype=torch.float64))
    assert_close(x.grad, exact.grad)


@pytest.mark.parametrize("name", [*FUNCTIONS, "max"])
def test_second_derivatives_agree_with_float64_autograd(name):
    x, dy, v = randn(4, 9), randn(4, seed=1), randn(4, 9, seed=2)

    def second(x, dy, v, ours):
        x, dy = x.requires_grad_(), dy.requires_grad_()
        (first,) = torch.autograd.grad(_values(name, x, 1, ours), x, dy, create_graph=True)
        return torch.autograd.grad(first, dy, v)[0]

    assert_close(second(x, dy, v, True), second(x.double(), dy.double(), v.double(), False))


@pytest.mark.parametrize("name", [*FUNCTIONS, "max"])
def test_it_compiles_into_one_graph_with_its_gradient(name):
    x, dy = randn(4, 20, 3), randn(4, 3, seed=1)
    x.requires_grad_()

    def scaled(x):
        return _values(name, 2 * x, 1, True)

    found = torch.compile(scaled, fullgraph=True, backend="aot_eager")(x)
    expected = scaled(x)
    assert_close(found, expected)
    assert torch.equal(*(torch.autograd.grad(out, x, dy)[0] for out in (found, expected)))


def test_operators_are_registered_as_torch_wants_them():
    operators, x = torch.ops.kernel_atlas, randn(3, 8, 2, dtype=torch.float16)
    torch.library.opcheck(operators.reduction_sum.default, (x.requires_grad_(), 1, 2, True, False, True))
    torch.library.opcheck(operators.reduction_max.default, (x.detach().requires_grad_(), 0, 1, False))
    torch.library.opcheck(operators.reduction_amax_with_ties.default, (x.detach().requires_grad_(), 0, 1, False))


def test_other_dtypes_and_axes_that_are_not_there_are_refused():
    for function in (sum, mean, amax, max):
        with pytest.raises(TypeError, match="int64"):
            function(torch.ones(2, 3, dtype=torch.int64), 0)
        with pytest.raises(IndexError, match="dim 2"):
            function(torch.ones(2, 3), 2)
    with pytest.raises(RuntimeError, match="more than once"):
        sum(torch.ones(2, 3), (0, -2))
    many = case("bf16", outer=1, n=2**31, inner=1, op="max")
    assert DECLARATION.forward.preferred(many, GPUS["h200"]) is None  # an index is 32 bits wide on its way


def test_blocks_are_read_alike_by_offsets_of_64_bits(monkeypatch):
    blocks, x = DECLARATION.forward.variant("blocks"), randn(9, 5, 40)
    near = run(blocks, x, "max")
    monkeypatch.setattr(Block, "reach", lambda block, n, inner: 2**31)
    assert all(map(torch.equal, run(blocks, x, "max"), near))


@pytest.mark.parametrize("op", ["sum", "amax"])
@pytest.mark.parametrize(
    "variant, shape, config",
    [
        pytest.param("folded", (2, 35, 1801), {"VECTORS": 8, "num_warps": 8, "PER_SM": 2}, id="eight wide odd rows"),
        pytest.param(
            "blocks", (2, 70, 1111), {"VECTORS": 1, "BLOCK_C": 128, "num_warps": 1, "PER_SM": 32}, id="halves"
        ),
        pytest.param("columns", (3, 600, 4), {"VECTORS": 2, "BLOCK_C": 8, "num_warps": 4, "PER_SM": 8}, id="narrow"),
    ],
)
def test_what_is_taken_of_larger_inputs_alone_agrees_with_float64(variant, shape, config, op):
    x = (4 * randn(*shape)).round().to(torch.bfloat16)
    found = DECLARATION.forward.variant(variant).launch(x, op, config=config)
    torch.testing.assert_close(found, getattr(x.double(), op)(1).to(torch.bfloat16), rtol=0, atol=0)


@pytest.mark.parametrize("vectors", [1, 4])
@pytest.mark.parametrize(
    "outer, n, inner",
    [
        pytest.param(2, 601, 33, id="a program's piece lies in two matrices"),
        pytest.param(700, 3, 5, id="many matrices in a piece, the last one cut"),
        pytest.param(3, 1, 3, id="fewer elements than a vector and a half"),
        pytest.param(2, 5, 1001, id="columns by the hundreds, of which a piece holds a part"),
        pytest.param(2, 1100, 72, id="columns of whole vectors"),
        pytest.param(300, 32, 1, id="short rows, more than are asked for at once"),
        pytest.param(7, 1291, 1, id="rows that end within a vector, the last piece cut"),
        pytest.param(3, 4096, 1, id="rows that pieces end with"),
        pytest.param(1, 5000, 1, id="one row of several pieces"),
    ],
)
def test_the_gradient_of_max_by_zeros_and_one_element_a_result(outer, n, inner, vectors):
    x, dout = randn(outer, n, inner), randn(outer, inner)
    indices = x.max(1).indices
    found = filled.launch_filled("max", dout, indices=indices, n=n, config={"VECTORS": vectors, "num_warps": 4})
    expected = torch.zeros_like(x).scatter_(1, indices[:, None], dout[:, None])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_an_axis_may_be_an_argument_of_what_is_compiled():
    """torch.compile takes it for unknown once it has changed."""
    x = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0)).mT
    compiled = torch.compile(lambda x, dim: sum(x, dim), fullgraph=True, backend="aot_eager")
    for dim in (0, 1, 2, -1):
        torch.testing.assert_close(compiled(x, dim), x.sum(dim))
