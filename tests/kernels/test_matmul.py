"""matmul's public function on the interpreter: strides, shapes, refusals, and how precisely fp32 is multiplied."""

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.hardware import pretend
from products_under_test import DTYPES, GPUS, LAYOUTS, judged, laid, randn

from kernels.batched_matmul import bmm
from kernels.common import products
from kernels.common.products import precision_of_product
from kernels.matmul import case_of, matmul, product_2d


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_transposed_operands_are_read_through_their_strides(layout, dtype):
    # 33 x 65 x 40: rows that no descriptor describes
    a, b = laid(33, 40, layout[0], DTYPES[dtype]), laid(40, 65, layout[1], DTYPES[dtype], seed=1)
    assert not judged(matmul(a, b), a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(
            randn(40, 60)[3::2, 5:45:2], randn(20, 30, seed=1), id="every second row and column from an offset"
        ),
        pytest.param(randn(24, 1).expand(24, 20), randn(20, 30, seed=1), id="one column repeated: stride 0"),
        pytest.param(randn(24, 20), randn(1, 1, seed=1).expand(20, 30), id="one value repeated: both strides 0"),
    ],
)
def test_operands_may_have_any_strides(a, b):
    assert not judged(matmul(a, b), a, b)


def test_a_tail_in_k_adds_nothing_even_beside_nan():
    # A's rows lie in a wider matrix of NaN: what is read past K must not reach the sum
    wide = torch.full((20, 64), torch.nan)
    wide[:, :19] = randn(20, 19)
    b = torch.full((64, 24), torch.nan)
    b[:19] = randn(19, 24, seed=1)
    assert not judged(matmul(wide[:, :19], b[:19]), wide[:, :19], b[:19])


@pytest.mark.parametrize(
    ("left", "right"),
    [((5,), (5,)), ((4, 5), (5,)), ((5,), (5, 3)), ((2, 3, 5), (5, 4)), ((2, 3, 2, 5), (5,)), ((0, 3, 5), (5, 4))],
    ids=str,
)
def test_shapes_follow_torch_matmul(left, right):
    a, b = randn(*left), randn(*right, seed=1)
    product, expected = matmul(a, b), torch.matmul(a, b)
    assert product.shape == expected.shape
    torch.testing.assert_close(product, expected)


def test_leading_dimensions_that_cannot_be_merged_are_right_too():
    a, b = randn(3, 4, 5).transpose(0, 1), randn(5, 6, seed=1)
    torch.testing.assert_close(matmul(a, b), torch.matmul(a, b))


def test_a_lazy_negation_is_honoured():
    imaginary = torch.complex(randn(4, 5), randn(4, 5, seed=1)).conj().imag
    assert imaginary.is_neg()
    b = randn(5, 3, seed=2)
    torch.testing.assert_close(matmul(imaginary, b), torch.matmul(imaginary, b))


@pytest.mark.parametrize(
    ("a", "b", "error", "says"),
    [
        (randn(2, 3), randn(4, 2), ValueError, r"\(2, 3\) times \(4, 2\)"),
        (randn(2, 3), randn(2, 3, 4), NotImplementedError, "batch of matrices"),
        (torch.tensor(2.0), randn(3), ValueError, "at least one dimension"),
        (randn(2, 3), randn(3, 2).half(), TypeError, "float32, torch.float16"),
        (randn(2, 3).double(), randn(3, 2).double(), TypeError, "fp32, fp16, bf16"),
        (torch.ones(2, 3, dtype=torch.int32), torch.ones(3, 2, dtype=torch.int32), TypeError, "int32"),
        (randn(2, 3), torch.empty(3, 2, device="meta"), ValueError, "one device"),
        (randn(2, 3).to_sparse(), randn(3, 2), ValueError, "dense"),
        (torch.empty(2**31, 1, device="meta"), torch.empty(1, 1, device="meta"), ValueError, "sizes up to"),
    ],
    ids=["inner sizes", "batched other", "0-d", "two dtypes", "fp64", "integers", "two devices", "sparse", "2^31 rows"],
)
def test_what_is_not_supported_is_refused_with_the_reason(a, b, error, says):
    with pytest.raises(error, match=says):
        matmul(a, b)


def test_the_operator_is_what_torch_expects_of_one():
    op = torch.ops.kernel_atlas.matmul.default
    torch.library.opcheck(op, (randn(3, 4).requires_grad_(), randn(4, 5), False))


@pytest.mark.parametrize("backward", ["highest", "high"])
@pytest.mark.parametrize("forward", ["highest", "high"])
def test_each_product_is_as_precise_as_torch_is_told_when_it_is_made(forward, backward, monkeypatch):
    asked = []
    monkeypatch.setattr(
        product_2d.operator, "plain", lambda a, b, tf32: asked.append(tf32) or a.new_empty(a.shape[0], b.shape[1])
    )
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(forward)
        product = matmul(randn(4, 4).requires_grad_(), randn(4, 4))
        torch.set_float32_matmul_precision(backward)
        product.sum().backward()
    finally:
        torch.set_float32_matmul_precision(before)
    assert asked == [forward == "high", backward == "high"]


@pytest.mark.parametrize(("function", "sizes"), [(matmul, (4, 4)), (bmm, (2, 4, 4))], ids=["matmul", "bmm"])
def test_products_of_16_bits_do_not_ask_how_fp32_is_multiplied(function, sizes, monkeypatch):
    # torch.compile would compile them anew for each answer
    monkeypatch.setattr(products, "allows_tf32", None)
    a, b = (randn(*sizes, dtype=torch.bfloat16, seed=seed).requires_grad_() for seed in (0, 1))
    function(a, b).sum().backward()
    assert a.grad.shape == b.grad.shape == sizes


@pytest.mark.parametrize(("name", "precision"), [("h200", "tf32"), ("a100", "tf32"), ("t4", "ieee")])
def test_tf32_is_for_gpus_that_have_it(name, precision):
    with pretend(GPUS[name]):
        assert precision_of_product(randn(1), tf32=True) == precision
        assert precision_of_product(randn(1).half(), tf32=True) == "ieee"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_call_asks_for_the_config_of_its_layout(layout):
    problem = case_of(laid(40, 88, layout[0]), laid(88, 72, layout[1]), False)
    assert problem == case("fp32", m=40, n=72, k=88, **({} if layout == "NN" else {"layout": layout}))
