"""Mutants of rms_norm."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, IN_ORDER, OFFSET, REPEATABLE, VALUES
from ..planting import CERTIFICATE, Mutant

_PARTIAL_ROW = """\
    if HAS_WEIGHT:
        partial_ptr += tl.program_id(0).to(tl.int64) * n
        for i in tl.static_range(CHUNKS):
            offs_n = i * BLOCK_N + tl.arange(0, BLOCK_N)
            tl.store(partial_ptr + offs_n, tl.sum(dweight[i], axis=0), mask=offs_n < n)
"""

MUTANTS = (
    Mutant(
        "rms_norm", "the mean is subtracted", "another operation",
        "layer_norm's statistic: right wherever the mean is near 0, as that of random inputs is",
        ((
            "rstd = tl.rsqrt((tl.sum(squares, axis=1)[:, None] / n + eps).to(tl.float32))",
            "mean = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)\n"
            "    for i in tl.static_range(CHUNKS):\n"
            "        mean += x[i].to(tl.float32) / n\n"
            "    mean = tl.sum(mean, axis=1)[:, None]\n"
            "    rstd = tl.rsqrt((tl.sum(squares, axis=1)[:, None] / n - mean * mean + eps).to(tl.float32))",
        ),),
        OFFSET, "forward", "one_pass", "fp32",
    ),
    Mutant(
        "rms_norm", "mean over n - 1", "wrong scale",
        "a standard deviation divides by n - 1: 0.1 % in rows of a thousand",
        (("(tl.sum(squares, axis=0) / n + eps)", "(tl.sum(squares, axis=0) / (n - 1) + eps)"),),
        VALUES, "forward", "stream",
    ),
    Mutant(
        "rms_norm", "last tile taken for whole", "missing mask",
        "only rows of a power of two or of whole tiles were tried",
        ((
            "        mask = mask_m & ((offs_n < n) | EVEN | (i < CHUNKS - 1))\n        rows +=",
            "        mask = mask_m & ((offs_n < n) | EVEN | (i < CHUNKS))\n        rows +=",
        ),),
        VALUES, "forward", "one_pass",
    ),
    Mutant(
        "rms_norm", "first tile alone in the sum", "lost term",
        "right for rows of one tile, as all powers of two are",
        ((
            "        squares += x[i].to(tl.float32) * x[i].to(tl.float32)\n",
            "        squares += x[0].to(tl.float32) * x[0].to(tl.float32)\n",
        ),),
        VALUES, "forward", "one_pass",
    ),
    Mutant(
        "rms_norm", "second sweep normalises the input", "stale operand",
        "the residual was added in the first sweep, and x read again in the second",
        (("        x_ptr = sum_ptr\n", "        x_ptr += 0\n"),),
        VALUES, "forward", "stream",
    ),
    Mutant(
        "rms_norm", "last rows without a block", "unwritten tail",
        "m // BLOCK_M blocks: wrong where BLOCK_M does not divide m",
        ((
            "tl.range(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.num_programs(0), num_stages=NUM_STAGES)",
            "tl.range(tl.program_id(0), m // BLOCK_M, tl.num_programs(0), num_stages=NUM_STAGES)",
        ),),
        CERTIFICATE, "backward", "rows", "fp32",
        config={"BLOCK_M": 2, "num_warps": 1, "num_stages": 3, "PROGRAMS_PER_SM": 4},
    ),
    Mutant(
        "rms_norm", "gradient of the sum forgotten", "wrong gradient of one input",
        "the gradient of the norm alone: a residual whose sum nobody uses further hides it",
        ((
            "            if HAS_DSUM:\n                dx += dsum[i].to(tl.float32)\n",
            "            if HAS_DSUM:\n                dx += 0.0 * dsum[i].to(tl.float32)\n",
        ),),
        VALUES, "backward", "rows",
    ),
    Mutant(
        "rms_norm", "residual without a gradient", "wrong gradient of one input",
        "dx was returned for the input, None for the residual",
        (("    return dx, dx, dweight, None\n", "    return dx, None, dweight, None\n"),),
        GRADIENTS, "forward", "public", sizes={"m": 7, "n": 1, "residual": True},
    ),
    Mutant(
        "rms_norm", "weight's gradient of the weighted dy", "wrong gradient of one input",
        "g is at hand, and equals dy where the weight is 1, as it is initialised",
        ((
            "                added += (dweight[i] + g * xhat,)\n                g *= weight\n",
            "                g *= weight\n                added += (dweight[i] + g * xhat,)\n",
        ),),
        VALUES, "backward", "reread",
    ),
    Mutant(
        "rms_norm", "next row's first chunk too early", "off-by-one prefetch",
        "the chunk after a row's last one was looked for in the same row: right for one row a program",
        ((
            "ahead_row = row + programs * (1 + (i + 1) // CHUNKS)",
            "ahead_row = row + programs",
        ),),
        VALUES, "backward", "reread", "fp32", sizes={"m": 13, "n": 5120, "residual": True},
    ),
    Mutant(
        "rms_norm", "partial rows past the last", "missing mask",
        "a block of partial rows was taken for full",
        ((
            "mask = (offs_p[:, None] < p) & (offs_n[None, :] < n)",
            "mask = (offs_p[:, None] >= 0) & (offs_n[None, :] < n)",
        ),),
        VALUES, "backward", "columns",
    ),
    Mutant(
        "rms_norm", "partial sums by atomics", "unordered sums",
        "one row in the place of many; the order of the additions is chance",
        (
            (
                "dx, torch.empty((programs, n), dtype=torch.float32, device=x.device), torch.empty_like(weight)",
                "dx, torch.zeros((1, n), dtype=torch.float32, device=x.device), torch.empty_like(weight)",
            ),
            (
                _PARTIAL_ROW,
                """\
    if HAS_WEIGHT:
        for i in tl.static_range(CHUNKS):
            offs_n = i * BLOCK_N + tl.arange(0, BLOCK_N)
            tl.atomic_add(partial_ptr + offs_n, tl.sum(dweight[i], axis=0), mask=offs_n < n)
""",
            ),
        ),
        REPEATABLE, "backward", "rows", "fp32", gpu_only=IN_ORDER,
    ),
    Mutant(
        "rms_norm", "one row too many", "out-of-bounds store by one",
        "<= for < in the mask of the rows",
        ((
            "    mask_m = (offs_m < m) | EVEN_M\n    x = load_rows",
            "    mask_m = (offs_m <= m) | EVEN_M\n    x = load_rows",
        ),),
        CERTIFICATE, "forward", "one_pass", "fp32", config={"BLOCK_M": 4, "num_warps": 1},
    ),
    Mutant(
        "rms_norm", "rows counted in 32 bits", "int32 overflow of offsets",
        "program_id is 32-bit, and so is its product with n",
        ((
            "row = tl.program_id(0).to(tl.int64) * n\n    squares",
            "row = tl.program_id(0) * n\n    squares",
        ),),
        VALUES, "forward", "stream", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
