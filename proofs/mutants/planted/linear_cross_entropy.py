"""Mutants of linear_cross_entropy."""

from __future__ import annotations

from ..checks import GRADIENTS, VALUES
from ..planting import Mutant

MUTANTS = (
    Mutant(
        "linear_cross_entropy", "last chunk's gradient alone", "lost accumulation",
        "the first chunk writes dweight, the others should add to it; with one chunk nothing is lost",
        (("part, dweight, dbias, first=start == 0)", "part, dweight, dbias, first=True)"),),
        VALUES, "forward", "chunks", "fp32",
        sizes={"m": 11, "k": 16, "n": 40, "gradient": True, "chunk": 4, "ignored": True, "bias": True},
    ),
    Mutant(
        "linear_cross_entropy", "bias left out", "missing term",
        "most such layers have none",
        (("            x, bias, target[start", "            x, None, target[start"),),
        VALUES, "forward", "chunks", "fp32",
    ),
    Mutant(
        "linear_cross_entropy", "rows taken for neighbours", "wrong stride",
        "the same where the vocabulary is a multiple of the pitch, as many are",
        (("n, pitch, ignore_index", "n, n, ignore_index"),),
        VALUES, "forward", "chunks", "fp32",
    ),
    Mutant(
        "linear_cross_entropy", "sum for the mean", "wrong scale",
        "the loss is divided afterwards, and the gradient was forgotten",
        (("ignore_index, reduction, total=False)", 'ignore_index, "sum", total=False)'),),
        VALUES, "forward", "chunks", "fp32",
        sizes={"m": 11, "k": 16, "n": 40, "gradient": True, "chunk": 4, "ignored": True, "bias": True},
    ),
    Mutant(
        "linear_cross_entropy", "first row's gradient for all", "wrong row of a broadcast operand",
        "the losses of all rows had one gradient until there was reduction='none'",
        (("PER_ROW=int(dloss is not None)", "PER_ROW=0"),),
        GRADIENTS, "forward", "public", "fp32",
        sizes={"m": 5, "k": 8, "n": 7, "gradient": True, "bias": True, "ignored": True, "reduction": "none"},
    ),
    Mutant(
        "linear_cross_entropy", "edges out of the sum", "missing tail",
        "the maximum takes the edges of unaligned rows in, the sum was forgotten",
        (("    if not ALIGNED:\n        row_sum += tl.sum(tl.exp(x - row_max), axis=0)\n", ""),),
        VALUES, "forward", "chunks", "fp32",
    ),
)  # fmt: skip
