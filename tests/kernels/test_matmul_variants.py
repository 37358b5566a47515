"""What matmul's variants compute, on the interpreter: layouts, tails, tiles, descriptors."""

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER
from products_under_test import LAYOUTS, judged, laid, randn

from kernels.matmul import DECLARATION, described

WORK = DECLARATION.forward
TILED = WORK.variant("tiled")
INTERPRETED = [v for v in WORK.variants if v.name not in ("gluon", "columns", "clustered", "streamed")]


def small(name, a, b):
    """The product by variant ``name`` with its default config."""
    problem = case("fp16", m=a.shape[0], n=b.shape[1], k=a.shape[1])
    return WORK.variant(name).launch(a, b, config=WORK.variant(name).default(problem, INTERPRETER))


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


@pytest.mark.parametrize("group", [4, 16])
@pytest.mark.parametrize("tiles", [(1, 5), (7, 3)], ids=str)
def test_every_tile_is_computed_whatever_the_group(tiles, group):
    # 7 rows of tiles leave a last group of other height; NaN shows a tile that no program owned
    a, b = randn(16 * tiles[0], 16), randn(16, 32 * tiles[1], seed=1)
    config = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": group, "num_warps": 4, "num_stages": 2}
    assert not judged(TILED.launch(a, b, config=config), a, b)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_program_takes_tile_after_tile_and_writes_them_in_parts(parts):
    # the interpreter counts as 4 SMs: 6 x 3 tiles leave two programs with four and two with five
    a, b = randn(90, 40, dtype=torch.float16), randn(40, 80, dtype=torch.float16, seed=1)
    config = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 4, "PARTS": parts}
    config |= {"num_warps": 4, "num_stages": 2}
    assert not judged(WORK.variant("persistent").launch(a, b, config=config), a, b)


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
