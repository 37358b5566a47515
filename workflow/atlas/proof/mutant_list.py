"""The mutants: faults that people make in kernels like these, each with the check that should find it.

An edit names text of the kernel as it is; ``tests/validation/test_mutants.py`` says which no longer does.
"""

from __future__ import annotations

from ..declaration import Capability
from .planting import CERTIFICATE, Mutant

VALUES, WRITTEN, UNCHANGED, REPEATABLE = "values", "written_once_and_inside", "inputs_unchanged", "repeatable"
NAN_INF, LARGE, OFFSET = "nan_inf", "large_magnitudes", "common_offset"
FUNCTION, GRADIENTS, NON_CONTIGUOUS = "public_function", "gradients", "non_contiguous"

_HUGE = "needs tensors of more than 2^31 elements"
_IN_ORDER = "the interpreter runs programs one after the other"

VECTOR_ADD = (
    Mutant(
        "vector_add", "grid rounded down", "missing last program",
        "n // BLOCK is right for every size that is tried by hand",
        ((
            'grid = (triton.cdiv(x.numel(), config["BLOCK"]),)',
            'grid = (max(1, x.numel() // config["BLOCK"]),)',
        ),),
        WRITTEN, "forward", "blocks",
    ),
    Mutant(
        "vector_add", "store one past the end", "out-of-bounds store by one",
        "<= for <; what follows the output is seldom looked at",
        (("tl.store(out_ptr + offs, x + y, mask=mask)", "tl.store(out_ptr + offs, x + y, mask=offs <= n_elements)"),),
        WRITTEN, "forward", "blocks",
    ),
    Mutant(
        "vector_add", "no mask for the largest block", "config-dependent",
        "the sizes that were tuned are multiples of 8192, so a mask there seemed a waste",
        (("mask = offs < n_elements\n", "mask = (offs < n_elements) | (BLOCK >= 8192)\n"),),
        WRITTEN, "forward", "blocks",
    ),
    Mutant(
        "vector_add", "result kept by size", "stale output",
        "a buffer is kept for the next call of the same size, and the result with it",
        (
            ("def _launch(x, y, *, config):\n", "_KEPT = {}\n\n\ndef _launch(x, y, *, config):\n"),
            ("    return out\n", "    return _KEPT.setdefault((x.numel(), x.dtype), out)\n"),
        ),
        VALUES, "forward", "blocks",
    ),
    Mutant(
        "vector_add", "sum written over x", "input overwritten",
        "one allocation less, and the sum is right",
        (("    out = torch.empty_like(x)\n", "    out = x\n"),),
        UNCHANGED, "forward", "blocks",
    ),
    Mutant(
        "vector_add", "sum returned in fp32", "wrong dtype of the store",
        "arithmetic is fp32, and the output was left so",
        (("    out = torch.empty_like(x)\n", "    out = torch.empty_like(x, dtype=torch.float32)\n"),),
        FUNCTION, "forward", "public",
    ),
    Mutant(
        "vector_add", "NaN made 0", "NaN swallowed",
        "a guard against NaN, left in after a search for where they came from",
        (("out_ptr + offs, x + y, mask", "out_ptr + offs, tl.where(x + y == x + y, x + y, 0.0), mask"),),
        NAN_INF, "forward", "blocks",
    ),
    Mutant(
        "vector_add", "gradient of a difference", "wrong gradient of one input",
        "copied from a subtraction",
        (("return dout, dout", "return dout, -dout"),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "vector_add", "strided inputs taken as they are", "non-contiguous input misread",
        "tests draw contiguous tensors",
        (("_VectorAdd.apply(x.contiguous(), y.contiguous())", "_VectorAdd.apply(x, y)"),),
        NON_CONTIGUOUS, "forward", "public",
    ),
    Mutant(
        "vector_add", "offsets of 32 bits", "int32 overflow of offsets",
        "program_id is 32-bit, and so is its product",
        (("tl.program_id(0).to(tl.int64) * BLOCK", "tl.program_id(0) * BLOCK"),),
        VALUES, "forward", "blocks", huge=True, gpu_only=_HUGE,
    ),
)  # fmt: skip

SOFTMAX = (
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
        VALUES, "forward", "online", huge=True, gpu_only=_HUGE,
    ),
)  # fmt: skip

MATMUL = (
    Mutant(
        "matmul", "strides of B swapped", "swapped strides",
        "ten loose integers in a row",
        (("*a.stride(), *b.stride(), EVEN_K", "*a.stride(), *b.stride()[::-1], EVEN_K"),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "matmul", "sum rounded after each block", "16-bit accumulation",
        "the accumulator took the operands' dtype",
        ((
            "acc = tl.dot(a, b, acc, input_precision=PRECISION)\n        a_ptrs",
            "acc = tl.dot(a, b, acc, input_precision=PRECISION).to(a.dtype).to(tl.float32)\n        a_ptrs",
        ),),
        VALUES, "forward", "naive", "fp16",
    ),
    Mutant(
        "matmul", "fp32 rounded to fp16 at the end", "wrong dtype of the store",
        "written for fp16, then used for fp32",
        (("acc.to(c_ptr.dtype.element_ty), mask", "acc.to(tl.float16), mask"),),
        VALUES, "forward", "tiled", "fp32",
    ),
    Mutant(
        "matmul", "last group taken for full", "unwritten tail",
        "the number of rows of tiles was a multiple of GROUP_M wherever it was tried",
        (("rows = min(tiles_m - first_m, GROUP_M)", "rows = GROUP_M"),),
        WRITTEN, "forward", "tiled",
    ),
    Mutant(
        "matmul", "A not masked past K", "missing mask",
        "B is 0 there, and 0 times anything is 0: save for NaN and infinity",
        ((
            "a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)",
            "a = tl.load(a_ptrs)",
        ),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "matmul", "columns not masked", "out-of-bounds store",
        "rows were masked; a wide C hides that its columns are not",
        ((
            "mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))",
            "mask=(offs_m[:, None] < M) & (offs_n[None, :] >= 0))",
        ),),
        WRITTEN, "forward", "tiled",
    ),
    Mutant(
        "matmul", "tiles counted down", "unwritten tail",
        "N // BLOCK_N, where the last tile is not full",
        (("tiles_n = tl.cdiv(N, BLOCK_N)\n", "tiles_n = tl.maximum(N // BLOCK_N, 1)\n"),),
        WRITTEN, "forward", "naive",
    ),
    Mutant(
        "matmul", "K taken for even", "config-dependent",
        "K was held against 16, the smallest BLOCK_K, whatever the config's is",
        (('even_k = k % config["BLOCK_K"] == 0', "even_k = k % 16 == 0"),),
        CERTIFICATE, "forward", "tiled", "fp16",
        config={"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 8, "num_warps": 4, "num_stages": 2},
    ),
    Mutant(
        "matmul", "A taken for contiguous", "non-contiguous input misread",
        "row-major was assumed, to spare two arguments",
        (("*a.stride(), *b.stride(), EVEN_K", "k, 1, *b.stride(), EVEN_K"),),
        NON_CONTIGUOUS, "forward", "public",
    ),
    Mutant(
        "matmul", "gradient of B divided by the rows", "wrong gradient of one input",
        "the mean over the batch, which the loss takes already",
        (("db = _product(a.t(), dc) if", "db = _product(a.t(), dc) / dc.shape[0] if"),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "matmul", "tf32 in the place of fp32", "reduced precision",
        "an order of magnitude faster, and the difference passes for noise",
        ((
            'return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"',
            'return "tf32"',
        ),),
        VALUES, "forward", "tiled", "fp32", gpu_only="tf32 is one of the tensor cores' formats",
        needs=frozenset({Capability.TF32}),
    ),
    Mutant(
        "matmul", "coordinates of a descriptor swapped", "swapped strides",
        "the coordinates follow the tensor's dimensions, not the tile's",
        (("else b_desc.load([k, n])", "else b_desc.load([n, k])"),),
        VALUES, "forward", "descriptor", "fp16", gpu_only="the variant needs the copy engine (TMA)",
        needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
    ),
    Mutant(
        "matmul", "offsets into C of 32 bits", "int32 overflow of offsets",
        "a row's number is 32-bit, and so is its product with N",
        (("offs_m.to(tl.int64)[:, None] * N", "offs_m[:, None] * N"),),
        VALUES, "forward", "tiled", huge=True, gpu_only=_HUGE,
    ),
)  # fmt: skip

_PARTIAL_ROWS = """\
    columns = tl.arange(0, BLOCK_N)
    partial_ptr += pid.to(tl.int64) * n + columns
    if HAS_WEIGHT:
        tl.store(partial_ptr, tl.sum(dweight, axis=0), mask=columns < n)
    if HAS_BIAS:
        tl.store(partial_ptr + HAS_WEIGHT * programs.to(tl.int64) * n, tl.sum(dbias, axis=0), mask=columns < n)
"""
_ONE_ROW = (
    "partial = torch.empty((sum(flags.values()), programs, n), dtype=torch.float32, device=x.device)\n"
    "    _backward_rows",
    "partial = torch.zeros((sum(flags.values()), 1, n), dtype=torch.float32, device=x.device)\n    _backward_rows",
)

LAYER_NORM = (
    Mutant(
        "layer_norm", "epsilon forgotten", "dropped epsilon",
        "without it nothing changes, save for rows of equal values",
        (("tl.sum(centred * centred, axis=1) / n + eps)", "tl.sum(centred * centred, axis=1) / n)"),),
        VALUES, "forward", "one_pass",
    ),
    Mutant(
        "layer_norm", "variance over n - 1", "wrong scale",
        "torch.var divides by n - 1, torch.nn.functional.layer_norm by n",
        (("tl.sum(centred * centred, axis=1) / n + eps)", "tl.sum(centred * centred, axis=1) / (n - 1) + eps)"),),
        VALUES, "forward", "one_pass",
    ),
    Mutant(
        "layer_norm", "variance as E[x^2] - mean^2", "cancellation",
        "one sweep in the place of two, and right wherever the mean is near 0, as that of random inputs is",
        ((
            "tl.sum(centred * centred, axis=1) / n + eps)",
            "tl.sum(x * x, axis=1) / n - mean * mean + eps)",
        ),),
        OFFSET, "forward", "one_pass", "fp32",
    ),
    Mutant(
        "layer_norm", "padding counted in the variance", "wrong identity of a masked load",
        "padded with 0, but 0 - mean is not 0",
        (("centred = tl.where(mask_n, x - mean[:, None], 0.0)", "centred = x - mean[:, None]"),),
        VALUES, "forward", "persistent",
    ),
    Mutant(
        "layer_norm", "one mean too many", "out-of-bounds store by one",
        "<= for < in the mask of a small output",
        ((
            "_normalize(x, mask_n, n, eps)\n    tl.store(mean_ptr + offs_m, mean, mask=mask_m)",
            "_normalize(x, mask_n, n, eps)\n    tl.store(mean_ptr + offs_m, mean, mask=offs_m <= m)",
        ),),
        WRITTEN, "forward", "one_pass",
    ),
    Mutant(
        "layer_norm", "last rows without a block", "unwritten tail",
        "m // BLOCK_M blocks: wrong where BLOCK_M does not divide m",
        ((
            "tl.cdiv(m, BLOCK_M), tl.num_programs(0), num_stages=NUM_STAGES)",
            "m // BLOCK_M, tl.num_programs(0), num_stages=NUM_STAGES)",
        ),),
        WRITTEN, "forward", "persistent",
    ),
    Mutant(
        "layer_norm", "lanes not merged", "lost term",
        "the deviations within lanes were added, those between them forgotten",
        (("tl.sum(m2 + count * between * between, axis=0)", "tl.sum(m2, axis=0)"),),
        VALUES, "forward", "stream",
    ),
    Mutant(
        "layer_norm", "gradient without its mean", "wrong gradient of one input",
        "the term is small where dY has no mean, as random ones have none",
        ((
            "(g - xhat * along - level) * rstd, mask=mask)\n        if HAS_WEIGHT",
            "(g - xhat * along) * rstd, mask=mask)\n        if HAS_WEIGHT",
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
        "layer_norm", "row sums half written", "uninitialised scratch",
        "fresh memory is often 0, and the sum of a random dY is near it",
        (("    tl.store(level_ptr + tl.program_id(0), tl.sum(level, axis=0) / n)\n", ""),),
        VALUES, "backward", "columns",
    ),
    Mutant(
        "layer_norm", "partial rows nobody owns", "uninitialised scratch",
        "as many partial rows as programs wanted, not as there are: right where rows abound",
        ((
            "programs, n), dtype=torch.float32, device=x.device)\n    _backward_columns",
            "rows, n), dtype=torch.float32, device=x.device)\n    _backward_columns",
        ),),
        VALUES, "backward", "columns",
    ),
    Mutant(
        "layer_norm", "partial rows past the last", "missing mask",
        "a block of partial rows was taken for full",
        ((
            "mask = (offs_p[:, None] < p) & (offs_n[None, :] < n)",
            "mask = (offs_p[:, None] >= 0) & (offs_n[None, :] < n)",
        ),),
        VALUES, "backward", "columns",
    ),
    Mutant(
        "layer_norm", "last block dropped with four stages", "config-dependent",
        "a prologue peeled off for the deepest pipeline",
        ((
            "tl.range(pid, tl.cdiv(m, BLOCK_M), programs, num_stages=NUM_STAGES)",
            "tl.range(pid, tl.cdiv(m, BLOCK_M) - NUM_STAGES // 4, programs, num_stages=NUM_STAGES)",
        ),),
        CERTIFICATE, "backward", "rows", "fp32",
        config={"BLOCK_M": 4, "num_warps": 1, "num_stages": 4, "PROGRAMS_PER_SM": 1},
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
        so_far = tl.load(partial_ptr + HAS_WEIGHT * n, mask=columns < n)
        tl.store(partial_ptr + HAS_WEIGHT * n, so_far + tl.sum(dbias, axis=0), mask=columns < n)
""",
            ),
        ),
        VALUES, "backward", "rows", gpu_only=_IN_ORDER,
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
        tl.atomic_add(partial_ptr + HAS_WEIGHT * n, tl.sum(dbias, axis=0), mask=columns < n)
""",
            ),
        ),
        REPEATABLE, "backward", "rows", "fp32", gpu_only=_IN_ORDER,
    ),
    Mutant(
        "layer_norm", "rows counted in 32 bits", "int32 overflow of offsets",
        "program_id is 32-bit, and so is its product with n",
        ((
            "row = tl.program_id(0).to(tl.int64) * n\n"
            "    offs = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]\n    count",
            "row = tl.program_id(0) * n\n"
            "    offs = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]\n    count",
        ),),
        VALUES, "forward", "stream", huge=True, gpu_only=_HUGE,
    ),
)  # fmt: skip

MUTANTS = (*VECTOR_ADD, *SOFTMAX, *MATMUL, *LAYER_NORM)
