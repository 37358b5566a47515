"""The words for where wrong elements lie."""

import pytest
import torch
from atlas.validation.patterns import describe


def mask(shape, *places):
    wrong = torch.zeros(shape, dtype=torch.bool)
    for place in places:
        wrong[place] = True
    return wrong


S = slice


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (mask((1,), S(0, 1)), "the only element"),
        (mask((4, 4), S(None)), "all 16 elements"),
        (mask((64, 64), (3, 7)), "1 of 4096 elements"),
        (mask((64, 64), (S(None), 7)), "64 of 4096 elements: column 7 of every row"),
        (mask((64, 64), (S(None), S(60, 64))), "the tail, the last 4 of 64 columns of every row, from 60 on"),
        (mask((64, 64), S(0, 64, 4)), "every 4th row, from 0 on"),
        (mask((64, 64), S(10, 12)), "rows 10 to 11"),
        (mask((64, 64), (63, S(55, 64))), "row 63, in part"),
        (mask((1000,), S(990, 1000)), "the tail, the last 10 of 1000 elements"),
        (mask((1000,), S(0, 10)), "the first 10 of 1000 elements"),
        # One program's tile: a rectangle; on the grid that its size makes, its place there.
        (mask((64, 64), (S(16, 32), S(32, 64))),
         "512 of 4096 elements: one tile of 16 x 32: rows 16 to 31, columns 32 to 63 (tile 1, 1 of a grid of them)"),
        (mask((64, 64), (S(0, 16), S(0, 32))), "one tile of 16 x 32: rows 0 to 15, columns 0 to 31 (tile 0, 0"),
        # The last one of 70 x 64 in tiles of 32 x 32: cut by the edge.
        (mask((70, 64), (S(64, 70), S(32, 64))), "of 6 x 32: rows 64 to 69, columns 32 to 63, cut by the edge"),
        # A rectangle on no grid: shifted by an offset, not a program's.
        (mask((64, 64), (S(5, 13), S(9, 20))), "one tile of 8 x 11: rows 5 to 12, columns 9 to 19"),
        (mask((64, 64), (S(0, 16), S(32, 64)), (S(32, 48), S(0, 32))),
         "2 tiles of 16 x 32, the first at rows 0 to 15, columns 32 to 63"),
        # A batch's leading dimensions count as rows.
        (mask((2, 32, 64), (1, S(0, 16), S(32, 64))), "one tile of 16 x 32: rows 32 to 47, columns 32 to 63"),
        (mask((1024,), S(128, 256), S(512, 640)), "2 blocks of 128 elements, the first from 128 on"),
    ],
)  # fmt: skip
def test_a_place_is_named(wrong, words):
    assert words in describe(wrong)


def test_a_rectangle_off_the_grid_has_no_place_in_one():
    assert "grid" not in describe(mask((64, 64), (S(5, 13), S(9, 20))))


def test_a_tile_that_is_right_in_places_is_still_recognised():
    """Wrong values agree with right ones here and there."""
    wrong = mask((64, 64), (S(16, 32), S(32, 64)))
    generator = torch.Generator().manual_seed(0)
    wrong &= torch.rand(wrong.shape, generator=generator) < 0.9
    wrong[16, 32] = wrong[31, 63] = True
    assert "most of one tile of 16 x 32: rows 16 to 31, columns 32 to 63 (tile 1, 1" in describe(wrong)


def test_scattered_elements_are_only_counted():
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand((64, 64), generator=generator) < 0.1
    assert describe(wrong) == f"{int(wrong.sum())} of 4096 elements"
