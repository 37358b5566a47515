"""Grouped products on the interpreter: ragged, empty and missing groups, gradients, layouts, refusals."""

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.choice import untuned
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.problems import Problem
from defaults_under_test import assert_defaults_fit

from kernels.grouped_matmul import DECLARATION, grouped_mm
from kernels.grouped_matmul.cases import backward_reference, prepare_backward_loop

CPU = torch.device("cpu")
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}

# 150 rows: longer than a tile, ending within one; empty at the start, in between and at the end; rows of no group
ENDS = [0, 70, 70, 73, 141, 141]
ROWS = 150


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def offs(ends=ENDS):
    return torch.tensor(ends, dtype=torch.int32)


def twin(a, b, ends):
    """The same with a product for each group."""
    parts = [
        (a[start:end] @ b[group]) if b.dim() == 3 else (a[:, start:end] @ b[start:end])
        for group, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    ]
    if b.dim() == 2:
        return torch.stack(parts)
    return torch.cat([*parts, a.new_zeros(a.shape[0] - ends[-1], b.shape[2])])


def assert_close(found, expected, tolerance=2e-5):
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


def assert_agrees(a, b, ends=ENDS):
    """The product and both gradients against float64."""
    given = [t.detach().requires_grad_() for t in (a, b)]
    like = [t.detach().double().requires_grad_() for t in (a, b)]
    c, expected = grouped_mm(*given, offs=offs(ends)), twin(*like, ends)
    assert_close(c, expected.detach())
    dc = randn(*c.shape, seed=9)
    c.backward(dc)
    expected.backward(dc.double())
    for found, reference in zip(given, like, strict=True):
        assert_close(found.grad, reference.grad)


# Two of fp16, whose descriptors are taken: fp32 goes through pointers alone, and `validate` goes through all
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("variant", ["tiled", "descriptor"])
@pytest.mark.parametrize("problem", [c for c in DECLARATION.edge_cases if c.dtype == "fp16"][2:5:2], ids=str)
def test_edge_cases_agree_with_float64(problem, variant, direction):
    work = DECLARATION.passes[direction]
    variant = work.variant(variant)
    drawn = Problem(DECLARATION, direction, problem, CPU, seed=1)
    assert not drawn.judge(variant.launch(**drawn.inputs, config=variant.default(problem, INTERPRETER))).reason


def test_ragged_rows_forward_and_backward():
    assert_agrees(randn(ROWS, 40), randn(6, 40, 24, seed=1))


def test_ragged_sums_forward_and_backward():
    assert_agrees(randn(24, ROWS), randn(ROWS, 40, seed=1))


def test_weights_as_a_linear_layer_has_them_and_other_strides_are_read_where_they_are():
    assert_agrees(randn(40, ROWS).t(), randn(6, 24, 40, seed=1).transpose(1, 2))
    assert_agrees(randn(ROWS, 24).t(), randn(40, ROWS, seed=1).t())


def test_all_rows_in_no_group_and_all_in_one():
    assert_agrees(randn(20, 16), randn(3, 16, 8, seed=1), [0, 0, 0])
    assert_agrees(randn(20, 16), randn(3, 16, 8, seed=1), [0, 20, 20])


def test_rows_of_no_group_reach_nothing():
    a, b = randn(20, 16), randn(2, 16, 8, seed=1)
    a[15:] = float("nan")
    c = grouped_mm(a, b, offs=offs([7, 15]))
    assert not c[:15].isnan().any() and (c[15:] == 0).all()
    assert not grouped_mm(a.t(), randn(20, 8, seed=2), offs=offs([7, 15])).isnan().any()


def test_infinities_stay_in_their_group():
    # the last block of a group's sum holds rows of the next: in both factors they must be 0
    a, b = randn(16, 40, dtype=torch.float16), randn(40, 16, seed=1, dtype=torch.float16)
    b[20:] = float("inf")
    c = grouped_mm(a, b, offs=offs([20, 40]))
    assert c[0].isfinite().all() and not c[1].isfinite().any()


def test_the_result_may_have_another_dtype():
    a, b = randn(ROWS, 64, dtype=torch.float16), randn(6, 64, 16, seed=1, dtype=torch.float16)
    c = grouped_mm(a.requires_grad_(), b, offs=offs(), out_dtype=torch.float32)
    assert c.dtype == torch.float32
    assert_close(c, twin(a.double(), b.double(), ENDS), 1e-4)  # not rounded to 16 bits on the way
    c.sum().backward()
    assert a.grad.dtype == torch.float16


def test_second_derivatives_agree_with_float64_autograd():
    def second(function, a, b):
        (first,) = torch.autograd.grad(function(a, b).square().sum(), a, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (a, b))

    given = [randn(9, 4).requires_grad_(), randn(2, 4, 3, seed=1).requires_grad_()]
    like = [t.detach().double().requires_grad_() for t in given]
    found = second(lambda a, b: grouped_mm(a, b, offs=offs([4, 9])), *given)
    for one, other in zip(found, second(lambda a, b: twin(a, b, [4, 9]), *like), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)


def test_torch_compile_takes_it_whole_forward_and_backward():
    a, b = randn(20, 16).requires_grad_(), randn(2, 16, 8, seed=1).requires_grad_()
    compiled = torch.compile(lambda a, b, offs: grouped_mm(a, b, offs=offs), fullgraph=True, backend="aot_eager")
    c = compiled(a, b, offs([7, 15]))
    assert_close(c, twin(a, b, [7, 15]).detach())
    c.sum().backward()
    assert a.grad is not None and b.grad is not None


def test_torch_finds_nothing_wrong_with_the_operators():
    operators, a = torch.ops.kernel_atlas, randn(20, 16).requires_grad_()
    torch.library.opcheck(operators.grouped_rows.default, (a, randn(2, 16, 8, seed=1), offs([7, 20]), "fp32"))
    torch.library.opcheck(operators.grouped_sums.default, (a.t(), randn(20, 8, seed=1), offs([7, 20]), "fp32"))


def test_empty_matrices_are_taken():
    assert grouped_mm(torch.empty(0, 4), torch.ones(2, 4, 3), offs=offs([0, 0])).shape == (0, 3)
    assert (grouped_mm(torch.empty(5, 0), torch.empty(0, 3), offs=offs([0, 0])) == torch.zeros(2, 5, 3)).all()
    assert grouped_mm(torch.ones(5, 4), torch.ones(4, 3), offs=offs([])).shape == (0, 5, 3)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((torch.ones(4, 3), torch.ones(2, 3, 5)), {}, ValueError, "offs as int32"),
        ((torch.ones(4, 3), torch.ones(2, 3, 5)), {"offs": torch.tensor([2, 4])}, ValueError, "int64"),
        ((torch.ones(4, 3), torch.ones(3, 3, 5)), {"offs": offs([2, 4])}, ValueError, "as many ends"),
        ((torch.ones(4, 3), torch.ones(2, 4, 5)), {"offs": offs([2, 4])}, ValueError, "rows are as many"),
        ((torch.ones(2, 4, 3), torch.ones(2, 3, 5)), {}, NotImplementedError, "torch.bmm"),
        ((torch.ones(4, 3), torch.ones(2, 3, 5).half()), {"offs": offs([2, 4])}, TypeError, "one dtype"),
        ((torch.ones(4, 3), torch.ones(2, 3, 5)), {"bias": torch.ones(5)}, NotImplementedError, "bias"),
        ((torch.ones(4, 3), torch.ones(2, 3, 5)), {"out_dtype": torch.int8}, TypeError, "int8"),
    ],
    ids=["no ends", "int64", "groups", "inner size", "3D", "mixed dtypes", "bias", "out_dtype"],
)
def test_what_does_not_fit_is_refused_by_name(arguments, options, error, message):
    with pytest.raises(error, match=message):
        grouped_mm(*arguments, **options)


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name):
    assert_defaults_fit(DECLARATION, GPUS[name])


@pytest.mark.parametrize(
    ("groups", "m", "n", "k", "variant", "tile"),
    [
        (8, 4180, 14336, 4096, "gluon", 256),
        (64, 24576, 1408, 2048, "gluon", 128),  # half of a sixth tile of 256 columns would be empty
        (60, 8192, 1408, 2048, "descriptor", 128),
        (8, 314, 14336, 4096, "descriptor", 256),
        (128, 372, 768, 2048, "descriptor", 128),  # tiles of 256 columns would be few if lengths are skewed
    ],
)
def test_default_tiles_are_as_wide_as_c_fills(groups, m, n, k, variant, tile):
    problem = case("bf16", groups=groups, m=m, n=n, k=k, spread="even")
    chosen, config = untuned(DECLARATION.forward, problem, GPUS["h200"])
    assert (chosen.name, config["BLOCK_N"]) == (variant, tile)


@pytest.mark.parametrize(
    ("groups", "m", "n", "k", "rows"),
    [
        (8, 504, 14336, 4096, 64),
        (8, 536, 14336, 4096, 64),  # 3.4 rounds of 128 rows, 6.8 of 64
        (8, 800, 14336, 4096, 64),
        (8, 536, 4096, 14336, 64),  # a round of few groups
        (32, 2560, 4096, 4096, 128),  # 3.9 rounds, 7.8
        (8, 1024, 14336, 4096, 128),
    ],
)
def test_default_tiles_are_as_high_as_their_rounds_fill(groups, m, n, k, rows):
    problem = case("bf16", groups=groups, m=m, n=n, k=k, spread="even")
    _, config = untuned(DECLARATION.forward, problem, GPUS["h200"])
    assert (config["BLOCK_M"], config["BLOCK_N"]) == (rows, 256)


def test_a_loop_writes_zeros_for_groups_without_rows():
    a, b, dc = randn(ROWS, 8), randn(6, 8, 4, seed=1), randn(ROWS, 4, seed=2)
    loop = prepare_backward_loop(a, b, offs(), dc)
    loop()[1].fill_(float("nan"))
    for found, expected in zip(loop(), backward_reference(a, b, offs(), dc), strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "ends"),
    [
        ((0, 8), (3, 8, 4), [0, 0, 0]),  # experts of a rank to which no token came
        ((5, 0), (3, 0, 4), [1, 2, 5]),
        ((5, 8), (3, 8, 0), [1, 2, 5]),
        ((0, 8), (8, 4), [1, 8]),
        ((4, 0), (0, 3), [0, 0]),
    ],
)
def test_a_product_of_nothing_has_gradients_of_zero(shape_a, shape_b, ends):
    a, b = torch.full(shape_a, float("inf")).requires_grad_(), torch.full(shape_b, float("inf")).requires_grad_()
    out = grouped_mm(a, b, offs=torch.tensor(ends, dtype=torch.int32))
    groups = () if len(shape_b) == 3 else (len(ends),)
    assert torch.equal(out, torch.zeros(*groups, shape_a[0], shape_b[-1]))
    out.sum().backward()
    for x in (a, b):
        assert torch.equal(x.grad, torch.zeros_like(x))
