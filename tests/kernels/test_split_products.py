"""Products with few tiles, or with rows off 16 bytes: padded copies, parts of K, and what a call chooses."""

import pytest
import torch
from atlas import catalog
from atlas.declaration import case
from atlas.declaration.choice import explained, exported
from atlas.declaration.products import describable
from atlas.declaration.rows import points
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus

from kernels.common.batches import copyable
from kernels.common.padded import padded, padded_rows
from kernels.common.parts import count_of_parts, part_of_k
from kernels.matmul.hopper_fp32 import in_a_row
from kernels.matmul.rounds import columns_of_rounds, sum_columns

GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", True)}


def test_what_can_be_described_is_not_copied():
    x = torch.randn(5, 16)
    assert padded(x) is x
    assert padded(x.t()).data_ptr() == x.data_ptr()


@pytest.mark.parametrize(
    ("x", "by_columns"),
    [
        pytest.param(torch.randn(5, 67), False, id="rows of 268 bytes"),
        pytest.param(torch.randn(67, 5).t(), True, id="columns of 20 bytes stay columns"),
        pytest.param(torch.randn(9, 64)[:, 1:41], False, id="rows that begin off 16 bytes"),
        pytest.param(torch.randn(9, 64)[:, ::2], False, id="neither by rows nor by columns"),
        pytest.param(torch.randn(1, 16).expand(7, 16), False, id="one row for all: a stride of 0"),
        pytest.param(torch.randn(3000, 3), False, id="more rows than a block"),
        pytest.param(torch.randn(3, 3001), False, id="more columns than a block"),
    ],
)
def test_a_padded_copy_is_equal_and_lies_in_the_same_order(x, by_columns):
    copy = padded(x)
    assert torch.equal(copy, x)
    assert describable(copy.t() if by_columns else copy)


def test_batches_in_a_row_end_at_whole_blocks_of_zeros():
    x = torch.randn(3, 45, 70)  # [batch, k, rows]: along its rows, and k is no whole block of 32
    read = in_a_row(x.transpose(1, 2))
    assert torch.equal(read, x.transpose(1, 2))
    memory = read.transpose(1, 2)
    assert memory.stride(0) == 64 * memory.stride(1)
    between = memory.as_strided((2, 19, 70), memory.stride(), memory.stride(0) - 19 * memory.stride(1))
    assert not between.any()


def test_batches_that_lie_right_are_read_as_they_are():
    along_k, shared = torch.randn(3, 70, 44), torch.randn(1, 70, 44).expand(3, 70, 44)
    assert in_a_row(along_k) is along_k
    assert in_a_row(shared) is shared
    gaps = torch.randn(3, 70, 88)[:, :, :44]
    assert in_a_row(gaps) is gaps


def test_padded_rows_keep_their_batches_apart():
    x = torch.randn(4, 3, 7)
    copy = padded_rows(x)
    assert torch.equal(copy, x)
    assert copyable(copy)


@pytest.mark.parametrize(("n", "alignment"), [(67, 16), (127, 16), (129, 128), (1023, 128)])
def test_long_rows_of_a_copy_begin_with_a_line_of_l2(n, alignment):
    copy = padded_rows(torch.randn(2, 3, n))
    assert [stride * 4 % alignment for stride in copy.stride()[:2]] == [0, 0]
    assert copy.stride(1) * 4 < n * 4 + alignment
    assert not copy.as_strided((2, 3, copy.stride(1) - n), copy.stride(), n).any()


@pytest.mark.parametrize(("k", "splits", "block_k"), [(7, 4, 64), (64, 2, 64), (4104, 3, 128), (10240, 24, 128)])
def test_no_part_is_empty_and_all_begin_at_whole_blocks(k, splits, block_k):
    part, count = part_of_k(k, splits, block_k), count_of_parts(k, {"SPLITS": splits, "BLOCK_K": block_k})
    assert 1 <= count <= splits
    assert part % block_k == 0
    assert (count - 1) * part < k <= count * part


def chosen(kernel, on, dtype, **sizes):
    entries = exported("NVIDIA H200")[1] if on == "h200" else ()
    made = explained(catalog.load(kernel), "forward", case(dtype, **sizes), GPUS[on], entries)
    assert not made.variant.fits(made.config, case(dtype, **sizes), GPUS[on]), made
    return made.variant.name, made.config


PLAIN = {"activation": "none", "bias": True, "residual": False}


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


@pytest.mark.parametrize("on", ["h100", "h200"])
@pytest.mark.parametrize(("m", "n", "k"), [(2048, 2560, 1001), (351, 50257, 2048)])
def test_many_tiles_of_rows_off_16_bytes_are_padded_and_multiplied_by_groups(on, m, n, k):
    assert chosen("matmul", on, "bf16", m=m, n=n, k=k, layout="NT")[0] == "gluon"
    assert chosen("matmul_epilogue", on, "bf16", **PLAIN, m=m, n=n, k=k)[0] in ("specialized", "alternating")
    added = chosen("matmul_epilogue", on, "bf16", **PLAIN | {"residual": True}, m=m, n=n, k=k)[0]
    assert added == "split_descriptor" if n % 8 else added in ("specialized", "alternating")  # TMA fetches residuals


@pytest.mark.parametrize("residual", [False, True])
def test_a_linear_layer_with_a_tile_for_each_of_most_sms_is_multiplied_by_groups(residual):
    flags = PLAIN | {"residual": residual}
    for m, n, k in ((1217, 1600, 13824), (1664, 896, 4096), (2048, 1024, 1024)):
        assert chosen("matmul_epilogue", "h200", "bf16", **flags, m=m, n=n, k=k)[0] == "alternating"
    for m, n, k in ((1217, 896, 13824), (2048, 1024, 256)):
        assert chosen("matmul_epilogue", "h200", "bf16", **flags, m=m, n=n, k=k)[0] == "split_descriptor"


@pytest.mark.parametrize("on", ["h100", "h200"])
def test_enough_programs_for_every_sm(on):
    for m, n, k in ((1, 768, 10240), (31, 1536, 6656), (64, 896, 4864), (512, 512, 8192), (100, 2304, 9728)):
        variant, config = chosen("matmul_epilogue", on, "bf16", **PLAIN, m=m, n=n, k=k)
        if variant == "clustered":
            programs = -(-max(m, n) // 64) * -(-min(m, n) // config["BLOCK_Q"]) * config["CLUSTER"]
        else:
            programs = -(-m // config["BLOCK_M"]) * -(-n // config["BLOCK_N"]) * count_of_parts(k, config)
        assert 50 <= programs <= 320, (m, n, k, config)


def test_large_products_are_left_to_the_variants_that_overlap_tiles():
    assert chosen("matmul", "h200", "bf16", m=4096, n=4096, k=4096)[0] in ("gluon", "persistent")
    assert chosen("matmul_epilogue", "h200", "bf16", **PLAIN, m=4096, n=4096, k=4096)[0] in (
        "alternating",
        "specialized",
    )


def test_a_last_round_that_leaves_half_of_the_sms_idle_wants_other_tiles():
    """282 tiles of 128 x 256 take three rounds of 132 SMs; 384 of 192 x 128 three of three quarters the time each.

    2304 x 1408 are 108 of the former, and 132 of the latter: a round of all, and one of three quarters the time.
    """
    for m, n, k in ((6000, 1536, 2048), (2304, 1408, 4096)):
        variant, config = chosen("matmul", "h200", "bf16", m=m, n=n, k=k)
        assert (variant, config["GROUPS"] * config["ROWS"], config["BLOCK_N"]) == ("gluon", 192, 128)
    for m, n, k in ((4096, 2560, 6656), (2048, 5120, 1536)):  # 320: the third round's 56 are cut in two
        variant, config = chosen("matmul", "h200", "bf16", m=m, n=n, k=k)
        assert (variant, config["GROUPS"], config["BLOCK_N"]) == ("gluon", 2, 256)
    variant, config = chosen("matmul_epilogue", "h200", "bf16", **PLAIN, m=1024, n=2560, k=4000)
    assert variant == "specialized" and config["GROUPS"] == 3


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


def test_programs_beside_each_other_share_rows_of_a_tall_product():
    for m, n, group in ((4096, 384, 1), (8192, 256, 1), (1536, 1024, 8), (384, 4096, 8)):
        variant, config = chosen("matmul", "h200", "bf16", m=m, n=n, k=4096)
        assert (variant, config["GROUP_M"]) == ("split_descriptor", group)


def test_few_rows_take_tiles_of_few_rows_however_many_there_are():
    for kernel, flags in (("matmul", {"layout": "NT"}), ("matmul_epilogue", PLAIN)):
        for m, n, k, rows in ((4, 16384, 4096, 16), (14, 18944, 1152, 16), (64, 18944, 640, 64)):
            variant, config = chosen(kernel, "h200", "bf16", **flags, m=m, n=n, k=k)
            assert (variant, config["BLOCK_M"]) == ("split_descriptor", rows)
        assert chosen(kernel, "h200", "bf16", **flags, m=109, n=22016, k=2560)[0] != "split_descriptor"


def test_more_than_64_rows_of_a_long_sum_take_tiles_of_64():
    for m, n, k, rows in ((135, 3072, 2048, 64), (160, 3072, 3072, 64), (32, 2048, 3584, 32), (512, 512, 512, 64)):
        way = catalog.load("matmul").forward.variant("split_descriptor")
        assert way.default(case("bf16", m=m, n=n, k=k), GPUS["h200"])["BLOCK_M"] == rows


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


@pytest.mark.parametrize("sizes", [{"m": 4, "n": 4096}, {"m": 4096, "n": 8}], ids=str)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_few_rows_of_fp32_are_multiplied_without_a_copy_in_no_more_programs_than_run_at_once(layout, sizes):
    variant, config = chosen("matmul", "h200", "fp32", layout=layout, k=4096, **sizes)
    if layout == "NN" and sizes["m"] == 4:  # as the copy engine reads both
        assert variant == "split_descriptor"
    elif (layout, sizes["m"]) in (("TT", 4), ("NN", 4096)):  # rows across K, beside a matrix along it
        assert (variant, config["COLUMNS"] * config["SPLITS"]) == ("streamed", 8 if sizes["m"] == 4 else 4)
    else:
        assert variant == "few_rows"
        assert 132 < 4096 // config["BLOCK_N"] * config["SPLITS"] <= 3 * 132


@pytest.mark.parametrize(
    ("dtype", "sizes", "tile"),
    [
        ("fp32", {"m": 3, "n": 2051, "k": 4096, "layout": "TN"}, (64, 4, 12, 8)),
        ("fp32", {"m": 2051, "n": 3, "k": 4096, "layout": "TN"}, (64, 4, 12, 8)),
        ("fp32", {"m": 6, "n": 4099, "k": 3000}, (64, 4, 6, 4)),
        ("fp32", {"m": 5, "n": 4098, "k": 1024, "layout": "TN"}, (128, 4, 12, 4)),
        ("tf32", {"m": 8, "n": 4096, "k": 2051, "layout": "NT"}, (8, 1, 1, 4)),
        ("fp32", {"m": 12, "n": 4096, "k": 2051, "layout": "NT"}, (8, 1, 1, 4)),
        ("fp32", {"m": 8, "n": 1000, "k": 16385, "layout": "NT"}, (8, 1, 3, 4)),
        ("fp32", {"m": 12, "n": 4096, "k": 2051, "layout": "TT"}, None),  # too much is read beside sums of 16
        ("fp32", {"m": 9, "n": 2051, "k": 4096, "layout": "TN"}, None),
        ("tf32", {"m": 4, "n": 4096, "k": 4096, "layout": "TT"}, None),  # that tensor cores read
        ("bf16", {"m": 3, "n": 2051, "k": 4096, "layout": "TN"}, None),
    ],
    ids=str,
)
def test_few_rows_times_a_matrix_off_16_bytes_are_streamed(dtype, sizes, tile):
    variant, config = chosen("matmul", "h200", dtype, **sizes)
    assert (tuple(config.values()) if variant == "streamed" else None) == tile


@pytest.mark.parametrize("sizes", [{"m": 4, "n": 4096}, {"m": 4096, "n": 8}], ids=str)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_without_groups_of_warps_that_multiply_few_rows_are_few_rows_s(layout, sizes):
    assert chosen("matmul", "a100", "fp32", layout=layout, k=4096, **sizes)[0] == "few_rows"


@pytest.mark.parametrize(
    ("dtype", "sizes", "few"),
    [
        ("fp32", {"m": 16, "layout": "NT"}, True),
        ("fp32", {"m": 16, "layout": "NN"}, False),  # its sums fill the registers
        ("fp32", {"m": 16, "layout": "TT"}, False),
        ("fp32", {"m": 17, "layout": "NT"}, False),
        ("tf32", {"m": 2, "layout": "NT"}, False),  # which tensor cores read as it lies
        ("tf32", {"m": 4, "layout": "NN"}, False),  # which is `uncopied`
        ("tf32", {"m": 8, "layout": "NN"}, False),  # so many are read beside each block of the matrix
        ("fp32", {"m": 8, "layout": "TN"}, False),
        ("fp32", {"m": 8, "layout": "NT", "k": 2049}, False),
        ("fp32", {"m": 4, "layout": "NT", "k": 2049}, False),  # which is streamed
        ("tf32", {"m": 8, "layout": "NN", "k": 8192}, False),  # a copy is little beside so large a matrix
    ],
    ids=str,
)
def test_rows_are_few_where_fma_keeps_up_with_memory(dtype, sizes, few):
    assert (chosen("matmul", "h200", dtype, **{"n": 2048, "k": 2048} | sizes)[0] == "few_rows") == few


def test_groups_of_a_linear_layer_have_tiles_of_their_own_where_that_makes_better_rounds():
    """They read a third more from L2."""
    for m, n, k, variant in ((4096, 4096, 4096, "specialized"), (512, 14336, 4096, "alternating")):
        assert chosen("matmul_epilogue", "h100", "bf16", **PLAIN, m=m, n=n, k=k)[0] == variant


def test_a_tuned_config_whose_last_round_is_nearly_empty_here_is_passed_over():
    """A neighbour's persistent tiles, where rounds are full, do not come along to where they are not."""
    tuned = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 4, "PARTS": 2}
    persistent = catalog.load("matmul").forward.variant("persistent")
    on = GPUS["h200"]
    assert persistent.fits(tuned, case("bf16", m=4096, n=4096, k=4096), on) == ""
    assert "last round" in persistent.fits(tuned, case("bf16", m=6000, n=1536, k=2048), on)


def test_fp32_with_few_tiles_gets_parts_of_swizzled_ones():
    for kernel, flags in (("matmul", {"layout": "NT"}), ("matmul_epilogue", PLAIN)):
        variant, config = chosen(kernel, "h200", "fp32", **flags, m=512, n=512, k=2048)
        assert variant == "swizzled"
        assert config["SPLITS"] > 1


@pytest.mark.parametrize("on", ["a100", "t4"])
def test_gpus_without_a_copy_engine_keep_their_variants(on):
    dtype = "bf16" if on == "a100" else "fp16"
    assert chosen("matmul", on, dtype, m=64, n=896, k=4864)[0] in ("split", "tiled")
    assert chosen("matmul", on, dtype, m=2048, n=2560, k=1001)[0] == "tiled"


def test_batches_off_16_bytes_are_padded_where_copies_pay():
    assert chosen("batched_matmul", "h200", "bf16", b=8, m=1024, n=577, k=333)[0] == "direct"
    assert chosen("batched_matmul", "h200", "bf16", b=96, m=197, n=197, k=64, layout="NT")[0] == "direct"
    assert chosen("batched_matmul", "h200", "bf16", b=192, m=77, n=64, k=77)[0] == "tiled"
    assert chosen("batched_matmul", "h200", "fp16", b=48, m=197, n=197, k=64)[0] == "direct"
    for sizes in ({"b": 24, "m": 256, "n": 333, "k": 32}, {"b": 16, "m": 512, "n": 333, "k": 32, "layout": "TN"}):
        variant, config = chosen("batched_matmul", "h200", "bf16", **sizes)
        assert (variant, config["BLOCK_M"], config["BLOCK_N"]) == ("tiled", 64, 64)
    assert chosen("batched_matmul", "h200", "fp32", b=8, m=1024, n=1024, k=256, layout="NT")[0] == "bf16x6"


@pytest.mark.parametrize(
    ("dtype", "sizes", "tile"),
    [
        ("bf16", {"b": 8, "m": 197, "n": 77, "k": 77, "layout": "TN"}, (32, 32, 64)),
        ("fp16", {"b": 24, "m": 197, "n": 64, "k": 77}, (64, 32, 64)),
        ("bf16", {"b": 12, "m": 197, "n": 96, "k": 96, "layout": "TN"}, (32, 32, 64)),  # two for each SM
        ("fp32", {"b": 2, "m": 80, "n": 256, "k": 77}, (32, 32, 16)),
        ("fp32", {"b": 2, "m": 256, "n": 77, "k": 80, "layout": "TN"}, (32, 32, 16)),
    ],
)
def test_few_small_products_off_16_bytes_are_read_singly_in_small_tiles(dtype, sizes, tile):
    variant, config = chosen("batched_matmul", "h200", dtype, **sizes)
    assert (variant, config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]) == ("tiled", *tile)


@pytest.mark.parametrize(
    ("sizes", "variant"),
    [
        ({"m": 8, "n": 2048, "k": 5122, "layout": "NT"}, "odd_rows"),
        ({"m": 16, "n": 4098, "k": 2048}, "odd_rows"),
        ({"m": 8, "n": 2048, "k": 5121, "layout": "NT"}, "staggered"),  # off 4 bytes
        ({"m": 4099, "n": 24, "k": 1031}, "staggered"),
        ({"m": 16, "n": 1024, "k": 515, "layout": "NT"}, "staggered"),  # 5.6 us, before 8.4
        ({"m": 24, "n": 8191, "k": 601, "layout": "NT"}, "staggered"),  # 12.0 us, before 15.7
        ({"m": 64, "n": 4096, "k": 4095, "layout": "NT"}, "staggered"),  # 28.1 us, before 33.2
        ({"m": 48, "n": 2048, "k": 3003, "layout": "NT"}, "split_descriptor"),
        ({"m": 65, "n": 2048, "k": 5121, "layout": "NT"}, "split_descriptor"),
        ({"m": 10, "n": 512, "k": 769, "layout": "NT"}, "staggered"),  # 5.9 us, before 8.8
        ({"m": 8, "n": 256, "k": 1001, "layout": "NT"}, "split_descriptor"),  # soon copied
        ({"m": 5, "n": 50257, "k": 2048, "layout": "TN"}, "shifted"),
        ({"m": 32769, "n": 12, "k": 1028, "layout": "TT"}, "shifted"),
        ({"m": 8, "n": 4097, "k": 2048}, "split_descriptor"),  # soon copied
        ({"m": 5, "n": 50258, "k": 2048}, "odd_rows"),
        ({"m": 8, "n": 512, "k": 5122, "layout": "NT"}, "split_descriptor"),  # soon copied
        ({"m": 128, "n": 2048, "k": 5122, "layout": "NT"}, "split_descriptor"),
        ({"m": 1000, "n": 1001, "k": 1, "layout": "TN"}, "outer"),
    ],
    ids=str,
)
def test_few_rows_read_a_large_matrix_off_16_bytes_where_it_lies_and_few_products_leave_out_the_dot(sizes, variant):
    for on in ("h100", "h200"):
        assert chosen("matmul", on, "bf16", **sizes)[0] == variant


@pytest.mark.parametrize(
    ("sizes", "columns", "parts", "copies"),
    [
        ({"m": 8, "n": 1024, "k": 3001}, 32, 8, 0),  # 8.2 us, 9.4 by copies
        ({"m": 3, "n": 512, "k": 5001}, 32, 16, 0),  # 7.8 us, 9.5
        ({"m": 2, "n": 256, "k": 4001}, 32, 12, 0),  # 5.9 us, 7.6
        ({"m": 16, "n": 6912, "k": 8195}, 32, 1, 1),  # 45.6 us, 48.9 in 3 parts
        ({"m": 32, "n": 11008, "k": 4097}, 32, 1, 1),  # 44.7 us, 48.8 by 64, 62.1 without copies
        ({"m": 64, "n": 4096, "k": 4095}, 32, 1, 1),  # 28.1 us, 30.8 in 2 parts
        ({"m": 33, "n": 28672, "k": 1025}, 64, 1, 1),  # 48.3 us, 48.4 by 32
    ],
    ids=str,
)
def test_a_large_matrix_of_odd_rows_is_worth_copies_of_few_rows_and_a_small_one_parts(sizes, columns, parts, copies):
    variant, config = chosen("matmul", "h200", "bf16", **sizes, layout="NT")
    assert variant == "staggered"
    assert (config["BLOCK_N"], config["SPLITS"], config["COPIES"]) == (columns, parts, copies)


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [
        ({"m": 6, "n": 1280, "k": 512, "layout": "TN"}, (16, 16, 64, 1)),  # 5.5 us, before 12.1
        ({"m": 3, "n": 2048, "k": 1024, "layout": "TN"}, (16, 64, 64, 8)),  # 7.8 us, 10.4 by 16 columns
        ({"m": 7, "n": 4096, "k": 1024, "layout": "TN"}, (16, 64, 64, 4)),  # 10.2 us, 12.1
        ({"m": 7, "n": 8192, "k": 2048, "layout": "TN"}, (16, 64, 64, 2)),  # 26.2 us, before 29.9
        ({"m": 24, "n": 2048, "k": 1024, "layout": "TN"}, (32, 64, 64, 4)),  # 8.7 us, before 11.2
        ({"m": 64, "n": 1280, "k": 512, "layout": "TN"}, (64, 16, 64, 1)),  # 6.3 us, 7.6 by 64 columns in 4 parts
        ({"m": 1280, "n": 6, "k": 512, "layout": "TN"}, (16, 16, 64, 1)),
    ],
    ids=str,
)
def test_tf32_of_few_rows_is_cut_where_k_is_long(sizes, tile):
    variant, config = chosen("matmul", "h200", "tf32", **sizes)
    assert (variant, *list(config.values())[:4]) == ("uncopied", *tile)


@pytest.mark.parametrize(
    ("sizes", "variant"),
    [
        ({"m": 6, "n": 1280, "k": 512, "layout": "TN"}, "uncopied"),
        ({"m": 2048, "n": 16, "k": 1024, "layout": "TT"}, "uncopied"),
        ({"m": 6, "n": 1280, "k": 512, "layout": "NT"}, "split_descriptor"),  # along K
        ({"m": 65, "n": 2048, "k": 1024, "layout": "TN"}, "registers"),
        ({"m": 6, "n": 8192, "k": 4096, "layout": "TN"}, "registers"),  # large
        ({"m": 64, "n": 4096, "k": 2048, "layout": "TN"}, "registers"),  # beside so many rows
        ({"m": 6, "n": 1281, "k": 512, "layout": "TN"}, "streamed"),  # off 16 bytes
    ],
    ids=str,
)
def test_few_rows_of_tf32_read_a_small_matrix_across_k_as_it_lies(sizes, variant):
    for on in ("h100", "h200"):
        assert chosen("matmul", on, "tf32", **sizes)[0] == variant


@pytest.mark.parametrize(("n", "k", "parts"), [(50257, 2048, 1), (32001, 4096, 3), (8193, 4100, 4), (4099, 9000, 8)])
def test_odd_rows_are_cut_into_parts_that_run_at_once_and_are_not_short(n, k, parts):
    assert chosen("matmul", "h200", "bf16", m=8, n=n, k=k)[1]["SPLITS"] == parts


@pytest.mark.parametrize(("k", "layout", "columns"), [(8192, "NT", 256), (18944, "NT", 128), (18944, "NN", 256)])
def test_few_rows_read_long_rows_of_a_large_matrix_256_bytes_at_a_time(k, layout, columns):
    variant, config = chosen("matmul", "h200", "bf16", m=2, n=28672, k=k, layout=layout)
    assert (variant, config["BLOCK_N"]) == ("split_descriptor", columns)


@pytest.mark.parametrize(
    ("dtype", "n", "most"), [("fp32", 1001, 8), ("tf32", 1001, 4), ("fp16", 1001, 6), ("bf16", 1000, 4)]
)
def test_products_are_added_up_without_the_dot_while_that_takes_less_than_writing_c(dtype, n, most):
    for layout in ("NN", "TN"):
        of = [chosen("matmul", "h200", dtype, m=1000, n=n, k=k, layout=layout)[0] for k in (most, most + 1)]
        assert of[0] == "outer" != of[1]


def test_a_vector_is_multiplied_in_narrower_blocks_before_k_is_cut():
    for sizes, block_n in (
        ({"m": 1, "n": 4096, "k": 256}, 32),
        ({"m": 1, "n": 1024, "k": 4096, "layout": "NT"}, 4),
        ({"m": 1, "n": 256, "k": 4096, "layout": "NT"}, 2),
    ):
        variant, config = chosen("matmul", "h200", "fp32", **sizes)
        assert (variant, config["BLOCK_N"], config["SPLITS"]) == ("vector", block_n, 1)
    for k, block_n in ((10244, 8), (1024, 16)):  # rows of 4 KiB, but of no more than K has
        config = chosen("matmul", "h200", "bf16", m=1, n=8192, k=k, layout="NT")[1]
        assert (config["BLOCK_N"], config["BLOCK_K"]) == (block_n, 16384 // block_n)


@pytest.mark.parametrize(
    ("sizes", "variant"),
    [
        ({"b": 96, "m": 1024, "n": 64, "k": 197, "layout": "NT"}, "staged"),
        ({"b": 96, "m": 197, "n": 64, "k": 1024, "layout": "TN"}, "staged"),
        ({"b": 96, "m": 1024, "n": 197, "k": 64}, "staged"),  # a short sum
        ({"b": 4, "m": 2048, "n": 2047, "k": 2047}, "bf16x6"),  # sums that outweigh any copy
        ({"b": 2, "m": 80, "n": 77, "k": 255, "layout": "NT"}, "swizzled"),  # fewer tiles than SMs
    ],
    ids=str,
)
def test_products_of_fp32_are_copied_where_they_outweigh_that_and_read_by_many_tiles_as_they_lie(sizes, variant):
    assert chosen("batched_matmul", "h200", "fp32", **sizes)[0] == variant


@pytest.mark.parametrize(("first", "n"), [(8, 40), (3, 21)])
def test_parts_of_columns_are_added_up_into_a_wider_matrix(first, n):
    parts, c = torch.arange(3.0 * 5 * n).view(3, 5, n), torch.full((5, first + n), -1.0)
    sum_columns(parts, c[:, first:])
    assert torch.equal(c[:, first:], parts.sum(0))
    assert (c[:, :first] == -1).all()


def test_columns_of_whole_rounds_are_as_many_as_all_sms_take_in_step():
    tile = {"GROUPS": 2, "ROWS": 64, "BLOCK_N": 256}
    assert columns_of_rounds(256, 18944, tile, 132) == 66 * 256  # 2 x 66 tiles of 132
    assert columns_of_rounds(2216, 2880, tile, 132) == 7 * 256  # 18 x 7 of 132: an eighth column of tiles has no room
    assert columns_of_rounds(256, 4096, tile, 132) == 0  # less than one round
    assert columns_of_rounds(128, 132 * 256, tile, 132) == 132 * 256


@pytest.mark.parametrize(
    ("m", "n", "k", "layout", "beside"),
    [
        pytest.param(1024, 2560, 4096, "TN", 32, id="120 of 192 x 128 are 128 of 128 x 160"),
        pytest.param(768, 3328, 4096, "NT", 32, id="104 are 126"),
        pytest.param(2048, 1280, 3072, "TN", 32, id="110 are 128"),
        pytest.param(896, 3456, 4096, "NN", 64, id="135 of 192 x 128 are 126 of 128 x 192"),
        pytest.param(1152, 2304, 4096, "NT", 64, id="135 of 128 x 160 are a round and a bit, 108 of 128 x 192 one"),
        pytest.param(1502, 1536, 16384, "TN", 32, id="96 of 192 x 128 are 120 of 128 x 160"),
        pytest.param(512, 6144, 8960, "NN", 64, id="192 of 128 x 128 are 128 of 128 x 192"),
        pytest.param(1032, 2504, 4104, "NT", None, id="rows of B along K, off 128 bytes"),
        pytest.param(1032, 2504, 4104, "NN", 64, id="rows of B across K"),
        pytest.param(2304, 1408, 4096, "NN", None, id="144 of 128 x 192, and 132 of 192 x 128"),
        pytest.param(1024, 2048, 4096, "NN", None, id="128 of 128 x 128"),
        pytest.param(2048, 2048, 4096, "NN", None, id="128 of 128 x 256"),
        pytest.param(1024, 2560, 128, "TN", None, id="a sum so short that tiles are little of the time"),
        pytest.param(816, 2368, 23168, "NN", None, id="one so long that `rounds` spares more"),
    ],
)
def test_one_round_of_tiles_of_160_or_192_columns_where_others_make_a_worse_one(m, n, k, layout, beside):
    for kind in ("bf16", "fp16"):
        variant, config = chosen("matmul", "h200", kind, m=m, n=n, k=k, layout=layout)
        assert (variant == "columns", config.get("BESIDE")) == (beside is not None, beside)


def test_a_tile_of_columns_no_larger_than_need_be_is_tried_with_all_stages():
    way, on = catalog.load("matmul").forward.variant("columns"), GPUS["h200"]
    problem = case("bf16", m=1024, n=2560, k=4000, layout="TN")
    tried = [config for config in points(way.space) if not way.fits(config, problem, on)]
    assert tried == [way.default(problem, on)]


def test_a_long_sum_whose_last_round_is_nearly_empty_is_cut_along_k_there():
    assert chosen("matmul", "h200", "bf16", m=256, n=18944, k=14336, layout="NT")[0] == "rounds"
    assert chosen("matmul", "h200", "bf16", m=256, n=18944, k=2048, layout="NT")[0] != "rounds"
    assert chosen("matmul", "h200", "bf16", m=256, n=18944, k=14344, layout="NT")[0] == "gluon"  # off 128 bytes


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


def test_tf32_of_few_tiles_goes_through_registers_in_parts_where_else_a_large_matrix_would_be_turned():
    variant, config = chosen("matmul", "h200", "tf32", m=128, n=4096, k=2560)
    assert (variant, config["SPLITS"]) == ("registers", 4)
    assert chosen("matmul", "h200", "tf32", m=128, n=4096, k=2560, layout="NT")[0] == "split_descriptor"
    assert chosen("matmul", "h200", "tf32", m=72, n=136, k=200, layout="TN")[0] == "split_descriptor"
