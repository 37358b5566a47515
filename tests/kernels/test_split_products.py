"""Products whose sums are cut: where parts of K begin, how they are added up, and into how many a call cuts."""

import pytest
import torch
from atlas import catalog
from atlas.declaration import case
from products_under_test import GPUS, PLAIN, chosen, judged, randn

from kernels.common.parts import count_of_parts, part_of_k
from kernels.matmul import DECLARATION
from kernels.matmul.rounds import sum_columns

WORK = DECLARATION.forward


@pytest.mark.parametrize(
    ("k", "splits", "block_k"),
    [
        *((7, 4, 64), (64, 2, 64), (4104, 3, 128), (10240, 24, 128)),
        *((70, 3, 16), (1, 16, 128), (8192, 4, 128), (129, 2, 128)),
    ],
)
def test_no_part_is_empty_and_all_begin_at_whole_blocks(k, splits, block_k):
    part, count = part_of_k(k, splits, block_k), count_of_parts(k, {"SPLITS": splits, "BLOCK_K": block_k})
    assert 1 <= count <= splits
    assert part % block_k == 0
    assert (count - 1) * part < k <= count * part


@pytest.mark.parametrize("splits", [1, 3, 8])
def test_parts_of_k_are_added_up_even_where_some_are_empty(splits):
    # 70 elements of K are 5 blocks: 8 parts leave 3 without any
    a, b = randn(24, 70), randn(70, 40, seed=1)
    config = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "SPLITS": splits, "num_warps": 4, "num_stages": 2}
    assert not judged(WORK.variant("split").launch(a, b, config=config), a, b)


@pytest.mark.parametrize(("first", "n"), [(8, 40), (3, 21)])
def test_parts_of_columns_are_added_up_into_a_wider_matrix(first, n):
    parts, c = torch.arange(3.0 * 5 * n).view(3, 5, n), torch.full((5, first + n), -1.0)
    sum_columns(parts, c[:, first:])
    assert torch.equal(c[:, first:], parts.sum(0))
    assert (c[:, :first] == -1).all()


@pytest.mark.parametrize("on", ["h100", "h200"])
def test_enough_programs_for_every_sm(on):
    for m, n, k in ((1, 768, 10240), (31, 1536, 6656), (64, 896, 4864), (512, 512, 8192), (100, 2304, 9728)):
        variant, config = chosen("matmul_epilogue", on, "bf16", **PLAIN, m=m, n=n, k=k)
        if variant == "clustered":
            programs = -(-max(m, n) // 64) * -(-min(m, n) // config["BLOCK_Q"]) * config["CLUSTER"]
        else:
            programs = -(-m // config["BLOCK_M"]) * -(-n // config["BLOCK_N"]) * count_of_parts(k, config)
        assert 50 <= programs <= 320, (m, n, k, config)


def test_parts_that_should_end_no_sooner_are_left_to_tiles_with_all_of_k():
    for dtype, m, n, k, parts in (
        ("bf16", 384, 1536, 3072, 1),  # timed; the estimate has three parts as long
        ("fp16", 576, 1024, 3072, 1),
        ("bf16", 192, 2048, 4608, 1),  # 64 x 256 would cover it with less waste
        ("bf16", 256, 768, 4096, 4),  # where they should end sooner
        ("tf32", 512, 512, 2048, 2),
    ):
        variant, config = chosen("matmul", "h200", dtype, layout="NT", m=m, n=n, k=k)
        assert variant == "split_descriptor" and count_of_parts(k, config) == parts


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ((80, 11008, 4096), (128, 128, 1)),  # 35.1 us; three parts of 128 x 256 39.2
        ((72, 10240, 8192), (128, 128, 1)),
        ((128, 16896, 2048), (128, 128, 1)),  # one for each SM
        ((96, 8192, 4096), (64, 128, 1)),  # 26.9 us; 64 of 128 x 128 32.2
        ((96, 9216, 4096), (128, 256, 3)),  # 72 of them: not timed
        ((80, 11008, 512), (128, 128, 1)),
        ((64, 11008, 4096), (64, 128, 1)),
    ],
)
def test_one_row_of_tiles_for_most_sms_is_multiplied_with_all_of_k(sizes, tile):
    way = catalog.load("matmul").forward.variant("split_descriptor")
    problem = case("bf16", **dict(zip("mnk", sizes, strict=True)), layout="NT")
    config = way.default(problem, GPUS["h200"])
    assert tuple(config[name] for name in ("BLOCK_M", "BLOCK_N", "SPLITS")) == tile
    assert not way.fits(config, problem, GPUS["h200"])


@pytest.mark.parametrize(("n", "k", "parts"), [(50257, 2048, 1), (32001, 4096, 3), (8193, 4100, 4), (4099, 9000, 8)])
def test_odd_rows_are_cut_into_parts_that_run_at_once_and_are_not_short(n, k, parts):
    assert chosen("matmul", "h200", "bf16", m=8, n=n, k=k)[1]["SPLITS"] == parts


def test_fp32_with_few_tiles_gets_parts_of_swizzled_ones():
    for kernel, flags in (("matmul", {"layout": "NT"}), ("matmul_epilogue", PLAIN)):
        variant, config = chosen(kernel, "h200", "fp32", **flags, m=512, n=512, k=2048)
        assert variant == "swizzled"
        assert config["SPLITS"] > 1


def test_tf32_of_few_tiles_goes_through_registers_in_parts_where_else_a_large_matrix_would_be_turned():
    variant, config = chosen("matmul", "h200", "tf32", m=128, n=4096, k=2560)
    assert (variant, config["SPLITS"]) == ("registers", 4)
    assert chosen("matmul", "h200", "tf32", m=128, n=4096, k=2560, layout="NT")[0] == "split_descriptor"
    assert chosen("matmul", "h200", "tf32", m=72, n=136, k=200, layout="TN")[0] == "split_descriptor"
