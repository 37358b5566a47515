"""`shared` of the products with packed weights: what no default that other tests compile shows."""

import inside_hopper
import pytest


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(("bits", "depth"), [(4, 2), (8, 4)])
def test_parts_of_k_are_added_by_what_each_triton_has(compiling, bits, depth, splits):
    """Gluon's names differ between Triton 3.6 and 3.7, and only programs that share k meet at a barrier of Gluon's."""
    config = {"ROW_TILES": 2, "DEPTH": depth, "num_warps": 4, "STAGES": 4, "SPLITS": splits}
    assert compiling(inside_hopper.shared_fragments, bits, config) == 0


@pytest.mark.parametrize(("bits", "depth", "group"), [(4, 2, 128), (4, 2, 32), (8, 4, 128)])
def test_64_rows_fit_registers_and_are_scaled_by_what_sm_80_has(compiling, bits, depth, group):
    """It multiplies no two bf16 but in an fma."""
    config = {"ROW_TILES": 2, "DEPTH": depth, "num_warps": 4, "STAGES": 3, "SPLITS": 4}
    assert compiling(inside_hopper.shared_fragments, bits, config, 64, group) == 0
