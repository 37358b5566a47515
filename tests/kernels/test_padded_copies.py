"""Copies that products make of what they cannot read: equal, at whole 16 bytes, none without need."""

import pytest
import torch
from atlas.declaration.products import describable
from products_under_test import randn

from kernels.common.batches import copyable
from kernels.common.padded import padded, padded_rows
from kernels.matmul.described import along_k
from kernels.matmul.hopper_fp32 import in_a_row


def test_what_can_be_described_is_not_copied():
    x = torch.randn(5, 16)
    assert padded(x) is x
    assert padded(x.t()).data_ptr() == x.data_ptr()


@pytest.mark.parametrize(
    ("x", "by_columns"),
    [
        pytest.param(torch.randn(5, 67), False, id="rows of 268 bytes"),
        pytest.param(torch.randn(67, 5).t(), True, id="columns of 20 bytes stay columns"),
        pytest.param(torch.randn(9, 64)[:, 1:41], False, id="rows that begin off 16 bytes"),
        pytest.param(torch.randn(9, 64)[:, ::2], False, id="neither by rows nor by columns"),
        pytest.param(torch.randn(1, 16).expand(7, 16), False, id="one row for all: a stride of 0"),
        pytest.param(torch.randn(3000, 3), False, id="more rows than a block"),
        pytest.param(torch.randn(3, 3001), False, id="more columns than a block"),
    ],
)
def test_a_padded_copy_is_equal_and_lies_in_the_same_order(x, by_columns):
    copy = padded(x)
    assert torch.equal(copy, x)
    assert describable(copy.t() if by_columns else copy)


@pytest.mark.parametrize("shape", [(70, 130), (64, 1), (3, 200)], ids=str)
def test_a_copy_along_k_holds_the_same_values(shape):
    b = randn(*shape)
    copied = along_k(b)
    assert torch.equal(copied, b) and copied.stride() == (1, -(-shape[0] // 4) * 4)  # columns at whole 16 bytes
    assert along_k(copied) is copied or shape[1] == 1


def test_batches_in_a_row_end_at_whole_blocks_of_zeros():
    x = torch.randn(3, 45, 70)  # [batch, k, rows]: along its rows, and k is no whole block of 32
    read = in_a_row(x.transpose(1, 2))
    assert torch.equal(read, x.transpose(1, 2))
    memory = read.transpose(1, 2)
    assert memory.stride(0) == 64 * memory.stride(1)
    between = memory.as_strided((2, 19, 70), memory.stride(), memory.stride(0) - 19 * memory.stride(1))
    assert not between.any()


def test_batches_that_lie_right_are_read_as_they_are():
    along_k, shared = torch.randn(3, 70, 44), torch.randn(1, 70, 44).expand(3, 70, 44)
    assert in_a_row(along_k) is along_k
    assert in_a_row(shared) is shared
    gaps = torch.randn(3, 70, 88)[:, :, :44]
    assert in_a_row(gaps) is gaps


def test_padded_rows_keep_their_batches_apart():
    x = torch.randn(4, 3, 7)
    copy = padded_rows(x)
    assert torch.equal(copy, x)
    assert copyable(copy)


@pytest.mark.parametrize(("n", "alignment"), [(67, 16), (127, 16), (129, 128), (1023, 128)])
def test_long_rows_of_a_copy_begin_with_a_line_of_l2(n, alignment):
    copy = padded_rows(torch.randn(2, 3, n))
    assert [stride * 4 % alignment for stride in copy.stride()[:2]] == [0, 0]
    assert copy.stride(1) * 4 < n * 4 + alignment
    assert not copy.as_strided((2, 3, copy.stride(1) - n), copy.stride(), n).any()
