"""Mutants of matmul."""

from __future__ import annotations

from atlas.declaration import Capability

from ..checks import GRADIENTS, HUGE, NON_CONTIGUOUS, VALUES, WRITTEN
from ..planting import CERTIFICATE, Mutant

MUTANTS = (
    Mutant(
        "matmul", "strides of B swapped", "swapped strides",
        "ten loose integers in a row",
        (("a, b, c, m, n, k, *a.stride(), *b.stride(),", "a, b, c, m, n, k, *a.stride(), *b.stride()[::-1],"),),
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
        (("tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask", "tl.store(c_ptrs, acc.to(tl.float16), mask"),),
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
            "a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0, eviction_policy=A_POLICY)",
            "a = tl.load(a_ptrs)",
        ),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "matmul", "columns not masked", "out-of-bounds store",
        "rows were masked; a wide C hides that its columns are not",
        ((
            "acc.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))",
            "acc.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] >= 0))",
        ),),
        WRITTEN, "forward", "tiled",
    ),
    Mutant(
        "matmul", "tiles counted down", "unwritten tail",
        "N // BLOCK_N, where the last tile is not full",
        ((
            "tiles_n = tl.cdiv(N, BLOCK_N)\n    tile_m = tl.program_id(0) // tiles_n\n",
            "tiles_n = tl.maximum(N // BLOCK_N, 1)\n    tile_m = tl.program_id(0) // tiles_n\n",
        ),),
        WRITTEN, "forward", "naive",
    ),
    Mutant(
        "matmul", "K taken for even", "config-dependent",
        "K was held against 16, the smallest BLOCK_K, whatever the config's is",
        (('even_k = k % config["BLOCK_K"] == 0', "even_k = k % 16 == 0"),),
        CERTIFICATE, "forward", "tiled", "bf16",
        config={"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 8, "num_warps": 4, "num_stages": 2},
    ),
    Mutant(
        "matmul", "A taken for contiguous", "non-contiguous input misread",
        "row-major was assumed, to spare two arguments",
        (("a, b, c, m, n, k, *a.stride(), *b.stride(),", "a, b, c, m, n, k, k, 1, *b.stride(),"),),
        NON_CONTIGUOUS, "forward", "public",
    ),
    Mutant(
        "matmul", "gradient of B divided by the rows", "wrong gradient of one input",
        "the mean over the batch, which the loss takes already",
        ((
            "db = _product(a.t(), dc, tf32) if",
            "db = _product(a.t(), dc, tf32) / dc.shape[0] if",
        ),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "matmul", "tf32 in the place of fp32", "reduced precision",
        "an order of magnitude faster, and the difference passes for noise",
        ((
            "tf32 = tf32 and a.dtype == torch.float32 and",
            "tf32 = a.dtype == torch.float32 and",
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
        "matmul", "the first part added again and again", "wrong partial sum",
        "with one part it is right, and with equal parts nearly so",
        (("        parts_ptr += size\n", ""),),
        VALUES, "forward", "split",
    ),
    Mutant(
        "matmul", "parts of K rounded down", "unread tail",
        "K was a multiple of the parts' number times BLOCK_K wherever it was tried",
        ((
            "return triton.cdiv(triton.cdiv(k, block_k), splits) * block_k",
            "return max(1, k // block_k // splits) * block_k",
        ),),
        VALUES, "forward", "split",
    ),
    Mutant(
        "matmul", "a matrix's rows for its columns", "swapped strides",
        "a vector has one stride, a matrix two, and a square matrix hides which is which",
        (("*vector.stride(), *matrix.stride(),", "*vector.stride(), *matrix.stride()[::-1],"),),
        VALUES, "forward", "vector",
    ),
    Mutant(
        "matmul", "tiles beyond the first of a program left out", "unwritten tail",
        "tried on small products, where each program has one",
        (("tiles, tl.num_programs(0), flatten=True", "tl.minimum(tiles, 4), tl.num_programs(0), flatten=True"),),
        WRITTEN, "forward", "persistent", "fp16",
    ),
    Mutant(
        "matmul", "offsets into C of 32 bits", "int32 overflow of offsets",
        "a row's number is 32-bit, and so is its product with N",
        (("offs_m.to(tl.int64)[:, None] * N", "offs_m[:, None] * N"),),
        VALUES, "forward", "tiled", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
