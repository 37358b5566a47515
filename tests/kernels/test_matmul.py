"""Matrix multiplication on the interpreter: values, layouts, gradients, refusals, spaces."""

import pytest
import torch
from atlas import catalog
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER, pretend
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.problems import Problem

from kernels.batched_matmul import bmm
from kernels.common import gradients, products
from kernels.common.parts import part_of_k
from kernels.common.products import precision_of_product
from kernels.matmul import DECLARATION, case_of, described, matmul, product_2d
from kernels.matmul.described import along_k
from kernels.matmul.staggered import STAGGERED_SPACE
from kernels.matmul.swizzled import TILES

WORK = DECLARATION.forward
TILED = WORK.variant("tiled")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", True)}


def small(name, a, b):
    """The product by variant ``name`` with its default config."""
    problem = case("fp16", m=a.shape[0], n=b.shape[1], k=a.shape[1])
    return WORK.variant(name).launch(a, b, config=WORK.variant(name).default(problem, INTERPRETER))


def judged(product, a, b):
    """What is wrong with ``product`` as a @ b, or ``""``, by the tolerances of validation."""
    (m, k), n = a.shape, b.shape[1]
    dtype = next(name for name, value in DTYPES.items() if value == a.dtype)
    inputs = {"a": a, "b": b, "tf32": False}
    problem = Problem(DECLARATION, "forward", case(dtype, m=m, n=n, k=k), torch.device("cpu"), 0, inputs)
    return problem.judge(product).reason


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def laid(rows, columns, layout, dtype=torch.float32, seed=0):
    """A matrix by rows (N), or by columns (T)."""
    return (
        randn(rows, columns, dtype=dtype, seed=seed)
        if layout == "N"
        else randn(columns, rows, dtype=dtype, seed=seed).t()
    )


LAYOUTS = ["NN", "NT", "TN", "TT"]


INTERPRETED = [v for v in WORK.variants if v.name not in ("gluon", "columns", "clustered", "streamed")]


@pytest.mark.parametrize("variant", INTERPRETED, ids=lambda v: v.name)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_variant_reads_every_layout_and_nothing_outside(variant, layout):
    # sizes all different, so that a swapped stride reads other elements; rows of whole 16 bytes, and tails everywhere
    m = 1 if variant.name == "vector" else 40
    a, b = laid(m, 88, layout[0], torch.float16), laid(88, 72, layout[1], torch.float16, seed=1)
    assert not judged(small(variant.name, a, b), a, b)


@pytest.mark.parametrize("layout", ["NN", "TT"])
@pytest.mark.parametrize("sizes", [(1, 40), (40, 1)], ids=str)
def test_vectors_are_multiplied_in_either_layout_and_any_number_of_parts(sizes, layout):
    m, n = sizes
    a, b = laid(m, 70, layout[0]), laid(70, n, layout[1], seed=1)
    for splits in (1, 3):
        config = {"BLOCK_N": 16, "BLOCK_K": 16, "SPLITS": splits, "num_warps": 4}
        assert not judged(WORK.variant("vector").launch(a, b, config=config), a, b)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(laid(5, 300, "T"), laid(300, 531, "N", seed=1), id="rows of 531"),
        pytest.param(laid(131, 70, "T"), laid(70, 16, "T", seed=1), id="columns of 131, A turned"),
        pytest.param(laid(2, 9, "N"), laid(9, 262, "N", seed=1)[:, :261], id="rows of 262, four of them at one place"),
        pytest.param(laid(3, 40, "N"), laid(40, 137, "N", seed=1)[:, 8:], id="rows that begin within others"),
        pytest.param(laid(3, 40, "N"), laid(40, 137, "N", seed=1)[:, 1:], id="the first row off 16 bytes"),
        pytest.param(laid(3, 7, "N"), laid(1, 129, "N", seed=1).expand(7, 129), id="one row repeated"),
        pytest.param(laid(17, 9, "N"), laid(9, 131, "N", seed=1), id="many rows"),
    ],
)
def test_sums_of_rows_at_one_place_are_shifted(a, b, splits):
    config = {"BLOCK_N": 128, "SPLITS": splits, "num_warps": 4}
    for dtype in (torch.float16, torch.bfloat16):
        x, y = laid_as(a, dtype), laid_as(b, dtype)
        assert not judged(WORK.variant("shifted").launch(x, y, config=config), x, y)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(laid(5, 517, "N"), laid(517, 43, "T", seed=1), id="rows of 517"),
        pytest.param(laid(67, 301, "N"), laid(301, 16, "N", seed=1), id="few columns, whose C is turned"),
        pytest.param(laid(20, 262, "T"), laid(262, 19, "T", seed=1), id="A by columns, every fourth row at one place"),
        pytest.param(laid(3, 7, "N"), laid(7, 21, "T", seed=1), id="rows that end where they begin"),
        pytest.param(laid(3, 40, "N"), laid(49, 21, "T", seed=1)[8:48], id="rows within others"),
        pytest.param(laid(3, 40, "N"), laid(49, 21, "T", seed=1)[1:41], id="the first row off 16 bytes"),
        pytest.param(laid(3, 40, "N"), laid(40, 1, "T", seed=1).expand(40, 21), id="one row repeated"),
        pytest.param(laid(65, 9, "N"), laid(9, 131, "T", seed=1), id="many rows"),
    ],
)
def test_rows_along_k_that_lie_alike_are_multiplied_together(a, b, splits):
    for dtype, copies in ((torch.float16, 0), (torch.bfloat16, 1)):
        config = dict(zip(STAGGERED_SPACE, (32, 128, splits, copies, 4), strict=True))
        x, y = laid_as(a, dtype), laid_as(b, dtype)
        assert not judged(WORK.variant("staggered").launch(x, y, config=config), x, y)


def test_what_lies_beside_odd_rows_is_in_no_sum():
    wide = torch.full((23, 309), torch.nan, dtype=torch.float16)
    b = wide[2:, 8:285].t()
    b.copy_(randn(*b.shape, dtype=torch.float16))
    a = randn(4, 277, dtype=torch.float16, seed=1)
    for copies in STAGGERED_SPACE["COPIES"]:
        config = dict(zip(STAGGERED_SPACE, (32, 128, 2, copies, 4), strict=True))
        assert not judged(WORK.variant("staggered").launch(a, b[:, 6:], config=config), a, b[:, 6:])


@pytest.mark.parametrize("copies", STAGGERED_SPACE["COPIES"])
@pytest.mark.parametrize("place", [0, 5, 100, 295, 300])
def test_an_infinity_at_either_end_of_odd_rows_meets_no_zero(place, copies):
    """The 16 bytes in which rows begin and end are multiplied apart, and are 0 in the blocks between."""
    a, b = randn(3, 301, dtype=torch.float16), randn(40, 301, dtype=torch.float16, seed=1).t()
    a[1, place] = torch.inf
    config = dict(zip(STAGGERED_SPACE, (32, 128, 1, copies, 4), strict=True))
    found = WORK.variant("staggered").launch(a, b, config=config)
    assert torch.equal(found[1], (a[1, place] * b[place]))
    assert not judged(found[::2], a[::2], b)


def laid_as(x, dtype):
    """``x`` in another dtype, in its strides and from its offset on."""
    held = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return held.to(dtype).as_strided(x.shape, x.stride(), x.storage_offset())


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


# Every block size of the space at least once, tall and wide, and both ends of BLOCK_K
SPREAD = [
    (16, 32, 128, 8, 4, 5),
    (64, 128, 64, 16, 4, 3),
    (128, 256, 32, 8, 8, 3),
    (256, 64, 16, 4, 8, 2),
]


@pytest.mark.parametrize("values", SPREAD, ids=str)
@pytest.mark.parametrize("sizes", [(150, 270, 70), (16, 260, 150), (270, 20, 128)], ids=str)
def test_configs_from_all_over_the_space_agree(sizes, values):
    # tails everywhere; one problem thinner than most tiles, one narrower than all; whole blocks of k in the last
    m, n, k = sizes
    a, b = randn(m, k, dtype=torch.float16), randn(k, n, dtype=torch.float16, seed=1)
    assert not judged(TILED.launch(a, b, config=dict(zip(TILED.space, values, strict=True))), a, b)


@pytest.mark.parametrize("name", ["descriptor", "persistent", "specialized"])
def test_what_descriptors_describe_is_not_read_through_pointers(name, monkeypatch):
    monkeypatch.setattr(described, "launch_pointers", None)
    a, b = laid(40, 88, "T", torch.float16), laid(88, 72, "N", torch.float16, seed=1)
    assert not judged(small(name, a, b), a, b)


@pytest.mark.parametrize(
    "a",
    [
        pytest.param(randn(40, 64, dtype=torch.float16)[:, 1:49], id="rows that begin 2 bytes into a line"),
        pytest.param(randn(40, 49, dtype=torch.float16)[:, :48], id="rows 98 bytes apart"),
        pytest.param(randn(40, 96, dtype=torch.float16)[:, ::2], id="every second column"),
        pytest.param(randn(48, dtype=torch.float16).expand(40, 48), id="one row repeated"),
    ],
)
def test_what_no_descriptor_describes_is_read_through_pointers(a, name="persistent"):
    b = randn(48, 72, dtype=torch.float16, seed=1)
    assert not judged(small(name, a, b), a, b)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_program_takes_tile_after_tile_and_writes_them_in_parts(parts):
    # the interpreter counts as 4 SMs: 6 x 3 tiles leave two programs with four and two with five
    a, b = randn(90, 40, dtype=torch.float16), randn(40, 80, dtype=torch.float16, seed=1)
    config = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 4, "PARTS": parts}
    assert not judged(WORK.variant("persistent").launch(a, b, config=config | WARPS), a, b)


WARPS = {"num_warps": 4, "num_stages": 2}


@pytest.mark.parametrize("splits", [1, 3, 8])
def test_parts_of_k_are_added_up_even_where_some_are_empty(splits):
    # 70 elements of K are 5 blocks: 8 parts leave 3 without any
    a, b = randn(24, 70), randn(70, 40, seed=1)
    config = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "SPLITS": splits}
    assert not judged(WORK.variant("split").launch(a, b, config=config | WARPS), a, b)


@pytest.mark.parametrize(("k", "splits", "block_k"), [(70, 3, 16), (1, 16, 128), (8192, 4, 128), (129, 2, 128)])
def test_parts_are_whole_blocks_and_cover_k(k, splits, block_k):
    part = part_of_k(k, splits, block_k)
    assert part % block_k == 0 and part * splits >= k


@pytest.mark.parametrize("shape", [(70, 130), (64, 1), (3, 200)], ids=str)
def test_a_copy_along_k_holds_the_same_values(shape):
    b = randn(*shape)
    copied = along_k(b)
    assert torch.equal(copied, b) and copied.stride() == (1, -(-shape[0] // 4) * 4)  # columns at whole 16 bytes
    assert along_k(copied) is copied or shape[1] == 1


@pytest.mark.parametrize("group", [4, 16])
@pytest.mark.parametrize("tiles", [(1, 5), (7, 3)], ids=str)
def test_every_tile_is_computed_whatever_the_group(tiles, group):
    # 7 rows of tiles leave a last group of other height; NaN shows a tile that no program owned
    a, b = randn(16 * tiles[0], 16), randn(16, 32 * tiles[1], seed=1)
    config = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": group, "num_warps": 4, "num_stages": 2}
    assert not judged(TILED.launch(a, b, config=config), a, b)


def test_a_tail_in_k_adds_nothing_even_beside_nan():
    # A's rows lie in a wider matrix of NaN: what is read past K must not reach the sum
    wide = torch.full((20, 64), torch.nan)
    wide[:, :19] = randn(20, 19)
    b = torch.full((64, 24), torch.nan)
    b[:19] = randn(19, 24, seed=1)
    assert not judged(matmul(wide[:, :19], b[:19]), wide[:, :19], b[:19])


@pytest.mark.parametrize(("m", "n", "k"), [(3, 4, 0), (0, 4, 5), (3, 0, 5), (0, 0, 0)])
def test_empty_sums_are_zero_and_empty_products_empty(m, n, k):
    a, b = torch.ones(m, k, requires_grad=True), torch.ones(k, n, requires_grad=True)
    product = matmul(a, b)
    assert torch.equal(product, torch.zeros(m, n))
    product.backward(torch.ones(m, n))
    assert torch.equal(a.grad, torch.full((m, k), float(n)))
    assert torch.equal(b.grad, torch.full((k, n), float(m)))


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_agree_with_float64(dtype, transposed):
    a, b = randn(33, 20, dtype=DTYPES[dtype]), randn(20, 47, dtype=DTYPES[dtype], seed=1)
    if transposed:
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    dc = randn(33, 47, dtype=DTYPES[dtype], seed=2)
    a.requires_grad_(), b.requires_grad_()
    da, db = torch.autograd.grad(matmul(a, b), (a, b), dc)
    assert not judged(da, dc, b.detach().t())
    assert not judged(db, a.detach().t(), dc)


def test_a_gradient_off_16_bytes_is_copied_once_for_both_products(monkeypatch):
    monkeypatch.setattr(gradients, "_LEAST", 0)
    copies, original = [], gradients.padded_rows
    monkeypatch.setattr(gradients, "padded_rows", lambda *x: copies.append(x[0].shape) or original(*x))
    a, b, dc = randn(70, 20).bfloat16(), randn(20, 47, seed=1).bfloat16(), randn(70, 47, seed=2).bfloat16()
    a.requires_grad_(), b.requires_grad_()
    for function in (matmul, torch.compile(matmul, backend="aot_eager", fullgraph=True)):
        da, db = torch.autograd.grad(function(a, b), (a, b), dc)
        assert copies.pop() == (1, 70, 47) and not copies
        assert not judged(da, dc, b.detach().t())
        assert not judged(db, a.detach().t(), dc)
    torch.autograd.grad(matmul(a, b.detach()), a, dc)
    assert not copies
    torch.library.opcheck(torch.ops.kernel_atlas.padded.default, (dc.requires_grad_(),))
    da, _ = torch.autograd.grad(matmul(a, b), (a, b), dc, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(da.float().sum(), dc)[0], b.detach().sum(0).expand(70, 47))


def test_gradients_of_a_batch_are_copied_once_too(monkeypatch):
    monkeypatch.setattr(gradients, "_LEAST", 0)
    copies, original = [], gradients.padded_rows
    monkeypatch.setattr(gradients, "padded_rows", lambda *x: copies.append(x[0].shape) or original(*x))
    a, b, dc = randn(2, 70, 20).half(), randn(2, 20, 47, seed=1).half(), randn(2, 70, 47, seed=2).half()
    a.requires_grad_(), b.requires_grad_()
    for function in (bmm, torch.compile(bmm, backend="aot_eager", fullgraph=True)):
        found = torch.autograd.grad(function(a, b), (a, b), dc)
        assert copies.pop() == (2, 70, 47) and not copies
        for got, right in zip(found, (dc @ b.detach().mT, a.detach().mT @ dc), strict=True):
            torch.testing.assert_close(got, right, rtol=2e-3, atol=2e-3)
    torch.library.opcheck(torch.ops.kernel_atlas.padded.default, (dc.requires_grad_(),))


def test_an_expanded_gradient_is_read_through_its_zero_strides():
    a, b = randn(9, 5).requires_grad_(), randn(5, 7, seed=1)
    matmul(a, b).sum().backward()
    torch.testing.assert_close(a.grad, b.sum(1).expand(9, 5))


def test_only_the_gradients_asked_for_are_computed():
    a, b = randn(4, 5).requires_grad_(), randn(5, 6, seed=1)
    matmul(a, b).backward(randn(4, 6))
    assert a.grad is not None and b.grad is None


def test_gradients_of_gradients_of_a_batch_agree_with_torch():
    a, b, v = randn(2, 3, 5).requires_grad_(), randn(5, 4, seed=1).requires_grad_(), randn(2, 3, 4, seed=2)
    for left, right in zip(second_order(matmul, a, b, v), second_order(torch.matmul, a, b, v), strict=True):
        torch.testing.assert_close(left, right)


def second_order(product, a, b, v):
    """Gradients of the squared length of the first gradients: what a gradient penalty computes."""
    first = torch.autograd.grad(product(a, b), (a, b), v, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), (a, b))


def test_torch_compile_takes_it_whole_with_its_gradients():
    # aot_eager: all of torch.compile but the code generator; fullgraph: a break in the graph would raise
    a, b = randn(20, 24).requires_grad_(), randn(24, 8, seed=1).requires_grad_()
    fast = torch.compile(lambda x, y: matmul(x * 2, y).relu(), backend="aot_eager", fullgraph=True)
    product = fast(a, b)
    expected = torch.matmul(a * 2, b).relu()
    torch.testing.assert_close(product, expected)
    dc = randn(20, 8, seed=2)
    for got, right in zip(
        torch.autograd.grad(product, (a, b), dc), torch.autograd.grad(expected, (a, b), dc), strict=True
    ):
        torch.testing.assert_close(got, right)


def test_the_operator_is_what_torch_expects_of_one():
    op = torch.ops.kernel_atlas.matmul.default
    torch.library.opcheck(op, (randn(3, 4).requires_grad_(), randn(4, 5), False))


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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_call_asks_for_the_config_of_its_layout(layout):
    problem = case_of(laid(40, 88, layout[0]), laid(88, 72, layout[1]), False)
    assert problem == case("fp32", m=40, n=72, k=88, **({} if layout == "NN" else {"layout": layout}))


def test_products_of_a_linear_layer_and_its_gradients_find_cases_of_their_layouts():
    cases = {(problem.dtype, problem.label) for problem in DECLARATION.cases(GPUS["h200"])}
    for dtype, label in (
        ("bf16", "m=1 n=8192 k=8192 layout=NT"),
        ("bf16", "m=512 n=4096 k=14336"),
        ("bf16", "m=14336 n=4096 k=512 layout=TN"),
        ("fp32", "m=1024 n=1024 k=1024"),
        ("fp32", "m=1024 n=1024 k=1024 layout=TN"),
        ("fp32", "m=1024 n=1024 k=1024 layout=NT"),
    ):
        assert (dtype, label) in cases


@pytest.mark.parametrize(("name", "precision"), [("h200", "tf32"), ("a100", "tf32"), ("t4", "ieee")])
def test_tf32_is_for_gpus_that_have_it(name, precision):
    with pretend(GPUS[name]):
        assert precision_of_product(randn(1), tf32=True) == precision
        assert precision_of_product(randn(1).half(), tf32=True) == "ieee"


@pytest.mark.parametrize("name", GPUS)
def test_every_default_is_a_point_of_its_space(name):
    on = GPUS[name]
    for problem in (*DECLARATION.cases(on), *DECLARATION.edge_cases, case("tf32", m=2048, n=2048, k=512)):
        for variant in WORK.variants:
            if not variant.unsupported(problem, on):
                config = variant.default(problem, on)
                assert config.keys() == variant.space.keys(), (variant.name, problem)
                if variant.name == "tiled" and next(variant.configs(problem, on), None):
                    assert not variant.fits(config, problem, on), problem
                if variant.name in ("tiled", "split", "vector"):
                    assert all(config[key] in values for key, values in variant.space.items()), (variant.name, problem)


def test_large_products_have_large_tiles_on_a_b200_and_small_ones_for_fma_on_a_t4():
    problem = case("bf16", m=8192, n=8192, k=8192)
    b200, t4 = (gpu(name, load_gpus()[name]) for name in ("b200", "t4"))
    for variant, shape in ((WORK.preferred(problem, b200), (128, 256)), (WORK.variant("tiled"), (128, 256))):
        config = variant.default(problem, b200)
        assert (config["BLOCK_M"], config["BLOCK_N"]) == shape and not variant.fits(config, problem, b200)
    config = WORK.preferred(problem, t4).default(problem, t4)
    assert config["BLOCK_M"] * config["BLOCK_N"] <= 64 * 64 and config["num_stages"] == 2


def test_the_space_on_the_h200_is_small_and_holds_the_known_best():
    on = GPUS["h200"]
    for problem in DECLARATION.cases(on):
        configs = [len(list(v.configs(problem, on))) for v in WORK.variants if not v.unsupported(problem, on)]
        assert 2 <= sum(configs) <= 50, problem  # few where a last round leaves most tiles behind
    # best of sweeps on an H200, within noise
    for name, sizes, best in (
        ("persistent", (4096, 4096, 4096), (128, 256, 64, 16, 8, 4, 2)),
        ("persistent", (8192, 8192, 8192), (128, 256, 64, 8, 8, 3, 1)),
        ("descriptor", (1024, 1024, 1024), (64, 128, 128, 8, 4, 4)),
        ("descriptor", (2048, 2048, 2048), (128, 256, 64, 8, 8, 4)),
        ("descriptor", (512, 4096, 14336), (128, 128, 64, 8, 8, 5)),  # dx of 512 tokens through 14336 features
        ("split_descriptor", (16, 8192, 8192), (16, 128, 128, 8, 2, 4, 5)),
        ("split_descriptor", (512, 512, 8192), (64, 128, 128, 8, 4, 4, 4)),
        ("vector", (1, 8192, 8192), (64, 512, 1, 16)),
    ):
        problem = case("bf16", **dict(zip("mnk", sizes, strict=True)))
        assert best in [tuple(config.values()) for config in WORK.variant(name).configs(problem, on)], (name, sizes)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_edge_cases_reach_every_tile_of_fp32_in_every_layout(layout, tile):
    on, variant = GPUS["h200"], WORK.variant("swizzled")
    config = dict(zip(variant.space, (*tile[:2], 32, 8, 1, 3, tile[2]), strict=True))
    reached = [
        problem
        for problem in DECLARATION.edge_cases
        if dict(problem.sizes).get("layout", "NN") == layout and not variant.unsupported(problem, on)
    ]
    assert any(config in list(variant.configs(problem, on)) for problem in reached)


@pytest.mark.parametrize(
    ("size", "tile"),
    [(1024, (64, 64, 4)), (1536, (64, 64, 4)), (4096, (64, 64, 2))],  # 2, 5 and 32 tiles of 64 x 64 an SM, 4 at a time
)
def test_products_of_fp32_that_leave_an_sm_few_tiles_in_the_end_get_more_warps_a_tile(size, tile):
    config = WORK.variant("swizzled").default(case("fp32", m=size, n=size, k=size), GPUS["h200"])
    assert (config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]) == tile


@pytest.mark.parametrize("name", ["matmul", "matmul_epilogue"])
def test_the_space_of_fp32_holds_the_best_by_hand_at_1024(name):
    sizes = {"m": 1024, "n": 1024, "k": 1024}
    flags = {"activation": "relu", "bias": True, "residual": False} if name == "matmul_epilogue" else {}
    variant = catalog.load(name).forward.variant("swizzled")
    configs = [tuple(config.values()) for config in variant.configs(case("fp32", **flags, **sizes), GPUS["h200"])]
    assert {(64, 64, 32, 8, 1, 3, 4), (128, 64, 32, 8, 1, 3, 8), (64, 128, 32, 8, 1, 3, 8)} <= set(configs)


def test_the_sweep_fits_the_memory_of_every_gpu():
    for on in GPUS.values():
        for problem in DECLARATION.cases(on):
            assert sum(WORK.bytes(problem).values()) <= on.memory_bytes / 8
