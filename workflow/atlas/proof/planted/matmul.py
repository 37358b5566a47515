"""Mutants of matmul."""

from __future__ import annotations

from ...declaration import Capability
from ..checks import GRADIENTS, HUGE, NON_CONTIGUOUS, VALUES, WRITTEN
from ..planting import CERTIFICATE, Mutant

MUTANTS = (
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
        VALUES, "forward", "tiled", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
