"""Which variant and tile a product with fewer tiles than SMs takes by default."""

import pytest
from atlas import catalog
from atlas.declaration import case
from products_under_test import GPUS, PLAIN, chosen

from kernels.common.parts import count_of_parts


@pytest.mark.parametrize("on", ["h100", "h200"])
@pytest.mark.parametrize(
    ("m", "n", "k", "variant"),
    [
        pytest.param(16, 1536, 3584, "clustered", id="tens of rows"),
        pytest.param(253, 896, 11008, "split_descriptor", id="few tiles, a long sum"),
        pytest.param(351, 2048, 50257, "split_descriptor", id="rows off 16 bytes, few tiles"),
    ],
)
def test_few_tiles_are_split(on, m, n, k, variant):
    assert chosen("matmul", on, "bf16", m=m, n=n, k=k, layout="NT")[0] == variant
    assert chosen("matmul_epilogue", on, "bf16", **PLAIN, m=m, n=n, k=k)[0] == variant


@pytest.mark.parametrize(
    ("m", "n", "k", "layout", "tile", "parts"),
    [
        pytest.param(4096, 264, 8192, "NN", (256, 64), 1, id="three parts would be more programs than SMs"),
        pytest.param(2048, 264, 16384, "NT", (256, 64), 3, id="three parts are not"),
        pytest.param(264, 4096, 8192, "NT", (64, 256), 1, id="rows"),
        pytest.param(3072, 520, 3072, "NN", (256, 64), 1, id="a tenth fewer of a tall one"),
        pytest.param(520, 3072, 3072, "NT", (128, 128), 1, id="a tenth fewer of another are no sooner"),
        pytest.param(4100, 135, 4096, "NN", (128, 64), 1, id="rows of C off 16 bytes"),
        pytest.param(4096, 384, 4096, "NN", (128, 128), 1, id="whole tiles"),
    ],
)
def test_sizes_little_beyond_whole_tiles_are_covered_by_fewer(m, n, k, layout, tile, parts):
    """The fastest of all tiles and parts on an H200; each was timed."""
    variant, config = chosen("matmul", "h200", "bf16", m=m, n=n, k=k, layout=layout)
    assert variant == "split_descriptor"
    assert (config["BLOCK_M"], config["BLOCK_N"]) == tile and count_of_parts(k, config) == parts


@pytest.mark.parametrize(
    ("flags", "variant"),
    [
        ({}, "split_descriptor"),
        ({"residual": True}, "alternating"),  # it would spill beside the sums, as the error function does
        ({"activation": "gelu"}, "alternating"),
    ],
    ids=str,
)
def test_a_linear_layer_leaves_them_to_split_descriptor_where_nothing_spills(flags, variant):
    for m, n, k in ((4096, 264, 8192), (264, 4096, 8192)):
        assert chosen("matmul_epilogue", "h200", "bf16", **PLAIN | flags, m=m, n=n, k=k)[0] == variant


@pytest.mark.parametrize(
    ("m", "n", "tile"),
    [
        (136, 11008, (64, 256)),
        (192, 8704, (64, 256)),
        (300, 6144, (64, 256)),
        (832, 2560, (64, 256)),
        (10000, 136, (256, 64)),
    ],
)
def test_one_round_of_tiles_of_less_waste_is_taken_for_two_of_others(m, n, tile):
    for kernel, flags in (("matmul", {"layout": "NT"}), ("matmul_epilogue", PLAIN)):
        variant, config = chosen(kernel, "h200", "bf16", **flags, m=m, n=n, k=4096)
        assert variant == "split_descriptor"
        assert (config["BLOCK_M"], config["BLOCK_N"], config["SPLITS"]) == (*tile, 1)
    # 172 of them are two rounds as well; beside a residual they spill
    assert chosen("matmul", "h200", "bf16", m=200, n=11008, k=4096, layout="NT")[0] != "split_descriptor"
    spilling = PLAIN | {"residual": True}
    assert chosen("matmul_epilogue", "h200", "bf16", **spilling, m=m, n=n, k=4096)[0] != "split_descriptor"


@pytest.mark.parametrize(
    ("m", "n", "k", "tile"),
    [
        (17024, 16, 4096, (128, 32)),  # 52.5 us, 64.7 by `specialized`
        (32768, 8, 4096, (128, 32)),  # 76, 93 by `gluon`
        (12288, 64, 4096, (128, 64)),  # 37.7, 43.9 by `specialized`
        (9216, 64, 1536, (128, 64)),  # 16.4, 19.8 by `gluon`
    ],
)
def test_few_columns_take_tiles_of_few_columns_however_many_there_are(m, n, k, tile):
    for kernel, flags in (("matmul", {"layout": "NT"}), ("matmul_epilogue", PLAIN)):
        variant, config = chosen(kernel, "h200", "bf16", **flags, m=m, n=n, k=k)
        assert (variant, config["BLOCK_M"], config["BLOCK_N"]) == ("split_descriptor", *tile)


def test_programs_beside_each_other_share_rows_of_a_tall_product():
    for m, n, group in ((4096, 384, 1), (8192, 256, 1), (1536, 1024, 8), (384, 4096, 8)):
        variant, config = chosen("matmul", "h200", "bf16", m=m, n=n, k=4096)
        assert (variant, config["GROUP_M"]) == ("split_descriptor", group)


def test_more_than_64_rows_of_a_long_sum_take_tiles_of_64():
    for m, n, k, rows in ((135, 3072, 2048, 64), (160, 3072, 3072, 64), (32, 2048, 3584, 32), (512, 512, 512, 64)):
        way = catalog.load("matmul").forward.variant("split_descriptor")
        assert way.default(case("bf16", m=m, n=n, k=k), GPUS["h200"])["BLOCK_M"] == rows


def test_few_rows_go_to_clusters_that_run_at_once():
    for sizes in ({"m": 16, "n": 256}, {"m": 256, "n": 16}):
        variant, config = chosen("matmul", "h200", "fp16", **sizes, k=16384, layout="NT")
        assert variant == "clustered" and config["BLOCK_Q"] == 16 and config["CLUSTER"] == 8
    for m, n, k, layout, size in (
        (64, 2048, 6144, "NN", 3),  # 32 tiles: 30 clusters of 4 run at once
        (64, 1024, 16384, "NT", 6),
        (96, 768, 2048, "TT", 4),
        (128, 1024, 2048, "NT", 3),
        (24, 1536, 1024, "NT", 4),
        (16, 4096, 1024, "NT", 1),  # fewer rows than wgmma's first operand has
        (48, 8192, 1024, "TN", 1),  # few rows of A by columns
        (16, 256, 512, "NT", 1),
    ):
        variant, config = chosen("matmul", "h200", "bf16", m=m, n=n, k=k, layout=layout)
        assert (variant, config["CLUSTER"]) == ("clustered", size), (m, n, k)
    for m, n, k in ((16, 256, 448), (130, 256, 16384), (64, 4096, 1024), (128, 2048, 512), (72, 3072, 1536)):
        assert chosen("matmul", "h200", "bf16", m=m, n=n, k=k, layout="NT")[0] == "split_descriptor"
    assert chosen("matmul", "a100", "bf16", m=16, n=256, k=16384, layout="NT")[0] != "clustered"


@pytest.mark.parametrize("on", ["a100", "t4"])
def test_gpus_without_a_copy_engine_keep_their_variants(on):
    dtype = "bf16" if on == "a100" else "fp16"
    assert chosen("matmul", on, dtype, m=64, n=896, k=4864)[0] in ("split", "tiled")
    assert chosen("matmul", on, dtype, m=2048, n=2560, k=1001)[0] == "tiled"
