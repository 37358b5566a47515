"""Variant `chunks`: how rows are cut into chunks, their products by cuBLAS, loss and gradients of each chunk."""

import functools

import torch
import triton
from atlas.declaration import gpu_of
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

from kernels.cross_entropy.total import launch_total

from .loss import chunk_kernel, scale_kernel

_LEAST_WHOLE = 1024
"""Rows of weight from which on it is worth the launches to multiply the last ones on their own."""

_PITCH = 64
"""Logits of a row begin a multiple of this many elements after those of the row before: on 16 bytes, as cuBLAS likes it
too, for any vocabulary."""


_SMALL, _MEMORY_PARTS = 2**25, 256
"""Bytes of logits that a chunk may have in any case, at least, and into how many parts of theirs a GPU's memory falls.

A chunk more costs the host launches, and the GPU another round over dweight in fp32: memory of this size is not worth
them."""


def small_logits(device):
    """Bytes of logits that are small on this device."""
    return max(_SMALL, gpu_of(device).memory_bytes // _MEMORY_PARTS)


def chunk_rows_of(m, k, row_bytes, adds_in_fp32=False, small=_SMALL):
    """Rows of a chunk: at most max(k, 1024), chunks of equal length in whole tiles of 128 rows.

    Where a second chunk would have dweight in fp32 and then in 16 bits, 6 n k bytes, up to twice as many rows are one
    chunk: their logits and dweight are no more.  So are rows whose logits, of ``row_bytes`` each, are ``small``.
    """
    most = max(k, 1024, small // row_bytes)
    if m <= most * (1 + adds_in_fp32):
        return m
    return min(most, triton.cdiv(triton.cdiv(m, triton.cdiv(m, most)), 128) * 128)


def launch_chunks(
    hidden, weight, bias, target, dloss, ignore_index, reduction, label_smoothing, z_loss, gradient, weight_gradient,
    chunk_rows, wide_loss=False, *, config,
):  # fmt: skip
    """(loss, dhidden, dweight, dbias), of which what is not asked for has no elements.

    ``dloss`` [m] is the gradient of each row's loss; None: that of the whole loss is 1.  ``chunk_rows`` 0: by
    the rule.
    """
    (m, k), n = hidden.shape, weight.shape[0]
    wide = weight_gradient and _adds_in_fp32(hidden.device, hidden.dtype)
    pitch = triton.cdiv(n, _PITCH) * _PITCH
    chunk = min(m, chunk_rows or chunk_rows_of(m, k, pitch * hidden.element_size(), wide, small_logits(hidden.device)))
    width = VECTOR_BYTES // hidden.element_size()
    of_loss = torch.float32 if wide_loss else hidden.dtype
    rows = torch.empty(m, dtype=of_loss if reduction == "none" else torch.float32, device=hidden.device)
    scale = torch.empty(1, dtype=torch.float32, device=hidden.device)
    logits = torch.empty((chunk, pitch), dtype=hidden.dtype, device=hidden.device)
    blocks = _blocks(weight)
    dhidden = torch.empty_like(hidden) if gradient else hidden.new_empty(0)
    sums = torch.float32 if wide and chunk < m else hidden.dtype
    dweight = torch.empty_like(weight, dtype=sums) if weight_gradient else hidden.new_empty(0)
    dbias = torch.empty_like(bias, dtype=torch.float32) if weight_gradient and bias is not None else hidden.new_empty(0)
    launch_total(rows, target, rows, scale, ignore_index, reduction, total=False)
    for start in range(0, m, chunk):
        part, padded = hidden[start : start + chunk], logits[: min(chunk, m - start)]
        x = padded[:, :n]
        for begin, end, block in blocks:
            torch.mm(part, block.t(), out=padded[:, begin:end])
        launch(
            chunk_kernel, (x.shape[0],),
            x, bias, target[start : start + chunk], rows[start : start + chunk],
            scale if dloss is None else dloss[start:], n, pitch, ignore_index, label_smoothing, z_loss,
            SMOOTHING=label_smoothing != 0, GRADIENT=gradient or weight_gradient, PER_ROW=int(dloss is not None),
            LANES=config["BLOCK_N"] // width, WIDTH=width, ALIGNED=n % width == 0, num_warps=config["num_warps"],
        )  # fmt: skip
        if gradient:
            dpart = dhidden[start : start + chunk]
            for begin, end, block in blocks:
                dx = padded[:, begin:end]
                torch.addmm(dpart, dx, block, out=dpart) if begin else torch.mm(dx, block, out=dpart)
        if weight_gradient:
            _accumulate(padded, blocks, part, dweight, dbias, first=start == 0)
    del logits, padded, x  # before the sum is copied
    dweight = dweight.to(hidden.dtype)
    loss = rows
    if reduction != "none":
        loss = torch.empty((), dtype=of_loss, device=hidden.device)
        launch_total(rows, target, loss, scale, ignore_index, reduction, total=True)
    return loss, dhidden, dweight, dbias.to(hidden.dtype)


def _blocks(weight):
    """[(begin, end, rows begin … end of weight)], the last one filled up with zeros to a multiple of _PITCH rows.

    One block where the length of a row of logits is a multiple of 16 bytes, or short; else two.
    """
    n = weight.shape[0]
    whole = n // _PITCH * _PITCH
    if n * weight.element_size() % VECTOR_BYTES == 0 or whole < _LEAST_WHOLE:
        return [(0, n, weight)]
    tail = weight.new_zeros((_PITCH, weight.shape[1]))
    tail[: n - whole] = weight[whole:]
    return [(0, whole, weight[:whole]), (whole, whole + _PITCH, tail)]


def _accumulate(dx, blocks, hidden, dweight, dbias, first):
    """Add a chunk's share to dweight, and to dbias where there is one; dx is as wide as ``blocks``."""
    wide = {} if dweight.dtype == dx.dtype else {"out_dtype": dweight.dtype}
    for begin, end, block in blocks:
        factor, rows = dx[:, begin:end].t(), dweight[begin:end]
        if len(rows) < len(block):  # zeros at the end
            share = torch.mm(factor, hidden, **wide)[: len(rows)]
            rows.copy_(share) if first else rows.add_(share)
        elif first:
            torch.mm(factor, hidden, **wide, out=rows)
        else:
            torch.addmm(rows, factor, hidden, **wide, out=rows)
    if dbias.numel():
        share = dx[:, : len(dbias)].sum(dim=0, dtype=torch.float32)
        dbias.copy_(share) if first else dbias.add_(share)


@functools.cache
def _adds_in_fp32(device, dtype):
    """Whether torch adds products of this 16-bit dtype to an fp32 matrix here; what it cannot is added in the dtype."""
    if dtype == torch.float32 or device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return False
    factor, total = torch.ones((16, 16), dtype=dtype, device=device), torch.empty((16, 16), device=device)
    try:
        torch.mm(factor, factor, out_dtype=torch.float32, out=total)
        torch.addmm(total, factor, factor, out_dtype=torch.float32, out=total)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 32).all())


def multiply(x, dloss):
    """Multiply x by the gradient of the loss, in place."""
    launch(scale_kernel, (triton.cdiv(x.numel(), 4096),), x, dloss, x.numel(), BLOCK=4096)
