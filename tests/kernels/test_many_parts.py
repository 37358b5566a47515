"""Many parts of a small product, added up in the order of packed tiles."""

import pytest
import torch

from kernels.common.many_parts import sum_many_parts


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("count", "m", "k"), [(1, 3, 64), (16, 8, 1024), (25, 1, 96), (54, 8, 1024), (70, 40, 544)])
def test_parts_are_added_and_columns_put_right(count, m, k, dtype):
    parts = torch.randint(-2, 3, (count, m, k), generator=torch.Generator().manual_seed(0)).float()
    dx = torch.full((m, k), torch.nan, dtype=dtype)
    sum_many_parts(parts, dx)
    column = torch.arange(k)
    within = column // 2 % 4 * 8 + column // 8 % 4 * 2 + column % 2  # (wq, t, p) of a column (t, wq, p)
    assert torch.equal(dx.float(), parts.sum(0)[:, column // 32 * 32 + within])
