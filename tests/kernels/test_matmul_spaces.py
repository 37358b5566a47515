"""matmul's cases, spaces and defaults: every default fits, and each space holds the best known configs."""

import pytest
from atlas import catalog
from atlas.declaration import case
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from products_under_test import GPUS, LAYOUTS

from kernels.matmul import DECLARATION
from kernels.matmul.swizzled import TILES

WORK = DECLARATION.forward


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


def test_the_sweep_fits_the_memory_of_every_gpu():
    for on in GPUS.values():
        for problem in DECLARATION.cases(on):
            assert sum(WORK.bytes(problem).values()) <= on.memory_bytes / 8


@pytest.mark.parametrize("name", GPUS)
def test_every_default_is_a_point_of_its_space(name):
    on = GPUS[name]
    for problem in (*DECLARATION.cases(on), *DECLARATION.edge_cases, case("tf32", m=2048, n=2048, k=512)):
        for variant in WORK.variants:
            if not variant.unsupported(problem, on):
                config = variant.default(problem, on)
                assert config.keys() == variant.space.keys(), (variant.name, problem)
                if variant.name == "tiled" and variant.fits(config, problem, on):
                    assert not any(variant.configs(problem, on)), problem  # nothing else fits either
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
        variant = WORK.variant(name)
        assert all(value in values for value, values in zip(best, variant.space.values(), strict=True)), (name, sizes)
        assert not variant.fits(dict(zip(variant.space, best, strict=True)), problem, on), (name, sizes)


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
