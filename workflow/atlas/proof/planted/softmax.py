"""Mutants of softmax."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, LARGE, NAN_INF, UNCHANGED, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "softmax", "last column not owned", "off-by-one mask",
        "n - 1 is the last column, and < was meant as <=",
        (("mask = (offs_m < m) & (offs_n < n) | EVEN", "mask = (offs_m < m) & (offs_n < n - 1) | EVEN"),),
        WRITTEN, "forward", "one_pass",
    ),
    Mutant(
        "softmax", "columns of the gradient not masked", "missing mask",
        "widths of powers of two, as tried, need none",
        ((
            "mask = (offs_m < m) & (offs_n < n)\n    # 0 is the identity",
            "mask = (offs_m < m) & (offs_n >= 0)\n    # 0 is the identity",
        ),),
        WRITTEN, "backward", "one_pass",
    ),
    Mutant(
        "softmax", "even although rows remain", "config-dependent",
        "whether a tile is full was asked of its columns alone: wrong where BLOCK_M does not divide m",
        (('even = m % config["BLOCK_M"] == 0 and n', "even = n"),),
        WRITTEN, "forward", "one_pass",
    ),
    Mutant(
        "softmax", "padding of zeros", "wrong identity of a masked load",
        "0 is the habit; here each padded element adds exp(0 - max) to the sum",
        (('mask=mask, other=-float("inf"))', "mask=mask, other=0.0)"),),
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
        (("e = tl.exp(x - tl.max(x, axis=1)[:, None])", "e = tl.exp(x)"),),
        LARGE, "forward", "one_pass",
    ),
    Mutant(
        "softmax", "ends of unaligned rows not stored", "unwritten tail",
        "whole lanes are stored; the store of those across a row's ends was forgotten",
        ((
            "    if not ALIGNED:\n        tl.store(ptr + offs, value, mask="
            '(offs >= begin) & (offs < end) & (whole == 0), cache_modifier=".cs")\n',
            "",
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
        (("tl.exp(x - row_max) * scale", "tl.exp2(x - row_max) * scale"),),
        VALUES, "forward", "online",
    ),
    Mutant(
        "softmax", "NaN taken for masked", "NaN swallowed",
        "NaN is treated as a masked element, which comes out as 0",
        (("    e = tl.exp(x - tl", '    x = tl.where(x == x, x, -float("inf"))\n    e = tl.exp(x - tl'),),
        NAN_INF, "forward", "one_pass",
    ),
    Mutant(
        "softmax", "gradient written over dY", "input overwritten",
        "saves an allocation, as some libraries do",
        ((
            "def _launch_rows(kernel, *inputs, config, **flags):\n    out = torch.empty_like(inputs[0])",
            "def _launch_rows(kernel, *inputs, config, **flags):\n    out = inputs[-1]",
        ),),
        UNCHANGED, "backward", "one_pass",
    ),
    Mutant(
        "softmax", "sweep without its tail", "config-dependent",
        "the loop covers whole blocks: wrong where the block does not divide the row",
        ((
            "for start in tl.range(0, end, LANES * WIDTH):\n        # 0 is the identity",
            "for start in tl.range(0, end - LANES * WIDTH + 1, LANES * WIDTH):\n        # 0 is the identity",
        ),),
        VALUES, "backward", "stream",
    ),
    Mutant(
        "softmax", "strided dY taken as it is", "non-contiguous input misread",
        "autograd hands back dY in whatever layout the next operation had",
        (("variant.launch(y, dy.contiguous(), config=config)", "variant.launch(y, dy, config=config)"),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "softmax", "row offsets of 32 bits", "int32 overflow of offsets",
        "program_id is 32-bit, and so is its product with n",
        ((
            "row = tl.program_id(0).to(tl.int64) * n\n    base = row // WIDTH * WIDTH  # where",
            "row = tl.program_id(0) * n\n    base = row // WIDTH * WIDTH  # where",
        ),),
        VALUES, "forward", "online", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
