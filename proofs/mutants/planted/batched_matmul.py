"""Mutants of batched_matmul."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, NON_CONTIGUOUS, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "batched_matmul", "tiles counted for one product", "unwritten tail",
        "the grid was that of matmul, and a batch of one hides it",
        (("return batch * triton.cdiv(m,", "return triton.cdiv(m,"),),
        WRITTEN, "forward", "tiled",
    ),
    Mutant(
        "batched_matmul", "products of A as far apart as those of C", "swapped strides",
        "M N and M K are the same for square matrices",
        (("a_ptr + batch * stride_ab,", "a_ptr + batch * M * N,"),),
        VALUES, "forward", "tiled",
    ),
    Mutant(
        "batched_matmul", "the first B for all products", "wrong tile",
        "tried on one B that all products share",
        (("of_b = 0 if B_SHARED else batch", "of_b = 0"),),
        VALUES, "forward", "persistent", "bf16",
    ),
    Mutant(
        "batched_matmul", "the order of tiles from the position in all products", "wrong tile",
        "right while there is one product",
        (("_grouped(position % tiles, M, N", "_grouped(position, M, N"),),
        WRITTEN, "forward", "persistent", "fp16",
    ),
    Mutant(
        "batched_matmul", "gradient of A from B as it is", "wrong gradient of one input",
        "square matrices take it without a word",
        ((
            "_products(dc, b.transpose(1, 2), tf32)",
            "_products(dc, b.reshape(b.shape[0], b.shape[2], -1), tf32)",
        ),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "batched_matmul", "matrices taken for contiguous", "non-contiguous input misread",
        "one stride fewer to pass",
        (("a, b, c, *c.shape[1:], k, *a.stride(),", "a, b, c, *c.shape[1:], k, c.shape[1] * k, k, 1,"),),
        NON_CONTIGUOUS, "forward", "public",
    ),
    Mutant(
        "batched_matmul", "products of 32 bits apart", "int32 overflow of offsets",
        "a product's number is small, and so is its size",
        (("batch = (tl.program_id(0) // tiles).to(tl.int64)", "batch = tl.program_id(0) // tiles"),),
        VALUES, "forward", "tiled", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
