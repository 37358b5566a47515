"""What `shifted` and `staggered` compute: few rows times matrices whose rows begin off 16 bytes."""

import pytest
import torch
from products_under_test import judged, laid, randn

from kernels.matmul import DECLARATION
from kernels.matmul.staggered import STAGGERED_SPACE

WORK = DECLARATION.forward


def laid_as(x, dtype):
    """``x`` in another dtype, in its strides and from its offset on."""
    held = torch.as_strided(x, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return held.to(dtype).as_strided(x.shape, x.stride(), x.storage_offset())


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(laid(5, 300, "T"), laid(300, 531, "N", seed=1), id="rows of 531"),
        pytest.param(laid(131, 70, "T"), laid(70, 16, "T", seed=1), id="columns of 131, A turned"),
        pytest.param(laid(2, 9, "N"), laid(9, 262, "N", seed=1)[:, :261], id="rows of 262, four of them at one place"),
        pytest.param(laid(3, 40, "N"), laid(40, 137, "N", seed=1)[:, 8:], id="rows that begin within others"),
        pytest.param(laid(3, 40, "N"), laid(40, 137, "N", seed=1)[:, 1:], id="the first row off 16 bytes"),
        pytest.param(laid(3, 7, "N"), laid(1, 129, "N", seed=1).expand(7, 129), id="one row repeated"),
        pytest.param(laid(17, 9, "N"), laid(9, 131, "N", seed=1), id="many rows"),
    ],
)
def test_sums_of_rows_at_one_place_are_shifted(a, b, splits):
    config = {"BLOCK_N": 128, "SPLITS": splits, "num_warps": 4}
    for dtype in (torch.float16, torch.bfloat16):
        x, y = laid_as(a, dtype), laid_as(b, dtype)
        assert not judged(WORK.variant("shifted").launch(x, y, config=config), x, y)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(laid(5, 517, "N"), laid(517, 43, "T", seed=1), id="rows of 517"),
        pytest.param(laid(67, 301, "N"), laid(301, 16, "N", seed=1), id="few columns, whose C is turned"),
        pytest.param(laid(20, 262, "T"), laid(262, 19, "T", seed=1), id="A by columns, every fourth row at one place"),
        pytest.param(laid(3, 7, "N"), laid(7, 21, "T", seed=1), id="rows that end where they begin"),
        pytest.param(laid(3, 40, "N"), laid(49, 21, "T", seed=1)[8:48], id="rows within others"),
        pytest.param(laid(3, 40, "N"), laid(49, 21, "T", seed=1)[1:41], id="the first row off 16 bytes"),
        pytest.param(laid(3, 40, "N"), laid(40, 1, "T", seed=1).expand(40, 21), id="one row repeated"),
        pytest.param(laid(65, 9, "N"), laid(9, 131, "T", seed=1), id="many rows"),
    ],
)
def test_rows_along_k_that_lie_alike_are_multiplied_together(a, b, splits):
    for dtype, copies in ((torch.float16, 0), (torch.bfloat16, 1)):
        config = dict(zip(STAGGERED_SPACE, (32, 128, splits, copies, 4), strict=True))
        x, y = laid_as(a, dtype), laid_as(b, dtype)
        assert not judged(WORK.variant("staggered").launch(x, y, config=config), x, y)


def test_what_lies_beside_odd_rows_is_in_no_sum():
    wide = torch.full((23, 309), torch.nan, dtype=torch.float16)
    b = wide[2:, 8:285].t()
    b.copy_(randn(*b.shape, dtype=torch.float16))
    a = randn(4, 277, dtype=torch.float16, seed=1)
    for copies in STAGGERED_SPACE["COPIES"]:
        config = dict(zip(STAGGERED_SPACE, (32, 128, 2, copies, 4), strict=True))
        assert not judged(WORK.variant("staggered").launch(a, b[:, 6:], config=config), a, b[:, 6:])


@pytest.mark.parametrize("copies", STAGGERED_SPACE["COPIES"])
@pytest.mark.parametrize("place", [0, 5, 100, 295, 300])
def test_an_infinity_at_either_end_of_odd_rows_meets_no_zero(place, copies):
    """The 16 bytes in which rows begin and end are multiplied apart, and are 0 in the blocks between."""
    a, b = randn(3, 301, dtype=torch.float16), randn(40, 301, dtype=torch.float16, seed=1).t()
    a[1, place] = torch.inf
    config = dict(zip(STAGGERED_SPACE, (32, 128, 1, copies, 4), strict=True))
    found = WORK.variant("staggered").launch(a, b, config=config)
    assert torch.equal(found[1], (a[1, place] * b[place]))
    assert not judged(found[::2], a[::2], b)
