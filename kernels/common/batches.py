"""Batches of matrices [b, m, n] as the copy engine (TMA) reads them: by rows, one where all share it, or copies."""

from atlas.declaration.products import describable

from kernels.common.padded import padded_rows, two_padded_rows
from kernels.common.tiles import turned


def padded_batch(matrices):
    """The matrices as the copy engine can read them; else copies, in the same order, of one matrix if all share it."""
    if copyable(matrices):
        return matrices
    if by_columns(matrices) and matrices.stride(1) == 1:
        return padded_batch(matrices.transpose(1, 2)).transpose(1, 2)
    return padded_rows(matrices[:1] if is_shared(matrices) else matrices).expand(matrices.shape)


def padded_batches(x, y):
    """The same of both, of one dtype: where neither can be read, one launch copies both, which spares 2.3 us (H200)."""
    if copyable(x) or copyable(y):
        return padded_batch(x), padded_batch(y)
    turned = [by_columns(matrices) and matrices.stride(1) == 1 for matrices in (x, y)]
    rows = [m.transpose(1, 2) if turn else m for m, turn in zip((x, y), turned, strict=True)]
    copies = two_padded_rows(*(m[:1] if is_shared(m) else m for m in rows))
    copies = [copy.expand(m.shape) for copy, m in zip(copies, rows, strict=True)]
    return tuple(copy.transpose(1, 2) if turn else copy for copy, turn in zip(copies, turned, strict=True))


def by_columns(matrices):
    return matrices.stride(2) != 1


def is_shared(matrices):
    return matrices.shape[0] > 1 and matrices.stride(0) == 0


def rows_of(matrices):
    """The matrices by rows: their transposes where they are stored by columns, and one of them where all share it."""
    rows = matrices.transpose(1, 2) if by_columns(matrices) else matrices
    return rows[:1] if is_shared(matrices) else rows


def copyable(matrices):
    """Whether the copy engine can read these matrices: see ``describable``; and products begin at whole 16 bytes."""
    rows = rows_of(matrices)
    apart = rows.stride(0) * rows.element_size()
    return rows.numel() > 0 and describable(rows[0]) and (rows.shape[0] == 1 or (apart > 0 and apart % 16 == 0))


def along_k(b):
    """B [batch, k, n] stored by columns: as it is, or transposed copies, whose columns begin at whole 16 bytes.

    A matrix that all products share is copied once.  Tensor cores take 16-bit operands in either order, those of 32
    bits only where K is contiguous.  Turned round block by block, through registers into shared memory, a product took
    1630 us that a copy lets take 350 (4096 each way, H200, Triton 3.6).
    """
    if by_columns(b):
        return b
    rows = rows_of(b)
    off = rows.shape[1] * rows.element_size() % 16
    copies = padded_rows(rows.transpose(1, 2)).transpose(1, 2) if off else turned(rows)
    return copies.expand(b.shape)
