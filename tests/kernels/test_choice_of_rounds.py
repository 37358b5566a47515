"""Which variant and tile a product with a tile for each SM takes by default, so that its last round is full."""

import pytest
from atlas import catalog
from atlas.declaration import case
from atlas.declaration.rows import points
from products_under_test import GPUS, PLAIN, chosen

from kernels.matmul.rounds import columns_of_rounds


@pytest.mark.parametrize("on", ["h100", "h200"])
@pytest.mark.parametrize(("m", "n", "k"), [(2048, 2560, 1001), (351, 50257, 2048)])
def test_many_tiles_of_rows_off_16_bytes_are_padded_and_multiplied_by_groups(on, m, n, k):
    assert chosen("matmul", on, "bf16", m=m, n=n, k=k, layout="NT")[0] == "gluon"
    assert chosen("matmul_epilogue", on, "bf16", **PLAIN, m=m, n=n, k=k)[0] in ("specialized", "alternating")
    added = chosen("matmul_epilogue", on, "bf16", **PLAIN | {"residual": True}, m=m, n=n, k=k)[0]
    assert added == "split_descriptor" if n % 8 else added in ("specialized", "alternating")  # TMA fetches residuals


def test_large_products_are_left_to_the_variants_that_overlap_tiles():
    assert chosen("matmul", "h200", "bf16", m=4096, n=4096, k=4096)[0] in ("gluon", "persistent")
    assert chosen("matmul_epilogue", "h200", "bf16", **PLAIN, m=4096, n=4096, k=4096)[0] in (
        "alternating",
        "specialized",
    )


@pytest.mark.parametrize("residual", [False, True])
def test_a_linear_layer_with_a_tile_for_each_of_most_sms_is_multiplied_by_groups(residual):
    flags = PLAIN | {"residual": residual}
    for m, n, k in ((1217, 1600, 13824), (1664, 896, 4096), (2048, 1024, 1024)):
        assert chosen("matmul_epilogue", "h200", "bf16", **flags, m=m, n=n, k=k)[0] == "alternating"
    for m, n, k in ((1217, 896, 13824), (2048, 1024, 256)):
        assert chosen("matmul_epilogue", "h200", "bf16", **flags, m=m, n=n, k=k)[0] == "split_descriptor"


def test_groups_of_a_linear_layer_have_tiles_of_their_own_where_that_makes_better_rounds():
    """They read a third more from L2."""
    for m, n, k, variant in ((4096, 4096, 4096, "specialized"), (512, 14336, 4096, "alternating")):
        assert chosen("matmul_epilogue", "h100", "bf16", **PLAIN, m=m, n=n, k=k)[0] == variant


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


def test_a_tuned_config_whose_last_round_is_nearly_empty_here_is_passed_over():
    """A neighbour's persistent tiles, where rounds are full, do not come along to where they are not."""
    tuned = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 4, "PARTS": 2}
    persistent = catalog.load("matmul").forward.variant("persistent")
    on = GPUS["h200"]
    assert persistent.fits(tuned, case("bf16", m=4096, n=4096, k=4096), on) == ""
    assert "last round" in persistent.fits(tuned, case("bf16", m=6000, n=1536, k=2048), on)


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


def test_columns_of_whole_rounds_are_as_many_as_all_sms_take_in_step():
    tile = {"GROUPS": 2, "ROWS": 64, "BLOCK_N": 256}
    assert columns_of_rounds(256, 18944, tile, 132) == 66 * 256  # 2 x 66 tiles of 132
    assert columns_of_rounds(2216, 2880, tile, 132) == 7 * 256  # 18 x 7 of 132: an eighth column of tiles has no room
    assert columns_of_rounds(256, 4096, tile, 132) == 0  # less than one round
    assert columns_of_rounds(128, 132 * 256, tile, 132) == 132 * 256


def test_a_long_sum_whose_last_round_is_nearly_empty_is_cut_along_k_there():
    assert chosen("matmul", "h200", "bf16", m=256, n=18944, k=14336, layout="NT")[0] == "rounds"
    assert chosen("matmul", "h200", "bf16", m=256, n=18944, k=2048, layout="NT")[0] != "rounds"
    assert chosen("matmul", "h200", "bf16", m=256, n=18944, k=14344, layout="NT")[0] == "gluon"  # off 128 bytes
