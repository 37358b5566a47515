"""Mutants of multiply_add."""

from __future__ import annotations

from ..checks import FUNCTION, GRADIENTS, HUGE, NAN_INF, NON_CONTIGUOUS, UNCHANGED, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "multiply_add", "value forgotten", "wrong scale",
        "it is 1 by default, and was 1 wherever it was tried",
        (("tl.store(out_ptrs, x + value * a * b, mask=mask)", "tl.store(out_ptrs, x + a * b, mask=mask)"),),
        VALUES, "forward", "blocks",
    ),
    Mutant(
        "multiply_add", "value applied to the sum", "wrong order of operations",
        "value * (input + tensor1 * tensor2), the same for value = 1",
        (("x + value * a * b, mask=mask", "value * (x + a * b), mask=mask"),),
        VALUES, "forward", "rows",
    ),
    Mutant(
        "multiply_add", "product rounded before the sum", "16-bit intermediate",
        "as two operations of torch would give it",
        (("x + value * a * b, mask=mask", "x + (value * a * b).to(tl.float16).to(tl.float32), mask=mask"),),
        VALUES, "forward", "blocks", "fp32",
    ),
    Mutant(
        "multiply_add", "gradients swapped", "wrong gradient of both inputs",
        "each is the product with the other tensor, not with its own",
        (
            ("tl.store(dtensor1_ptrs, dout * b", "tl.store(dtensor1_ptrs, dout * a"),
            ("tl.store(dtensor2_ptrs, dout * a", "tl.store(dtensor2_ptrs, dout * b"),
        ),
        VALUES, "backward", "blocks",
    ),
    Mutant(
        "multiply_add", "gradient without value", "wrong gradient",
        "value is a number, so it has no gradient; but it is a factor of two",
        (("dout = value * tl.load(dout_ptrs", "dout = tl.load(dout_ptrs"),),
        VALUES, "backward", "rows",
    ),
    Mutant(
        "multiply_add", "rows of input at tensor1's distance", "swapped strides",
        "one stride for all three tensors, of which only two are halves of a wide matrix",
        (("input_ptr + offs_m * stride_xm", "input_ptr + offs_m * stride_am"),),
        VALUES, "forward", "rows",
    ),
    Mutant(
        "multiply_add", "columns not masked", "missing mask",
        "rows end at a multiple of the tile wherever they are a power of two",
        ((
            "mask = (offs_m < m) & (offs_n < n)\n        _multiply_add(input_ptrs",
            "mask = (offs_m < m) & (offs_n >= 0)\n        _multiply_add(input_ptrs",
        ),),
        WRITTEN, "forward", "rows",
    ),
    Mutant(
        "multiply_add", "full although rows end", "config-dependent",
        "whether a tile is full was asked of its columns alone",
        (("(first_m + BLOCK_M <= m) & (first_n + BLOCK_N <= n)", "first_n + BLOCK_N <= n"),),
        WRITTEN, "backward", "rows",
    ),
    Mutant(
        "multiply_add", "tiles across counted down", "unwritten tail",
        "one column too few, where the last tile is not full",
        (("elementwise.tiles(*x.shape, ", "elementwise.tiles(x.shape[0], x.shape[1] - 1, "),),
        WRITTEN, "forward", "rows", sizes={"m": 2, "n": 4097, "gaps": True},
    ),
    Mutant(
        "multiply_add", "sum written over input", "input overwritten",
        "addcmul_ does so",
        (("    out = torch.empty_like(input)\n", "    out = input\n"),),
        UNCHANGED, "forward", "blocks",
    ),
    Mutant(
        "multiply_add", "NaN made 0", "NaN swallowed",
        "a guard against 0 times infinity",
        (("x + value * a * b, mask=mask", "x + tl.where(a * b == a * b, value * a * b, 0.0), mask=mask"),),
        NAN_INF, "forward", "blocks",
    ),
    Mutant(
        "multiply_add", "value forgotten by the public function", "argument not passed on",
        "the tests left it at 1",
        (("_differentiable(*tensors, float(value))", "_differentiable(*tensors, 1.0)"),),
        FUNCTION, "forward", "public", sizes={"m": 4, "n": 2048, "gaps": False},
    ),
    Mutant(
        "multiply_add", "transposed tensors given back as they lie", "swapped dimensions",
        "the elements are all there, in the order in which they were read",
        ((
            "as_laid_out(lambda *tensors: _differentiable(*tensors, float(value)), input, tensor1, tensor2)",
            "as_laid_out(lambda *tensors: _differentiable(*tensors, float(value)), input, tensor1, tensor2)"
            ".permute(sorted(range(input.dim()), key=input.stride, reverse=True)).reshape(input.shape)",
        ),),
        NON_CONTIGUOUS, "forward", "public",
    ),
    Mutant(
        "multiply_add", "strided dY taken as it is", "non-contiguous input misread",
        "autograd hands back dY in whatever layout the next operation had",
        (("_backward(dout.contiguous(), tensor1", "_backward(dout, tensor1"),),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "multiply_add", "offsets of 32 bits", "int32 overflow of offsets",
        "program_id is 32-bit, and so is its product",
        ((
            "first = tl.program_id(0).to(tl.int64) * BLOCK\n    offs = first + tl.arange(0, BLOCK)\n"
            "    if first + BLOCK <= n_elements:\n        _multiply_add(",
            "first = tl.program_id(0) * BLOCK\n    offs = first + tl.arange(0, BLOCK)\n"
            "    if first + BLOCK <= n_elements:\n        _multiply_add(",
        ),),
        VALUES, "forward", "blocks", huge=True, gpu_only=HUGE,
    ),
    Mutant(
        "multiply_add", "row offsets of 32 bits", "int32 overflow of offsets",
        "a row's number is 32-bit, and so is its product with the stride",
        (("(first_m + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]", "(first_m + tl.arange(0, BLOCK_M))[:, None]"),),
        VALUES, "forward", "rows", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
