"""Parts of `direct` in the order in which lanes have them, and the kernel that adds these up, interpreted."""

import types

import pytest
import torch
from gluon_by_lane import as_python

from kernels.matmul_w4a16 import direct_parts


class Sums:
    """A tensor with what ``store_part`` asks of Gluon's."""

    def __init__(self, numbers):
        self.numbers, self.shape, self.type = numbers, list(numbers.shape), types.SimpleNamespace(layout=None)

    def reshape(self, shape):
        return Sums(self.numbers.reshape(shape))

    def permute(self, *order):
        return Sums(self.numbers.permute(order))


def stored(sums):
    """What ``store_part`` leaves in memory of sums [64 rows of W, rows of x]."""
    memory = torch.full((sums.numel(),), torch.nan)

    def store(places, values):
        memory[places] = values.numbers

    instead = types.SimpleNamespace(
        arange=lambda begin, end, layout: torch.arange(begin, end), store=store, constexpr=object
    )
    function = as_python([direct_parts])["store_part"]
    scope = function.__globals__ | {"gl": instead, "ROWS": 64}
    types.FunctionType(function.__code__, scope)(0, Sums(sums))
    return memory


def test_a_lane_has_sixteen_bytes_side_by_side():
    rows, columns = torch.arange(64)[:, None], torch.arange(128)[None, :]
    lane, of_warp = rows % 8 * 4 + columns % 8 // 2, rows // 16 * 32
    found = stored((of_warp + lane).float()).view(-1, 32, 4)  # of each four neighbours the thread that stores them
    assert (found == found[:, :, :1]).all()
    assert (found[:, :, 0] % 32 == torch.arange(32)).all()


@pytest.mark.parametrize(("m", "n", "rows", "groups", "parts"), [
    (300, 400, 256, 2, 3), (70, 136, 64, 1, 2), (24, 264, 32, 2, 4), (150, 392, 128, 3, 2), (1100, 72, 128, 1, 2),
])  # fmt: skip
def test_parts_are_added_in_their_order(m, n, rows, groups, parts):
    columns, whole, band = 64 * groups, 1, 8
    tiles_m, tiles_n = -(-m // rows), -(-n // columns)
    cut = tiles_m * tiles_n - whole
    draw = torch.Generator().manual_seed(0)
    products = torch.randint(-9, 10, (parts, tiles_m * rows, tiles_n * columns), generator=draw).float()
    memory, covered = torch.empty(parts, cut, groups, 64 * rows), torch.zeros(m, n, dtype=torch.bool)
    for tile in range(whole, tiles_m * tiles_n):
        first = tile // (band * tiles_n) * band
        height = min(tiles_m - first, band)
        within = tile % (band * tiles_n)
        at_m, at_n = (first + within % height) * rows, within // height * columns
        covered[at_m : at_m + rows, at_n : at_n + columns] = True
        for part in range(parts):
            for group in range(groups):
                block = products[part, at_m : at_m + rows, at_n + 64 * group : at_n + 64 * group + 64]
                memory[part, tile - whole, group] = stored(block.t())
    y = torch.full((m, n), torch.nan, dtype=torch.float16)
    direct_parts.sum_tiles_kernel[(cut * groups * (rows // 32),)](
        memory, y, m, n, whole, cut, PARTS=parts, BLOCK_M=rows, BLOCK_N=columns, GROUP_M=band, ROWS_AT_ONCE=32,
        TURNED=False, EARLY=False,
    )  # fmt: skip
    expected = torch.where(covered, products.sum(0)[:m, :n], torch.nan)
    assert torch.equal(y.nan_to_num(99), expected.half().nan_to_num(99))
