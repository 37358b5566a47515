"""Batched matrix multiplication on the interpreter: values, layouts, shared matrices, gradients, refusals."""

import dataclasses

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.choice import untuned
from atlas.declaration.hardware import GPU, INTERPRETER

from kernels.batched_matmul import DECLARATION, bmm, case_of
from kernels.batched_matmul.clustered import launch_clustered
from kernels.batched_matmul.staged import launch_staged
from kernels.common import padded, tiles
from kernels.common.batches import by_columns, copyable, is_shared, padded_batches

VARIANTS = [v for v in DECLARATION.forward.variants if v.name not in ("clustered", "staged")]
"""Gluon is not interpreted."""


def randn(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def laid(batch, rows, columns, layout, shared=False, seed=0):
    """fp16 matrices by rows (N) or by columns (T); a ``shared`` one is expanded over the batch."""
    shape = (rows, columns) if layout == "N" else (columns, rows)
    matrices = randn(1 if shared else batch, *shape, dtype=torch.float16, seed=seed).expand(batch, *shape)
    return matrices if layout == "N" else matrices.transpose(1, 2)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
@pytest.mark.parametrize("shared", ["", "a", "b", "ab"])
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_either_layout_and_shared_matrices_are_read_where_they_lie(variant, shared, layout):
    # tails in every size, so that a tile at an edge would show another product's elements
    a, b = laid(3, 24, 40, layout[0], "a" in shared), laid(3, 40, 56, layout[1], "b" in shared, seed=1)
    config = variant.default(case("fp16", b=3, m=24, n=56, k=40), INTERPRETER)
    assert copyable(a) and copyable(b)
    torch.testing.assert_close(variant.launch(a, b, config=config), torch.bmm(a, b), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("shared", ["", "a"])
def test_one_launch_copies_both_operands_whose_rows_are_off_16_bytes(monkeypatch, layout, shared):
    launched, original = [], padded.launch
    monkeypatch.setattr(padded, "launch", lambda *x, **meta: launched.append(x[0]) or original(*x, **meta))
    a, b = laid(3, 69, 77, layout[0], shared == "a"), laid(3, 77, 133, layout[1], False, seed=1)
    copies = padded_batches(a, b)
    for copy, matrices in zip(copies, (a, b), strict=True):
        torch.testing.assert_close(copy, matrices, rtol=0, atol=0)
        assert copyable(copy) and by_columns(copy) == by_columns(matrices) and is_shared(copy) == is_shared(matrices)
    assert len(launched) == 1
    assert padded_batches(*copies) == copies and len(launched) == 1


@pytest.mark.parametrize("copy", [padded.padded_rows, tiles.turned])
def test_copies_of_more_products_than_a_grid_has_rows(monkeypatch, copy):
    """CUDA counts no further than 65535 along a grid's second axis."""
    grids = []
    for module in (padded, tiles):
        monkeypatch.setattr(module, "launch", lambda kernel, grid, *call, **meta: grids.append(grid))
    copy(torch.empty(65_536, 100, 35, device="meta"))
    assert len(grids) == 1 and max(grids[0][1:], default=1) <= 65_535


H200 = GPU("h200", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=141 * 2**30, l2_bytes=60 * 2**20)


OTHERS = dataclasses.replace(
    DECLARATION.forward, variants=tuple(v for v in DECLARATION.forward.variants if v.name != "staged")
)
"""What is taken where `staged` is not: what it is compared with."""


def default_tile(dtype, **sizes):
    variant, config = untuned(OTHERS, case(dtype, **sizes), H200)
    return variant.name, config["BLOCK_M"], config["BLOCK_N"]


def test_fp32_takes_a_variant_that_counts_the_products():
    assert [default_tile("fp32", b=b, m=64, n=64, k=64)[0] for b in (65_535, 65_536)] == ["swizzled", "tiled"]


def test_fp32_takes_wide_tiles_where_64_rows_would_be_empty_in_part_and_small_ones_where_sms_would_idle():
    assert default_tile("fp32", b=16, m=512, n=512, k=64) == ("swizzled", 64, 64)
    assert default_tile("fp32", b=24, m=160, n=768, k=768, layout="TN") == ("tiled", 32, 256)
    assert default_tile("fp32", b=96, m=80, n=768, k=77, layout="NT") == ("tiled", 16, 256)
    assert default_tile("fp32", b=24, m=64, n=128, k=768) == ("tiled", 64, 32)


def test_fp32_takes_two_warps_where_64_columns_would_be_half_empty_and_copies_of_operands_both_read_singly():
    for sizes in ({"m": 333, "n": 96, "k": 77, "layout": "TN"}, {"m": 200, "n": 96, "k": 64}):
        variant, config = untuned(OTHERS, case("fp32", b=96, **sizes), H200)
        assert (variant.name, config["BLOCK_N"], config["BLOCK_K"], config["num_warps"]) == ("tiled", 32, 16, 2)
        assert config in list(variant.configs(case("fp32", b=96, **sizes), H200))
    assert default_tile("fp32", b=96, m=333, n=64, k=77, layout="TN") == ("tiled", 64, 64)
    assert default_tile("fp32", b=24, m=333, n=333, k=77)[0] == "swizzled"


@pytest.mark.parametrize(
    ("sizes", "deep"),
    [
        ({"b": 16, "m": 128, "n": 128, "k": 2048}, True),  # 64 tiles of 64 x 64
        ({"b": 24, "m": 96, "n": 64, "k": 1024}, True),
        ({"b": 64, "m": 128, "n": 128, "k": 2048}, False),  # 256
        ({"b": 16, "m": 128, "n": 128, "k": 704}, False),
    ],
)
def test_few_tiles_of_long_sums_have_deep_blocks(sizes, deep):
    variant, config = untuned(DECLARATION.forward, case("bf16", **sizes), H200)
    assert variant.name == "persistent"
    found = tuple(config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages"))
    assert (found == (64, 64, 128, 6)) == deep
    assert config in list(variant.configs(case("bf16", **sizes), H200))


@pytest.mark.parametrize(
    ("sizes", "values"),
    [
        ({"b": 8, "m": 96, "n": 256, "k": 96, "layout": "TN"}, (32, 128, 1)),  # a light program for each tile
        ({"b": 2, "m": 1024, "n": 256, "k": 96, "layout": "TN"}, (64, 128, 1)),
        ({"b": 6, "m": 128, "n": 128, "k": 4096, "layout": "NT"}, (64, 128, 4)),
        ({"b": 2, "m": 64, "n": 128, "k": 512}, (32, 64, 8)),
        ({"b": 2, "m": 96, "n": 128, "k": 577, "layout": "NT"}, (32, 128, 5)),  # copied
        ({"b": 8, "m": 256, "n": 256, "k": 1024}, None),  # takes 7.8 us in clusters, 6.3 by `persistent`
        ({"b": 12, "m": 1024, "n": 96, "k": 128}, None),  # more tiles than SMs
        ({"b": 8, "m": 96, "n": 333, "k": 256, "layout": "NT"}, None),  # rows of C off 16 bytes
        ({"b": 2, "m": 16, "n": 256, "k": 1024}, None),  # few rows
        ({"b": 2, "m": 64, "n": 64, "k": 16384}, None),
    ],
)
def test_few_tiles_are_made_by_light_programs_or_by_clusters(sizes, values):
    for dtype in ("bf16", "fp16"):
        variant, config = untuned(DECLARATION.forward, case(dtype, **sizes), H200)
        assert (tuple(config.values()) if variant.name == "clustered" else None) == values
        assert config in list(variant.configs(case(dtype, **sizes), H200))
    assert untuned(DECLARATION.forward, case("bf16", **sizes), INTERPRETER)[0].name != "clustered"


@pytest.mark.parametrize(("dtype", "k"), [(torch.float16, 0), (torch.float16, 120), (torch.float32, 1024)])
def test_what_clusters_do_not_take_is_made_without_them(dtype, k):
    config = {"BLOCK_Q": 32, "BLOCK_K": 64, "CLUSTER": 3}
    a, b = randn(2, 40, k, dtype=dtype), randn(2, k, 48, dtype=dtype, seed=1)
    torch.testing.assert_close(launch_clustered(a, b, config=config), torch.bmm(a, b), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize(
    ("dtype", "sizes", "values"),
    [  # microseconds on an H200 so, by what was taken before, by cuBLAS
        ("fp32", {"b": 64, "m": 768, "n": 333, "k": 77, "layout": "TN"}, (128, 0, 16, 0)),  # 74, 124, 91
        ("fp32", {"b": 64, "m": 768, "n": 77, "k": 333, "layout": "NT"}, (64, 16, 16, 0)),  # 67, 149, 95
        ("fp32", {"b": 64, "m": 77, "n": 333, "k": 768}, (64, 16, 16, 1)),  # 69, 160, 121
        ("fp32", {"b": 24, "m": 577, "n": 577, "k": 77, "layout": "NT"}, (128, 0, 16, 0)),  # 45, 69, 53
        ("fp32", {"b": 96, "m": 333, "n": 96, "k": 77}, (64, 32, 16, 0)),  # 21.8, 29.7, 28.8
        ("fp32", {"b": 24, "m": 512, "n": 256, "k": 256}, (64, 0, 32, 0)),  # 30.7, 36.7, 49.1
        ("fp32", {"b": 24, "m": 333, "n": 197, "k": 197, "layout": "TN"}, (64, 0, 32, 0)),  # 27.1, 43.6, 26.1
        ("fp32", {"b": 8, "m": 577, "n": 197, "k": 1024}, (64, 0, 32, 0)),  # 57.4, 62.3, 84.0
        ("fp32", {"b": 2, "m": 197, "n": 256, "k": 333, "layout": "TN"}, None),  # 12.6, 8.7: few tiles
        ("fp32", {"b": 12, "m": 768, "n": 768, "k": 768, "layout": "TN"}, None),  # 166, 144: terms are read often
        ("fp32", {"b": 64, "m": 128, "n": 96, "k": 512, "layout": "NT"}, None),  # 25.9, 24.2
        ("fp32", {"b": 96, "m": 333, "n": 48, "k": 77}, None),  # fewer columns than a tile has
        ("tf32", {"b": 64, "m": 197, "n": 77, "k": 333, "layout": "TN"}, (64, 0, 32, 0)),  # 21.2, 28.6, 25.9
        ("tf32", {"b": 192, "m": 128, "n": 96, "k": 64, "layout": "TN"}, (64, 0, 32, 0)),  # 12.2, 13.6, 8.7
        ("tf32", {"b": 12, "m": 333, "n": 577, "k": 77, "layout": "NT"}, (64, 0, 32, 0)),  # 13.2, 20.8, 15.3
        ("tf32", {"b": 24, "m": 577, "n": 333, "k": 197}, None),  # 39.5, 30.7
        ("tf32", {"b": 64, "m": 577, "n": 64, "k": 128}, None),  # 15.6, 14.7: nothing is copied
        ("tf32", {"b": 12, "m": 1024, "n": 768, "k": 256, "layout": "TN"}, None),  # 57.2, 32.6
    ],
)
def test_what_is_copied_read_singly_or_empty_in_part_goes_through_registers_to_tensor_cores(dtype, sizes, values):
    variant, config = untuned(DECLARATION.forward, case(dtype, **sizes), H200)
    found = tuple(config[name] for name in ("BLOCK_N", "TAIL", "BLOCK_K", "TURNED")) if "TAIL" in config else None
    assert found == values and config in list(variant.configs(case(dtype, **sizes), H200))
    assert untuned(DECLARATION.forward, case(dtype, **sizes), INTERPRETER)[0].name != "staged"


@pytest.mark.parametrize(
    ("shape", "turned", "dtype"),
    [((70, 7, 90), 0, torch.float16), ((70, 0, 90), 0, torch.float32), ((70, 7, 60), 0, torch.float32),
     ((60, 7, 70), 0, torch.float32), ((70, 7, 60), 1, torch.float32)],
)  # fmt: skip
def test_what_does_not_go_through_registers_is_made_without_them(shape, turned, dtype):
    """Other dtypes, sums of nothing, and fewer rows or columns than a tile has: of C, or of its transpose."""
    (m, k, n), config = shape, {"BLOCK_M": 64, "BLOCK_N": 64, "TAIL": 16, "BLOCK_K": 16, "TURNED": turned}
    a, b = randn(2, m, k, dtype=dtype), randn(2, k, n, dtype=dtype, seed=1)
    torch.testing.assert_close(launch_staged(a, b, config=config), torch.bmm(a, b), rtol=2e-3, atol=2e-2)


def test_an_a_by_columns_off_16_bytes_is_read_singly_where_a_copy_takes_longer():
    assert default_tile("bf16", b=192, m=577, n=64, k=77, layout="TN") == ("tiled", 128, 64)
    assert default_tile("bf16", b=192, m=77, n=577, k=64)[0] == "direct"


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ({"b": 12, "m": 1024, "n": 128, "k": 96, "layout": "NT"}, (64, 64)),  # few tiles of short sums
        ({"b": 8, "m": 577, "n": 197, "k": 128, "layout": "TN"}, (64, 64)),
        ({"b": 8, "m": 1024, "n": 577, "k": 333}, (64, 128)),  # rows of C off 16 bytes
        ({"b": 96, "m": 197, "n": 197, "k": 64, "layout": "NT"}, (64, 128)),
        ({"b": 12, "m": 333, "n": 512, "k": 1024, "layout": "NT"}, (64, 128)),  # 14.4 us, 20.4 by `persistent`
        ({"b": 12, "m": 577, "n": 333, "k": 1024, "layout": "TN"}, (64, 128)),  # 31.1, 35.7
        ({"b": 96, "m": 80, "n": 96, "k": 768, "layout": "TN"}, None),  # 13.2, 12.7
        ({"b": 8, "m": 1024, "n": 576, "k": 333}, None),
        ({"b": 48, "m": 512, "n": 768, "k": 96}, None),
        ({"b": 24, "m": 512, "n": 577, "k": 577}, None),
        ({"b": 512, "m": 128, "n": 128, "k": 128}, None),
    ],
)
def test_few_tiles_or_short_sums_of_odd_rows_take_several_programs_an_sm(sizes, tile):
    variant, config = untuned(DECLARATION.forward, case("bf16", **sizes), H200)
    found = (config["BLOCK_M"], config["BLOCK_N"]) if variant.name == "direct" else None
    assert found == tile and config in list(variant.configs(case("bf16", **sizes), H200))


def test_fp32_goes_to_tensor_cores_where_products_outweigh_the_terms_that_are_made_of_operands():
    sizes = {"b": 16, "m": 512, "n": 512, "k": 512}
    assert untuned(DECLARATION.forward, case("fp32", **sizes), H200)[0].name == "bf16x6"


@pytest.mark.parametrize(
    ("sizes", "columns"),
    [
        ({"b": 96, "m": 333, "n": 77, "k": 96, "layout": "NT"}, 32),
        ({"b": 96, "m": 100, "n": 96, "k": 256}, 32),
        ({"b": 96, "m": 77, "n": 96, "k": 333}, 64),  # A read element by element
        ({"b": 96, "m": 333, "n": 96, "k": 77, "layout": "TN"}, None),
        ({"b": 24, "m": 333, "n": 333, "k": 77}, None),  # B, too
        ({"b": 8, "m": 768, "n": 64, "k": 80, "layout": "NT"}, None),
    ],
)
def test_fp32_of_many_small_products_goes_to_tensor_cores_where_programs_make_terms(sizes, columns):
    variant, config = untuned(OTHERS, case("fp32", **sizes), H200)
    assert (config["BLOCK_N"] if variant.name == "terms" else None) == columns
    assert config in list(variant.configs(case("fp32", **sizes), H200))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_terms_keep_fp32s_range_infinities_and_nan():
    a, b = randn(2, 70, 40), randn(2, 40, 33, seed=1)
    a[0, 0, 0], a[0, 1, 1], a[0, 2, 2], b[1, :, 5] = torch.inf, torch.nan, torch.finfo(torch.float32).max, 0
    b[:, 2] *= 1e-5
    variant = DECLARATION.forward.variant("terms")
    found = variant.launch(a, b, config=variant.default(case("fp32", b=2, m=70, n=33, k=40), INTERPRETER))
    torch.testing.assert_close(found, torch.bmm(a, b), equal_nan=True)


def test_tf32_that_is_not_copied_along_k_takes_tiles_of_more_rows_where_those_of_16_are_many():
    assert default_tile("tf32", b=2, m=333, n=96, k=77) == ("tiled", 16, 64)
    assert default_tile("tf32", b=12, m=577, n=77, k=96, layout="TN") == ("tiled", 32, 32)
    assert default_tile("tf32", b=12, m=577, n=96, k=77, layout="NT") == ("tiled", 32, 32)
    assert default_tile("tf32", b=8, m=768, n=96, k=96) == ("tiled", 128, 64)


def test_tf32_is_copied_along_k_where_that_pays():
    assert default_tile("tf32", b=2, m=96, n=128, k=80) == ("tiled", 16, 64)
    assert default_tile("tf32", b=2, m=96, n=128, k=80, layout="NT")[0] == "persistent"
    assert default_tile("tf32", b=2, m=96, n=128, k=1024)[0] == "persistent"


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_a_call_asks_for_the_config_of_its_layout(layout):
    problem = case_of(laid(3, 24, 40, layout[0]), laid(3, 40, 56, layout[1]), False)
    assert problem == case("fp16", b=3, m=24, n=56, k=40, **({} if layout == "NN" else {"layout": layout}))


@pytest.mark.parametrize(
    "a",
    [
        randn(2, 6, 20)[:, ::2, 1:8],
        randn(3, 7).expand(2, 3, 7),
        randn(1, 1, 1).expand(2, 3, 7),
        randn(3, 2, 7).transpose(0, 1),
        randn(2, 3, 7, dtype=torch.float64).float()[:, :, :],
    ],
    ids=["every second row from an offset", "one for all", "one value", "batch in the middle", "plain"],
)
def test_matrices_may_have_any_strides(a):
    b = randn(2, 7, 5, seed=1)
    torch.testing.assert_close(bmm(a, b), torch.bmm(a, b))


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)], ids=str)
def test_products_over_nothing_are_zero_and_of_nothing_empty(shape):
    batch, m, k, n = shape
    assert torch.equal(bmm(torch.ones(batch, m, k), torch.ones(batch, k, n)), torch.zeros(batch, m, n))


def test_gradients_agree_with_torch_and_a_shared_matrix_has_the_sum():
    a, b, dc = randn(3, 5, 7).requires_grad_(), randn(7, 4, seed=1).requires_grad_(), randn(3, 5, 4, seed=2)
    for got, right in zip(
        *(torch.autograd.grad(f(a, b.expand(3, 7, 4)), (a, b), dc) for f in (bmm, torch.bmm)), strict=True
    ):
        torch.testing.assert_close(got, right)


def test_gradients_of_gradients_agree_with_torch():
    a, b, dc = randn(2, 3, 5).requires_grad_(), randn(2, 5, 4, seed=1).requires_grad_(), randn(2, 3, 4, seed=2)

    def second(product):
        first = torch.autograd.grad(product(a, b), (a, b), dc, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (a, b))

    for got, right in zip(second(bmm), second(torch.bmm), strict=True):
        torch.testing.assert_close(got, right)


def test_torch_compile_takes_it_whole_with_its_gradients():
    a, b = randn(2, 8, 12).requires_grad_(), randn(2, 12, 4, seed=1).requires_grad_()
    fast = torch.compile(lambda x, y: bmm(x * 2, y).relu(), backend="aot_eager", fullgraph=True)
    expected, dc = torch.bmm(a * 2, b).relu(), randn(2, 8, 4, seed=2)
    torch.testing.assert_close(fast(a, b), expected)
    for got, right in zip(
        torch.autograd.grad(fast(a, b), (a, b), dc), torch.autograd.grad(expected, (a, b), dc), strict=True
    ):
        torch.testing.assert_close(got, right)


def test_the_operator_is_what_torch_expects_of_one():
    op = torch.ops.kernel_atlas.bmm.default
    torch.library.opcheck(op, (randn(2, 3, 4).requires_grad_(), randn(2, 4, 5), False))


@pytest.mark.parametrize(
    ("a", "b", "error", "says"),
    [
        (randn(2, 3, 4), randn(2, 3, 4), ValueError, r"\(2, 3, 4\) and \(2, 3, 4\)"),
        (randn(2, 3, 4), randn(1, 4, 5), ValueError, "takes"),  # torch does not broadcast here either
        (randn(3, 4), randn(4, 5), ValueError, "takes"),
        (randn(2, 3, 4), randn(2, 4, 5).half(), TypeError, "float16"),
        (randn(2, 3, 4).double(), randn(2, 4, 5).double(), TypeError, "fp32, fp16, bf16"),
        (randn(2, 3, 4), torch.empty(2, 4, 5, device="meta"), ValueError, "one device"),
        (torch.empty(1, 2**31, 1, device="meta"), torch.empty(1, 1, 1, device="meta"), ValueError, "up to"),
    ],
    ids=["inner sizes", "batches", "two dimensions", "two dtypes", "fp64", "two devices", "2^31 rows"],
)
def test_what_is_not_supported_is_refused_with_the_reason(a, b, error, says):
    with pytest.raises(error, match=says):
        bmm(a, b)
