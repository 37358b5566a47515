"""Which tile a grouped product takes by default."""

import pytest
from atlas.declaration import case
from atlas.declaration.choice import untuned
from products_under_test import GPUS

from kernels.grouped_matmul import DECLARATION


def _chosen(direction, on, dtype, **sizes):
    """(variant, config) of a call of nothing tuned; the config fits."""
    problem = case(dtype, spread="even", **sizes)
    variant, config = untuned(DECLARATION.passes[direction], problem, GPUS[on])
    assert not variant.fits(config, problem, GPUS[on]), problem
    return variant.name, config


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("groups", "m"), [(8, 512), (8, 1024), (64, 1024), (64, 8192)])
def test_rows_at_whole_16_bytes_take_the_copy_engines_tiles_whatever_divides_them(direction, groups, m):
    """Triton knows of a size whether 16 divides it, and reads single elements through pointers where it does not."""
    for on in ("h100", "h200"):
        whole = _chosen(direction, on, "bf16", groups=groups, m=m, n=4096, k=2048)
        for n, k in ((4096, 2056), (4088, 2048), (4088, 2056)):
            assert _chosen(direction, on, "bf16", groups=groups, m=m, n=n, k=k) == whole


def test_rows_off_16_bytes_are_read_through_pointers():
    for n, k in ((4100, 2048), (4096, 2050)):
        variant, config = _chosen("forward", "h200", "bf16", groups=8, m=1024, n=n, k=k)
        assert variant == "tiled" and config["num_stages"] == 2
