"""`few_rows` of matmul: sums whose values depend on layouts that the compiler chooses."""

import inside
import pytest


@pytest.mark.parametrize("by_rows", [False, True])
def test_no_sum_goes_along_two_axes_merged_into_one(compiling, by_rows):
    """Of those Triton 3.6 adds up other lanes where those are apart: with a dY of 70 equal rows, as here."""
    layouts = compiling(inside.layouts_of_few_rows, by_rows)
    assert len(layouts) == 3 and not [layout for layout in layouts if "linear" in layout]
