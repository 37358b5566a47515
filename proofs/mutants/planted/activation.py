"""Mutants of activation."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, LARGE, NAN_INF, NON_CONTIGUOUS, UNCHANGED, VALUES, WRITTEN
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "activation", "last block without a mask", "out-of-bounds store",
        "tensors of a model have whole blocks, wherever it was tried",
        (("forward_tile(x_ptrs, up_ptrs, out_ptrs, offs < n_elements - start, KIND, True)",
          "forward_tile(x_ptrs, up_ptrs, out_ptrs, None, KIND, False)"),),
        WRITTEN, "forward", "flat",
    ),
    Mutant(
        "activation", "full by its columns alone", "config-dependent",
        "a tile counts as full where its columns are: wrong where its rows reach past the last",
        (("full = (first_m + BLOCK_M <= m) & (first_n + BLOCK_N <= n)", "full = first_n + BLOCK_N <= n"),),
        WRITTEN, "forward", "rows", sizes={"kind": "swiglu", "strided": True, "m": 19, "n": 320},
    ),
    Mutant(
        "activation", "halves exchanged", "wrong operand",
        "which half is the gate is a convention",
        (("return x[:, : n // 2], x[:, n // 2 :]", "return x[:, n // 2 :], x[:, : n // 2]"),),
        VALUES, "forward", "rows",
    ),
    Mutant(
        "activation", "polynomial without its clamp", "out of its range",
        "a fit is good where it was made: beyond 6 its highest power takes over, until the density ends it",
        (("z = tl.minimum(tl.abs(x), 6.0) - 3.0", "z = tl.abs(x) - 3.0"),),
        NAN_INF, "forward", "flat", "fp16", sizes={"kind": "gelu", "strided": False, "m": 37, "n": 129},
    ),
    Mutant(
        "activation", "share times the bounded x", "infinity swallowed",
        "bounding x once spares a bound in each of the terms",
        (("    y = x.to(tl.float32) * share_of(",
          "    y = tl.minimum(x.to(tl.float32), 1e4) * share_of("),),
        NAN_INF, "forward", "flat", sizes={"kind": "silu", "strided": False, "m": 37, "n": 129},
    ),
    Mutant(
        "activation", "sigmoid by the ratio of exponentials", "overflow",
        "the same in exact arithmetic: exp(x) / (1 + exp(x))",
        (("    else:\n        share = tl.sigmoid(x)\n    return share",
          "    else:\n        share = tl.exp(x) / (1 + tl.exp(x))\n    return share"),),
        LARGE, "forward", "flat", sizes={"kind": "silu", "strided": False, "m": 37, "n": 129},
    ),
    Mutant(
        "activation", "the other gelu", "wrong formula",
        "the two forms differ in the fourth digit",
        (('    if approximate == "none":\n        return _elementwise("gelu", input, "gelu")\n',
          '    if approximate == "none":\n        return _elementwise("gelu", input, "gelu_tanh")\n'),),
        "public_function", "forward", "public", "fp32",
    ),
    Mutant(
        "activation", "slope of a sigmoid alone", "wrong gradient",
        "the product rule has two terms",
        (("        slope = share + growth * share * rest\n", "        slope = share\n"),),
        VALUES, "backward", "flat",
    ),
    Mutant(
        "activation", "gradient of up without its silu", "wrong gradient of one input",
        "dy times the gate, as it would be without the activation",
        (("dy * (x.to(tl.float32) * share)", "dy * x.to(tl.float32)"),),
        VALUES, "backward", "flat",
    ),
    Mutant(
        "activation", "gradients written over the inputs", "input overwritten",
        "saves two allocations, as some libraries do",
        (("    dx, dup, n = empty(x), None if up is None else empty(up), x.numel()\n",
          "    dx, dup, n = x, up, x.numel()\n"),),
        UNCHANGED, "backward", "flat",
    ),
    Mutant(
        "activation", "strided dY taken as it is", "non-contiguous input misread",
        "autograd hands back dY in whatever layout the next operation had",
        (("return _gated_backward(gate, up, dy.contiguous())", "return _gated_backward(gate, up, dy)"),
         ("return _backward(x, dy.contiguous(), ctx.kind), None", "return _backward(x, dy, ctx.kind), None")),
        GRADIENTS, "backward", "public",
    ),
    Mutant(
        "activation", "every layout taken for contiguous", "non-contiguous input misread",
        "the memory of a tensor was read from its start on, in whatever order it lies",
        (("as_laid_out(lambda x: _forward(x, kind), x)",
          "_forward(x.as_strided(x.shape, torch.empty(x.shape).stride()), kind)"),),
        NON_CONTIGUOUS, "forward", "public",
    ),
    Mutant(
        "activation", "offsets of 32 bits", "int32 overflow of offsets",
        "program_id is 32-bit, and so is its product",
        (("    start = tl.program_id(0).to(tl.int64) * BLOCK\n    offs = tl.arange(0, BLOCK)\n    x_ptrs, out_ptrs =",
          "    start = tl.program_id(0) * BLOCK\n    offs = tl.arange(0, BLOCK)\n    x_ptrs, out_ptrs ="),),
        VALUES, "forward", "flat", huge=True, gpu_only=HUGE,
    ),
    Mutant(
        "activation", "row offsets of 32 bits", "int32 overflow of offsets",
        "a row's number is 32-bit, and so is its product with the stride",
        (("return offs_m.to(tl.int64), offs_n,", "return offs_m, offs_n,"),),
        VALUES, "forward", "rows", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
