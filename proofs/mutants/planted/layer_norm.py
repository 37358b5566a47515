"""Mutants of layer_norm."""

from __future__ import annotations

from ..checks import HUGE, IN_ORDER, OFFSET, REPEATABLE, VALUES, WRITTEN
from ..planting import CERTIFICATE, Mutant

_PARTIAL_ROWS = """\
    columns = tl.arange(0, BLOCK_N)
    partial_ptr += pid.to(tl.int64) * n + columns
    if HAS_WEIGHT:
        tl.store(partial_ptr, tl.sum(dweight, axis=0), mask=columns < n)
    if HAS_BIAS:
        tl.store(partial_ptr + HAS_WEIGHT * programs.to(tl.int64) * n, tl.sum(dbias, axis=0), mask=columns < n)
"""
_ONE_ROW = (
    "partial = partials(x, programs, flags)\n    launch(\n        _backward_rows_kernel",
    "partial = torch.zeros((max(1, sum(flags.values())) * programs, n), dtype=torch.float32, device=x.device)\n"
    "    launch(\n        _backward_rows_kernel",
)

MUTANTS = (
    Mutant(
        "layer_norm", "epsilon forgotten", "dropped epsilon",
        "without it nothing changes, save for rows of equal values",
        (("tl.sum(squares, axis=1) / n + eps)", "tl.sum(squares, axis=1) / n)"),),
        VALUES, "forward", "one_pass",
    ),
    Mutant(
        "layer_norm", "variance over n - 1", "wrong scale",
        "torch.var divides by n - 1, torch.nn.functional.layer_norm by n",
        (("tl.sum(squares, axis=1) / n + eps)", "tl.sum(squares, axis=1) / (n - 1) + eps)"),),
        VALUES, "forward", "one_pass",
    ),
    Mutant(
        "layer_norm", "variance as E[x^2] - mean^2", "cancellation",
        "one sweep in the place of two, and right wherever the mean is near 0, as that of random inputs is",
        (
            (
                "centred = tl.where(mask_n, still_packed(x[i], bit).to(tl.float32) - mean[:, None], 0.0)",
                "centred = tl.where(mask_n, still_packed(x[i], bit).to(tl.float32), 0.0)",
            ),
            ("tl.sum(squares, axis=1) / n + eps)", "tl.sum(squares, axis=1) / n - mean * mean + eps)"),
        ),
        OFFSET, "forward", "one_pass", "fp32",
    ),
    Mutant(
        "layer_norm", "padding counted in the variance", "wrong identity of a masked load",
        "padded with 0, but 0 - mean is not 0",
        ((
            "centred = tl.where(mask_n, still_packed(x[i], bit).to(tl.float32) - mean[:, None], 0.0)",
            "centred = still_packed(x[i], bit).to(tl.float32) - mean[:, None]",
        ),),
        VALUES, "forward", "one_pass",
    ),
    Mutant(
        "layer_norm", "one mean too many", "out-of-bounds store by one",
        "<= for < in the mask of a small output",
        ((
            "\n    tl.store(mean_ptr + offs_m, mean, mask=mask_m)",
            "\n    tl.store(mean_ptr + offs_m, mean, mask=offs_m <= m)",
        ),),
        WRITTEN, "forward", "one_pass",
    ),
    Mutant(
        "layer_norm", "last rows without a block", "unwritten tail",
        "m // BLOCK_M blocks: wrong where BLOCK_M does not divide m",
        ((
            "tl.range(pid, tl.cdiv(m, BLOCK_M), programs, num_stages=NUM_STAGES)",
            "tl.range(pid, m // BLOCK_M, programs, num_stages=NUM_STAGES)",
        ),),
        WRITTEN, "backward", "rows",
    ),
    Mutant(
        "layer_norm", "lanes not merged", "lost term",
        "the deviations within lanes were added, those between them forgotten",
        (("tl.sum(m2 + count * between * between, axis=1)", "tl.sum(m2, axis=1)"),),
        VALUES, "forward", "stream",
    ),
    Mutant(
        "layer_norm", "gradient without its mean", "wrong gradient of one input",
        "the term is small where dY has no mean, as random ones have none",
        ((
            "level = tl.sum(g, axis=1)[:, None] / n\n        dx = (g - xhat * along - level) * rstd",
            "level = tl.sum(g, axis=1)[:, None] / n\n        dx = (g - xhat * along) * rstd",
        ),),
        VALUES, "backward", "rows",
    ),
    Mutant(
        "layer_norm", "bias sums the weighted gradient", "wrong gradient of one input",
        "g is at hand, and equals dY where the weight is 1, as it is initialised",
        (("        if HAS_BIAS:\n            dbias += dy\n", "        if HAS_BIAS:\n            dbias += g\n"),),
        VALUES, "backward", "rows",
    ),
    Mutant(
        "layer_norm", "weight summed in bf16", "16-bit accumulation",
        "the sum over rows took the gradient's dtype",
        ((
            "            dweight += dy * xhat\n",
            "            dweight = (dweight + dy * xhat).to(tl.bfloat16).to(tl.float32)\n",
        ),),
        VALUES, "backward", "rows",
    ),
    Mutant(
        "layer_norm", "helpers' rows counted among the owners'", "wrong range of a sum",
        "as many partial rows of dbias as of dweight, as in the other variants",
        (("sum_partials(partial, weight, bias, owners)", "sum_partials(partial, weight, bias, len(partial) // 2)"),),
        VALUES, "backward", "helped",
    ),
    Mutant(
        "layer_norm", "gradient of the sum forgotten", "lost term",
        "what goes around the layer has a gradient of its own",
        ((
            "tl.load(dsum_ptr + offs, mask=mask, other=0.0).to(tl.float32)\n"
            "        tl.store(dx_ptr + offs, dx, mask=mask)",
            "0.0\n        tl.store(dx_ptr + offs, dx, mask=mask)",
        ),),
        VALUES, "backward", "rows", sizes={"m": 11, "n": 136, "residual": True},
    ),
    Mutant(
        "layer_norm", "sum masked by its rows alone", "out-of-bounds store",
        "the sum was added to a kernel that had one output",
        (("tl.store(sum_ptr + offs, x, mask=mask)", "tl.store(sum_ptr + offs, x)"),),
        WRITTEN, "forward", "one_pass", sizes={"m": 11, "n": 136, "residual": True},
    ),
    Mutant(
        "layer_norm", "row sums half written", "uninitialised scratch",
        "fresh memory is often 0, and the sum of a random dY is near it",
        (("    tl.store(level_ptr + tl.program_id(0), tl.sum(level, axis=0) / n)\n", ""),),
        VALUES, "backward", "columns",
    ),
    Mutant(
        "layer_norm", "partial rows nobody owns", "uninitialised scratch",
        "as many partial rows as programs wanted, not as there are: right where rows abound",
        ((
            "partial = partials(x, programs, flags)\n    launch(\n        _backward_columns_kernel",
            "partial = partials(x, wanted, flags)\n    launch(\n        _backward_columns_kernel",
        ),),
        VALUES, "backward", "columns",
    ),
    Mutant(
        "layer_norm", "partial rows past the last", "missing mask",
        "a block of partial rows was taken for full",
        ((
            "mask = (offs_p[:, None] < end) & (offs_n[None, :] < n)",
            "mask = (offs_p[:, None] >= 0) & (offs_n[None, :] < n)",
        ),),
        VALUES, "backward", "columns",
    ),
    Mutant(
        "layer_norm", "last block dropped with three stages", "config-dependent",
        "a prologue peeled off for the deepest pipeline",
        ((
            "tl.range(pid, tl.cdiv(m, BLOCK_M), programs, num_stages=NUM_STAGES)",
            "tl.range(pid, tl.cdiv(m, BLOCK_M) - NUM_STAGES // 3, programs, num_stages=NUM_STAGES)",
        ),),
        CERTIFICATE, "backward", "rows", "fp32",
        config={"BLOCK_M": 4, "num_warps": 1, "num_stages": 3, "PROGRAMS_PER_SM": 1},
    ),
    Mutant(
        "layer_norm", "partial sums into one row", "race without a barrier",
        "each program adds its sums to what is there, with plain loads and stores",
        (
            _ONE_ROW,
            (
                _PARTIAL_ROWS,
                """\
    columns = tl.arange(0, BLOCK_N)
    partial_ptr += columns
    if HAS_WEIGHT:
        so_far = tl.load(partial_ptr, mask=columns < n)
        tl.store(partial_ptr, so_far + tl.sum(dweight, axis=0), mask=columns < n)
    if HAS_BIAS:
        so_far = tl.load(partial_ptr + HAS_WEIGHT * programs.to(tl.int64) * n, mask=columns < n)
        tl.store(partial_ptr + HAS_WEIGHT * programs.to(tl.int64) * n, so_far + tl.sum(dbias, axis=0), mask=columns < n)
""",
            ),
        ),
        VALUES, "backward", "rows", gpu_only=IN_ORDER,
    ),
    Mutant(
        "layer_norm", "partial sums by atomics", "unordered sums",
        "one row in the place of many; the order of the additions is chance",
        (
            _ONE_ROW,
            (
                _PARTIAL_ROWS,
                """\
    columns = tl.arange(0, BLOCK_N)
    partial_ptr += columns
    if HAS_WEIGHT:
        tl.atomic_add(partial_ptr, tl.sum(dweight, axis=0), mask=columns < n)
    if HAS_BIAS:
        tl.atomic_add(partial_ptr + HAS_WEIGHT * programs.to(tl.int64) * n, tl.sum(dbias, axis=0), mask=columns < n)
""",
            ),
        ),
        REPEATABLE, "backward", "rows", "fp32", gpu_only=IN_ORDER,
    ),
    Mutant(
        "layer_norm", "rows counted in 32 bits", "int32 overflow of offsets",
        "program_id is 32-bit, and so is its product with n",
        ((
            "offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)\n"
            "    mask_m = offs_m < m\n    row = offs_m",
            "offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)\n    mask_m = offs_m < m\n    row = offs_m",
        ),),
        VALUES, "forward", "stream", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
