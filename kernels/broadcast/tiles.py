"""Variant `tiles`: tiles of the two fastest axes, operands with strides of their own."""

import math

import triton
import triton.language as tl
from atlas.declaration import elementwise
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import launch

from .shapes import MOST_AXES, empty_result, merged


@triton.jit
def _load(
    ptr, one, two, offs_m, offs_n, mask_m, mask_n, stride_0, stride_1, stride_m, stride_n, LIES: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """An operand's part of a tile, in fp32: [BLOCK_M, BLOCK_N], or 1 along what is broadcast.

    LIES: 0 for an operand that is a number in the tile, 1 for a column, 2 for a row, 3 for all of it; 4 more where its
    columns are no neighbours.  Of neighbours all strides are multiples of WIDTH.
    """
    start = one * stride_0 + two * stride_1
    if LIES == 0:
        x = tl.load(ptr + start)
    elif LIES == 1:
        x = tl.load(ptr + start + offs_m * stride_m, mask=mask_m, other=0.0)
    else:
        if LIES < 4:
            start = start // WIDTH * WIDTH  # so said, the compiler accesses WIDTH elements at once
            stride_m = stride_m // WIDTH * WIDTH
            columns = offs_n
        else:
            columns = offs_n.to(tl.int64) * stride_n
        if LIES % 4 == 2:
            x = tl.load(ptr + start + columns, mask=mask_n, other=0.0)
        else:
            x = tl.load(ptr + start + offs_m * stride_m + columns, mask=mask_m & mask_n, other=0.0)
    return x.to(tl.float32)


@triton.jit
def _tiles_kernel(
    a_ptr, b_ptr, c_ptr, out_ptr, value, second, m, n, stride_a0, stride_a1, stride_am, stride_an,
    stride_b0, stride_b1, stride_bm, stride_bn, stride_c0, stride_c1, stride_cm, stride_cn,
    OP: tl.constexpr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of BLOCK_M x BLOCK_N of one of the matrices [.., second, m, n] of out."""
    n = n // WIDTH * WIDTH
    across, down = tl.cdiv(n, BLOCK_N), tl.cdiv(m, BLOCK_M)
    pid = tl.program_id(0)
    matrix = (pid // (across * down)).to(tl.int64)
    one, two = matrix // second, matrix % second
    offs_m = (pid // across % down * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    offs_n = (pid % across * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    mask_m, mask_n = offs_m < m, offs_n < n
    a = _load(a_ptr, one, two, offs_m, offs_n, mask_m, mask_n, stride_a0, stride_a1, stride_am, stride_an, A, WIDTH)
    b = _load(b_ptr, one, two, offs_m, offs_n, mask_m, mask_n, stride_b0, stride_b1, stride_bm, stride_bn, B, WIDTH)
    c = 0.0
    if OP == "multiply_add" or OP == "swiglu_gate":
        c = _load(c_ptr, one, two, offs_m, offs_n, mask_m, mask_n, stride_c0, stride_c1, stride_cm, stride_cn, C, WIDTH)
    if OP == "add":
        out = a + b
    elif OP == "multiply":
        out = value * a * b
    elif OP == "multiply_add":
        out = a + value * b * c
    elif OP == "swiglu":
        out = a * tl.sigmoid(a) * b
    else:  # swiglu's gradient of the gate b, with the incoming one a and up c
        sigmoid = tl.sigmoid(b)
        out = a * c * sigmoid * (1.0 + b * (1.0 - sigmoid))
    out = out + tl.zeros([BLOCK_M, BLOCK_N], tl.float32)  # where all operands are broadcast
    tl.store(out_ptr + (matrix * m + offs_m) * n + offs_n, out, mask=mask_m & mask_n)


_TURNED = 32
"""Columns of a tile of which an operand lies by columns: as many rows have 128 bytes of either order."""


def _lies(strides):
    """LIES of an operand with strides (.., along m, along n)."""
    of_m, of_n = strides[-2:]
    return (1 if of_m else 0) + (2 if of_n else 0) + (4 if of_n > 1 else 0)


def launch_tiles(a, b, c, op, value, *, config):
    operands = [x for x in (a, b, c) if x is not None]
    dtype = next((x for x in operands if x.dim()), a).dtype
    out = empty_result(operands, dtype)
    sizes, strides = merged(operands)
    if len(sizes) > MOST_AXES:
        a, b, c = (x if x is None else x.expand(out.shape).contiguous() for x in (a, b, c))
        copied = launch_tiles(a, b, c, op, value, config=config)
        return out.copy_(copied)
    sizes = [1] * (MOST_AXES - len(sizes)) + sizes
    strides = [[0] * (MOST_AXES - len(known)) + known for known in strides]
    lies = [_lies(known) for known in strides]
    vector = VECTOR_BYTES // out.element_size()
    rows = [known for known, where in zip(strides, lies, strict=True) if where in (2, 3)]
    width = math.gcd(vector, sizes[-1], *(step for known in rows for step in known[:-1]))
    if len(operands) == 2:
        strides, lies = [*strides, [0] * MOST_AXES], [*lies, 0]
    first, second, m, n = sizes
    (tiles,), tile = elementwise.tiles(m, n, config["BLOCK"], narrowest=128)
    if max(lies) > 4:  # columns apart: read along m, and turned in shared memory
        wide = min(_TURNED, triton.next_power_of_2(n))
        tile = {"BLOCK_M": config["BLOCK"] // wide, "BLOCK_N": wide}
        tiles = triton.cdiv(m, tile["BLOCK_M"]) * triton.cdiv(n, wide)
    launch(
        _tiles_kernel, (first * second * tiles,),
        a, b, a if c is None else c, out, value, second, m, n, *(step for known in strides for step in known),
        OP=op, A=lies[0], B=lies[1], C=lies[2], **tile, WIDTH=width, num_warps=config["num_warps"],
    )  # fmt: skip
    return out
