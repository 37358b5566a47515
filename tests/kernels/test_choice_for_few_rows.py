"""Which variant few rows take by default: their time is that of reading the matrix, where it lies or from a copy."""

import pytest
from products_under_test import PLAIN, chosen


def test_few_rows_take_tiles_of_few_rows_however_many_there_are():
    for kernel, flags in (("matmul", {"layout": "NT"}), ("matmul_epilogue", PLAIN)):
        for m, n, k, rows in ((4, 16384, 4096, 16), (14, 18944, 1152, 16), (64, 18944, 640, 64)):
            variant, config = chosen(kernel, "h200", "bf16", **flags, m=m, n=n, k=k)
            assert (variant, config["BLOCK_M"]) == ("split_descriptor", rows)
        assert chosen(kernel, "h200", "bf16", **flags, m=109, n=22016, k=2560)[0] != "split_descriptor"


@pytest.mark.parametrize("gpu", ["h200", "h100"])
@pytest.mark.parametrize("k", [5124, 5123])
def test_few_rows_read_a_matrix_off_16_bytes_where_it_lies_however_many_tiles_there_are(gpu, k):
    for m in (1, 8, 64):
        for n in (4096, 14336, 28672):
            assert chosen("matmul_epilogue", gpu, "bf16", **PLAIN, m=m, n=n, k=k)[0] == "staggered"
            assert chosen("matmul", gpu, "bf16", m=m, n=n, k=k, layout="NT")[0] == ("vector" if m == 1 else "staggered")
    assert chosen("matmul_epilogue", gpu, "bf16", **PLAIN, m=1, n=16, k=k)[0] == "split_descriptor"  # W is small


@pytest.mark.parametrize("gpu", ["h200", "h100"])
@pytest.mark.parametrize("m", [2, 8, 64])
def test_few_rows_take_tiles_of_few_rows_where_rows_of_c_or_of_few_rows_are_off_16_bytes(gpu, m):
    rows = max(16, m)
    for n in (11203, 32001, 50257, 50260):
        for k in (1024, 4096):
            variant, config = chosen("matmul_epilogue", gpu, "bf16", **PLAIN, m=m, n=n, k=k)
            assert variant in ("split_descriptor", "clustered") and config.get("BLOCK_M", rows) == rows
            assert chosen("matmul", gpu, "bf16", m=m, n=n, k=k, layout="NT")[0] in ("split_descriptor", "clustered")
    assert chosen("matmul", gpu, "bf16", m=m - 1, n=28672, k=4096, layout="TT")[0] in ("split_descriptor", "vector")


@pytest.mark.parametrize(("k", "layout", "columns"), [(8192, "NT", 256), (18944, "NT", 128), (18944, "NN", 256)])
def test_few_rows_read_long_rows_of_a_large_matrix_256_bytes_at_a_time(k, layout, columns):
    variant, config = chosen("matmul", "h200", "bf16", m=2, n=28672, k=k, layout=layout)
    assert (variant, config["BLOCK_N"]) == ("split_descriptor", columns)


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
        ({"m": 8, "n": 2048, "k": 5122, "layout": "NT"}, "staggered"),
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
    ("dtype", "n", "most"), [("fp32", 1001, 8), ("tf32", 1001, 4), ("fp16", 1001, 6), ("bf16", 1000, 4)]
)
def test_products_are_added_up_without_the_dot_while_that_takes_less_than_writing_c(dtype, n, most):
    for layout in ("NN", "TN"):
        of = [chosen("matmul", "h200", dtype, m=1000, n=n, k=k, layout=layout)[0] for k in (most, most + 1)]
        assert of[0] == "outer" != of[1]
