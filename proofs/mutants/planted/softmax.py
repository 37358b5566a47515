"""Mutants of softmax."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, LARGE, NAN_INF, UNCHANGED, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "softmax", "last column not owned", "off-by-one mask",
        "n - 1 is the last column, and < was meant as <=",
        (("    taken = inside\n    if CAUSAL:\n        taken = inside & (offs_n <= offs_m % q + (n - q))\n    # -inf",
          "    inside = inside & (offs_n < n - 1)\n    taken = inside\n    # -inf"),),
        WRITTEN, "forward", "one_pass", sizes={"m": 37, "n": 129},
    ),
    Mutant(
        "softmax", "columns of the gradient not masked", "missing mask",
        "widths of powers of two, as tried, need none",
        ((
            "offs = offs_m * n + offs_n\n    inside = (offs_m < m) & (offs_n < n) | EVEN",
            "offs = offs_m * n + offs_n\n    inside = (offs_m < m) & (offs_n >= 0) | EVEN",
        ),),
        WRITTEN, "backward", "one_pass",
    ),
    Mutant(
        "softmax", "even although rows remain", "config-dependent",
        "whether a tile is full was asked of its columns alone: wrong where BLOCK_M does not divide m",
        (('"EVEN": m % block_m == 0 and n', '"EVEN": n'),),
        WRITTEN, "forward", "one_pass",
    ),
    Mutant(
        "softmax", "padding of zeros", "wrong identity of a masked load",
        "0 is the habit; here each padded element adds exp(0 - max) to the sum",
        ((
            'tl.load(x_ptr + offs_m * n + offs_n, mask=taken, other=-float("inf"))',
            "tl.load(x_ptr + offs_m * n + offs_n, mask=taken, other=0.0)",
        ),),
        VALUES, "forward", "one_pass",
    ),
    Mutant(
        "softmax", "running maximum from -inf", "wrong identity of a reduction",
        "-inf is the identity of max; but exp(-inf - -inf) is NaN",
        (("tl.full([LANES], LOWEST, tl.float32)", 'tl.full([LANES], -float("inf"), tl.float32)'),),
        VALUES, "forward", "online",
    ),
    Mutant(
        "softmax", "maximum not subtracted", "overflow",
        "the same in exact arithmetic, and right for all inputs of ordinary size",
        (("    shifted = x - tl.max(x, axis=1)[:, None]", "    shifted = x"),),
        LARGE, "forward", "one_pass",
    ),
    Mutant(
        "softmax", "ends of unaligned rows not stored", "unwritten tail",
        "whole lanes are stored; the store of what lies before and after them was forgotten",
        ((
            "tl.store(y_ptr + row * n + offs_e, _scaled(edge, row_max, total, LOG), mask=inside_e)",
            "tl.store(y_ptr + row * n + offs_e, edge, mask=inside_e & (row < 0))",
        ),),
        WRITTEN, "forward", "online", "fp16", sizes={"m": 8, "n": 2049},
    ),
    Mutant(
        "softmax", "sum kept in fp16", "16-bit accumulation",
        "half the registers",
        (
            ("l_i = tl.zeros([LANES], tl.float32)", "l_i = tl.zeros([LANES], tl.float16)"),
            (
                "l_i = l_i * tl.exp(m_i - m_new) + tl.sum(tl.exp(x - m_new[:, None]), axis=1)",
                "l_i = (l_i * tl.exp(m_i - m_new) + tl.sum(tl.exp(x - m_new[:, None]), axis=1)).to(tl.float16)",
            ),
        ),
        VALUES, "forward", "online", "fp32",
    ),
    Mutant(
        "softmax", "exp2 without log2(e)", "wrong scale",
        "exp2 is the faster instruction; its argument must be scaled, in both sweeps",
        (("tl.exp(x - row_max) * (1.0 / total)", "tl.exp2(x - row_max) * (1.0 / total)"),),
        VALUES, "forward", "online",
    ),
    Mutant(
        "softmax", "NaN taken for masked", "NaN swallowed",
        "NaN is treated as a masked element, which comes out as 0",
        (("    shifted = x - tl", '    x = tl.where(x == x, x, -float("inf"))\n    shifted = x - tl'),),
        NAN_INF, "forward", "one_pass",
    ),
    Mutant(
        "softmax", "gradient written over dY", "input overwritten",
        "saves an allocation, as some libraries do",
        ((
            "def launch_one_pass(y, dy, log=False, causal=False, *, config):\n    dx = torch.empty_like(y)",
            "def launch_one_pass(y, dy, log=False, causal=False, *, config):\n    dx = dy",
        ),),
        UNCHANGED, "backward", "one_pass",
    ),
    Mutant(
        "softmax", "sweep without its tail", "config-dependent",
        "the loop covers whole blocks: wrong where the block does not divide the row",
        ((
            "        offs = lane + tl.arange(0, WIDTH)[None, :]\n        # 0 is the identity",
            "        offs = lane + tl.arange(0, WIDTH)[None, :]\n"
            "        high = tl.where(start + LANES * WIDTH <= high, high, start)\n        # 0 is the identity",
        ),),
        VALUES, "backward", "stream",
    ),
    Mutant(
        "softmax", "strided dY taken as it is", "non-contiguous input misread",
        "autograd hands back dY in whatever layout the next operation had",
        (("_backward(y, dy.contiguous(), ctx.log", "_backward(y, dy, ctx.log"),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "softmax", "row offsets of 32 bits", "int32 overflow of offsets",
        "program_id is 32-bit, and so is its product with n",
        ((
            "offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]\n"
            "    offs_n = tl.arange(0, BLOCK_N)[None, :]\n    inside",
            "offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]\n"
            "    offs_n = tl.arange(0, BLOCK_N)[None, :]\n    inside",
        ),),
        VALUES, "forward", "one_pass", huge=True, gpu_only=HUGE,
    ),
    Mutant(
        "softmax", "diagonal not taken", "off-by-one mask",
        "position i attends to those before it, and was not counted among them",
        ((
            "limit = (row % q).to(tl.int32) + (n - q) + 1\n    row_ptr",
            "limit = (row % q).to(tl.int32) + (n - q)\n    row_ptr",
        ),),
        VALUES, "forward", "online", "fp16", sizes={"causal": True, "q": 5, "m": 10, "n": 2049},
    ),
    Mutant(
        "softmax", "diagonal from the upper corner", "wrong alignment of a mask",
        "as many rows as columns, as always tried",
        ((
            "taken = inside & (offs_n <= offs_m % q + (n - q))\n    # -inf",
            "taken = inside & (offs_n <= offs_m % q)\n    # -inf",
        ),),
        VALUES, "forward", "one_pass", "fp32", sizes={"causal": True, "q": 5, "m": 10, "n": 2049},
    ),
    Mutant(
        "softmax", "mask of the first matrix for all", "wrong row of a broadcast operand",
        "one matrix of scores was tried; the second reads on past the mask",
        (("offs_m // group % groups * stride_group + offs_m % cycle", "offs_m * stride_group + offs_m % cycle"),),
        VALUES, "forward", "one_pass", "fp16", sizes={"mask": "bool", "q": 9, "m": 18, "n": 64},
    ),
    Mutant(
        "softmax", "a share of the row not summed", "config-dependent",
        "each of two programs sums what it writes, as if the row ended there",
        (("_gather(y_lanes, dy_lanes, high, body, in_body", "_gather(y_lanes, dy_lanes, body, body, in_body"),),
        VALUES, "backward", "stream", "fp16", sizes={"m": 2, "n": 70_001},
    ),
    Mutant(
        "softmax", "edges written by nobody", "config-dependent",
        "two programs share a row, and each leaves its ends to the other",
        ((
            "dx_edge, mask=inside_e & (part == 0))",
            "dx_edge, mask=inside_e & (part == SPLITS))",
        ),),
        WRITTEN, "backward", "stream", "fp16", sizes={"m": 8, "n": 2049},
    ),
)  # fmt: skip
