"""Reductions: which variant a call takes, with which config, and the blocks that its programs have."""

import math

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.hardware import pretend
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus

from kernels.reduction import DECLARATION
from kernels.reduction.results import cache_policy
from kernels.reduction.tiling import block_of, whole_tile

GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}
FORWARD = DECLARATION.forward.variants


def test_few_results_are_shared_by_programs_and_many_are_not():
    def shared(outer, n):
        problem = case("fp32", outer=outer, n=n, inner=1, op="sum")
        return not DECLARATION.forward.variant("stream_twice").unsupported(problem, GPUS["h200"])

    assert shared(1, 2**20) and shared(16, 2**20) and not shared(8192, 2**15)


@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize(
    ("outer", "n", "inner"),
    [(1, 1, 1), (16384, 8, 128), (512, 16, 4096), (512, 2048, 5), (1, 2**20, 12), (2**17, 291, 1), (64, 513, 1001)],
    ids=str,
)
def test_a_block_fits_its_room_and_what_it_reduces(outer, n, inner, warps):
    config = {"VECTORS": 4, "BLOCK_C": 32, "num_warps": warps}
    block = block_of(config, outer, n, inner, 8, GPUS["h200"])
    assert block.matrices * block.rows * block.columns <= 32 * warps * 4 * 8
    assert block.matrices < 2 * outer and block.rows < 2 * n and block.columns < 2 * inner
    assert block.down == (inner >= 32)
    if block.down and warps == 1 and outer > 100:  # each thread has columns of its own, of whole vectors
        assert block.matrices * block.columns >= min(32 * math.gcd(inner, 8), block.columns)


def test_many_short_rows_have_no_program_each():
    def running(op, outer, n, inner=1):
        problem = case("bf16", outer=outer, n=n, inner=inner, op=op)
        return {v.name for v in FORWARD if not v.unsupported(problem, GPUS["h200"])}

    assert running("sum", 2**17, 291) == {"rows"}
    assert running("max", 2**17, 291) == {"blocks", "rows"}
    assert "stream" in running("sum", 2**12, 2**15) and "stream" in running("max", 16, 291)
    assert running("sum", 16384, 8, 128) == {"blocks"}
    assert running("sum", 512, 1024, 33) == {"folded", "blocks"}
    assert running("sum", 1, 32768, 102) == {"blocks"}, "64 programs of folded, with the parts of 64 each"
    assert running("sum", 1, 9001, 33) == {"folded", "blocks"}


def test_sums_of_many_long_rows_are_streamed_up_to_a_few_times_the_cache():
    def preferred(outer, n):
        problem = case("bf16", outer=outer, n=n, inner=1, op="mean")
        variant = DECLARATION.forward.preferred(problem, GPUS["h200"])
        return variant.name, variant.default(problem, GPUS["h200"])

    for outer, n in ((8192, 4096), (4096, 4099), (32768, 2048), (65536, 3001)):
        assert preferred(outer, n) == ("stream", {"VECTORS": 2, "num_warps": 4, "PER_SM": 1})
    for outer, n in ((1200, 2304), (65536, 3000), (1000, 8192)):
        assert preferred(outer, n)[0] == "rows"


def test_what_is_a_few_times_the_cache_leaves_it_first():
    def policy(megabytes):
        with pretend(GPUS["h200"]):  # an L2 of 63 MB
            return cache_policy(torch.empty((1, megabytes * 10**6 // 4, 1), device="meta"))

    assert [policy(4), policy(67), policy(134)] == ["evict_first"] * 3
    assert [policy(1074), policy(2147)] == [""] * 2


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name):
    for work in DECLARATION.passes.values():
        for problem in (*DECLARATION.cases(GPUS[name]), *DECLARATION.edge_cases, *DECLARATION.huge_cases):
            for variant in work.variants:
                if not variant.unsupported(problem, GPUS[name]):
                    configs = list(variant.configs(problem, GPUS[name]))
                    assert dict(variant.default(problem, GPUS[name])) in configs, (variant.name, str(problem))
                    assert len(configs) <= 45, (variant.name, str(problem), len(configs))


def default_on_h200(dtype, **sizes):
    """The config that an untuned call runs, of `blocks` or `strided`."""
    problem = case(dtype, **sizes)
    variant = DECLARATION.forward.preferred(problem, GPUS["h200"])
    assert variant.name == ("strided" if "far" in sizes else "blocks")
    return variant.default(problem, GPUS["h200"])


def test_untuned_programs_have_several_short_rows():
    """A program that begins and ends with two rows of 122 fp16 numbers takes 1.6 times as long."""
    of_one_block = default_on_h200("fp16", outer=32768, n=122, inner=1, op="amax")
    of_several = default_on_h200("fp16", outer=32768, n=300, inner=1, op="amax")
    assert (of_one_block["VECTORS"], of_several["VECTORS"]) == (4, 2)


def test_untuned_loops_over_odd_rows_load_eight_elements_a_thread_at_once():
    """Beyond them Triton 3.7 waits for one load after the other, but not in a first block, nor of maxima's indices."""
    sizes = {"outer": 256, "n": 29, "inner": 3877}
    assert default_on_h200("fp16", **sizes, op="mean")["VECTORS"] == 1
    assert default_on_h200("fp32", **sizes, op="mean")["VECTORS"] == 2
    assert default_on_h200("fp16", **sizes, op="max")["VECTORS"] == 2
    assert default_on_h200("fp16", **sizes | {"n": 7}, op="mean")["VECTORS"] == 2


def test_untuned_what_is_read_in_one_round_trip_is_not_shared_by_programs():
    """Counting programs and reading their parts takes two more: 56 of 14336 fp32 10.8 us, torch.compile 7.6."""
    image = {"outer": 1, "far": 8, "op": "amax", "gap": 0}
    for n, between in ((8 * 196, 2048), (8 * 3, 128), (8 * 1000, 1024)):
        problem = case("bf16", **image, n=n, inner=between, between=between)
        assert DECLARATION.forward.preferred(problem, GPUS["h200"]).name == "whole"
    assert not default_on_h200("bf16", **image, n=8 * 196, inner=2**14, between=2**14)["WHOLE"]


def test_untuned_columns_of_little_to_read_are_held_at_once_by_four_vectors_a_thread():
    """Of eight 214 x 64 takes 7.7 us, of four 5.5; what shares results is as fast from 2 MB and 512 rows on (H200)."""

    def preferred(dtype, outer, n, inner, op="sum"):
        problem = case(dtype, outer=outer, n=n, inner=inner, op=op)
        variant = DECLARATION.forward.preferred(problem, GPUS["h200"])
        return variant.name, variant.default(problem, GPUS["h200"])["VECTORS"]

    for dtype, *sizes in (("bf16", 1, 214, 64), ("bf16", 4, 300, 64), ("fp32", 1, 500, 512), ("fp32", 8, 200, 96)):
        assert preferred(dtype, *sizes) == preferred(dtype, *sizes, op="amax") == ("whole", 4)
        assert preferred(dtype, *sizes, op="ties")[0] != "whole"
    for sizes in ((1, 1000, 256), (64, 196, 768), (1, 40, 512), (1, 200, 8)):
        assert preferred("bf16", *sizes)[0] != "whole"


def test_untuned_axes_apart_of_4_bytes_are_held_at_once_up_to_more():
    """8 x 300 x 64 x 64 fp32 20.0 us, in blocks 31.4; 16 x 300 x 64 x 128 bf16 44.5, in blocks 29.4 (H200)."""
    found = [
        DECLARATION.forward.preferred(
            case(dtype, outer=1, n=far * n, inner=between * columns, op="sum", far=far, between=between, gap=0),
            GPUS["h200"],
        ).name
        for dtype, far, between, n, columns in (
            ("fp32", 8, 300, 64, 64),
            ("fp32", 12, 400, 32, 128),
            ("fp32", 16, 300, 64, 64),
            ("fp32", 8, 6000, 64, 4),
            ("fp32", 12, 600, 32, 128),
            ("bf16", 8, 600, 64, 64),
        )
    ]
    assert found == ["whole"] * 2 + ["strided"] * 4


@pytest.mark.parametrize("name", GPUS)
def test_what_one_program_holds_fits_its_block(name):
    """Of any sizes: a program has no second block."""
    space = DECLARATION.forward.variant("whole")
    for far, length, columns in ((5, 196, 1), (16, 16, 64), (1, 61, 37), (7, 33, 3), (1, 1000, 12), (2, 3, 5000)):
        problem = case("fp16", outer=3, n=far * length, inner=9 * columns, op="sum", far=far, between=9, gap=0)
        for config in space.configs(problem, GPUS[name]):
            tile = whole_tile(config, far * length, 9, columns, 8, math.gcd(8, length if columns == 1 else columns))
            assert tile.places * (1 if columns > 1 else tile.columns) >= far * length
            assert tile.elements <= 32 * config["num_warps"] * config["VECTORS"] * 8


def test_untuned_few_columns_are_shared_by_as_many_programs_as_there_are_sms():
    """1 x 2601 x 16 bf16 6.4 us, by two programs of `blocks` 13.2; 8 x 3000 x 32 7.9 and 14.6, 4 x 2000 x 24 7.1 and
    13.2; 1 x 100000 x 16 in larger blocks 8.6, and 13.6.  One program alone: 4 x 1685 x 8 5.6, of `columns` 6.2 (H200).
    """

    def preferred(dtype, outer, n, inner, op="sum"):
        problem = case(dtype, outer=outer, n=n, inner=inner, op=op)
        variant = DECLARATION.forward.preferred(problem, GPUS["h200"])
        return variant.name, *list(variant.default(problem, GPUS["h200"]).values())[:2]

    for sizes in ((1, 2601, 16), (1, 13394, 56), (8, 3000, 32), (4, 2000, 24), (1, 30000, 16)):
        assert preferred("bf16", *sizes) == preferred("bf16", *sizes, op="amax") == ("columns", 2, 16)
    assert preferred("bf16", 1, 2601, 16, op="max") == preferred("fp32", 1, 4000, 12, op="ties") == ("columns", 2, 16)
    assert preferred("bf16", 1, 20000, 4) == ("columns", 2, 8)
    assert preferred("bf16", 1, 100000, 16) == preferred("fp32", 1, 20000, 48) == ("columns", 4, 16)
    for sizes in ((4, 1685, 8), (1, 1000, 8), (8, 1000, 16), (1, 2**20, 12), (1, 200000, 16)):
        assert preferred("bf16", *sizes)[0] == "blocks"
    assert preferred("bf16", 1, 100000, 16, op="max")[0] == "blocks"
    assert preferred("bf16", 1, 3000, 33)[0] == "folded"


def test_untuned_wide_pieces_apart_are_added_up_by_four_warps():
    for far, n, between, columns in ((32, 1024, 256, 128), (7, 112, 2865, 64)):
        sizes = {"outer": 1, "n": n, "inner": between * columns, "far": far, "between": between, "gap": 0}
        config = default_on_h200("bf16", **sizes, op="mean")
        assert (config["VECTORS"], config["num_warps"]) == (8, 4)


def test_untuned_odd_rows_of_little_to_read_are_shared_by_more_programs():
    """Of 88 programs 12.4 us, of 264 10.6; of 6.7 MB four vectors are faster, 10.3 us for 12.4 (H200)."""
    assert default_on_h200("bf16", outer=4, n=448, inner=695, op="sum")["VECTORS"] == 2
    assert default_on_h200("bf16", outer=1, n=32768, inner=102, op="sum")["VECTORS"] == 4


def test_untuned_maxima_of_two_vectors_a_thread_have_warps_enough_to_keep_memory_busy():
    """1260 warps leave it idle, and take 47.1 us for 33.7 (H200)."""
    warps = [default_on_h200("bf16", outer=o, n=541, inner=612, op="amax")["num_warps"] for o in (126, 900)]
    assert warps == [4, 1]


def blocks_of(dtype, *shape, op):
    return tuple(default_on_h200(dtype, **dict(zip(("outer", "n", "inner"), shape, strict=True)), op=op).values())


def test_untuned_sums_of_words_that_read_long_have_small_blocks():
    """By 64 columns of 4 KiB where each SM gets eight programs: 1 x 32768 x 3832 132.6 us, of 16 KiB 160.5 (H200)."""
    assert blocks_of("fp32", 1, 32768, 3832, op="sum") == (2, 64, 4, 8)
    assert blocks_of("fp32", 30, 500, 700, op="amax") == (2, 64, 4, 8)
    assert blocks_of("fp32", 8, 60000, 320, op="mean") == (4, 64, 4, 8)
    for shape, op in (((48, 1186, 1498), "amax"), ((64, 1000, 1200), "sum")):  # too many to share: by single warps
        assert blocks_of("fp32", *shape, op=op) == (4, 64, 1, 32)
    assert blocks_of("fp32", 20, 700, 5000, op="amax") == (2, 64, 4, 1)
    for shape in ((1, 32768, 1136), (4, 20000, 1504)):
        assert blocks_of("bf16", *shape, op="sum") == (8, 128, 4, 4)
    assert blocks_of("fp32", 1, 8192, 300, op="sum") == (8, 32, 4, 4), "little to read"
    assert blocks_of("fp32", 1, 60000, 320, op="sum") == (8, 32, 4, 4), "128 programs at most share 64 columns"


def test_untuned_odd_rows_that_read_long_have_warps_enough():
    """Eight loads of a thread are under way: 20 x 3000 x 2047 by four warps 280 us, by single ones 130 (H200)."""
    for dtype, inner in (("fp32", 2047), ("fp32", 1023), ("fp32", 1801), ("bf16", 2050), ("bf16", 1802)):
        assert blocks_of(dtype, 20, 3000, inner, op="amax") == (2, 64, 1, 32)
    assert blocks_of("fp32", 1, 32768, 2047, op="sum") == (8, 128, 4, 4), "33 programs share 128 columns"
    halves = case("bf16", outer=20, n=3000, inner=1023, op="sum")
    assert DECLARATION.forward.preferred(halves, GPUS["h200"]).name == "folded", "a vector has eight of them"
    for inner in (1801, 2047):  # 54.2 us for 261, 80.2 for 97.2
        wide = case("bf16", outer=20, n=3000, inner=inner, op="sum")
        variant = DECLARATION.forward.preferred(wide, GPUS["h200"])
        assert variant.name == "folded"
        assert tuple(variant.default(wide, GPUS["h200"]).values()) == (8, 8, 2)
    for inner in (1111, 2049, 3001):  # loads of two bytes: of sixteen the compiler may wait for each pair
        assert blocks_of("bf16", 20, 3000, inner, op="sum") == (4, 128, 1, 32)
    many = case("fp32", outer=150, n=1000, inner=1023, op="sum")
    assert DECLARATION.forward.preferred(many, GPUS["h200"]).name == "folded", "more single warps than SMs hold"


def test_untuned_maxima_with_a_second_result_keep_memory_busy():
    """1152 warps of 48 x 1186 x 1498 take 184 us, of four each 106; 1136 by 32 columns 67, by 64 60 (H200)."""
    for dtype, inner, op in (("fp32", 1498, "ties"), ("bf16", 1500, "max")):
        assert blocks_of(dtype, 48, 1186, inner, op=op) == (2, 64, 4, 1)
    assert blocks_of("bf16", 64, 256, 16384, op="max") == (2, 64, 1, 1)
    assert blocks_of("bf16", 1, 53566, 1136, op="max") == (4, 64, 4, 8)
    assert blocks_of("fp32", 1, 53566, 1136, op="max") == (4, 32, 4, 4)
    assert blocks_of("bf16", 26, 8663, 80, op="ties") == (4, 32, 4, 4), "of 64 columns half of the second are empty"


def gradient_on_h200(dtype, outer, n, inner, op):
    problem = case(dtype, outer=outer, n=n, inner=inner, op=op)
    variant = DECLARATION.backward.preferred(problem, GPUS["h200"])
    return variant.name, variant.default(problem, GPUS["h200"]).get("BLOCK_N")


def test_untuned_tiles_do_not_reach_far_beyond_the_columns():
    """Of 1136 columns of max by 1024 54.5 us, by 256 36.9 (H200)."""
    for shape in ((1, 53566, 1136, "max"), (20, 1000, 3400, "ties"), (8, 500, 520, "ties")):
        assert gradient_on_h200("fp32", *shape) == ("tiles", 256)
    for shape in ((8, 9000, 264), (40, 1500, 840), (60, 2000, 328)):  # 21.6, 49.9, 39.5 us; by more 30.5, 59.8, 48.0
        assert gradient_on_h200("fp32", *shape, "max") == ("tiles", 64)
    for shape in ((64, 256, 16384, "max"), (10, 1000, 6000, "max"), (1, 16384, 5120, "ties"), (30000, 1160, 1, "ties")):
        assert gradient_on_h200("bf16", *shape) == ("tiles", 1024)


def test_untuned_gradients_of_max_are_filled_where_tiles_reach_far():
    """16 x 4000 x 520 bf16 20.1 us, by tiles 28.5 (H200); where a piece has too few rows for its results, tiles."""
    for shape in ((16, 4000, 520), (1, 100000, 648), (200, 3000, 72)):
        assert gradient_on_h200("bf16", *shape, "max")[0] == "filled"
    for shape in ((200, 300, 520), (1, 53566, 1136), (16, 4000, 512), (2, 2000, 520)):
        assert gradient_on_h200("fp16", *shape, "max")[0] == "tiles"
