"""Mutants of cross_entropy."""

from __future__ import annotations

from ..checks import GRADIENTS, HUGE, LARGE, NAN_INF, UNCHANGED, VALUES, WRITTEN
from ..planting import Mutant

_SMOOTHED = {"m": 33, "n": 64, "smoothing": 0.1}

MUTANTS = (
    Mutant(
        "cross_entropy", "running maximum from -inf", "wrong identity of a reduction",
        "-inf is the identity of max; but exp(-inf - -inf) is NaN",
        (("tl.full([LANES], LOWEST, tl.float32)", 'tl.full([LANES], -float("inf"), tl.float32)'),),
        VALUES, "forward", "stream", "fp32", sizes={"m": 3, "n": 4097, "reduction": "none", "z_loss": 1e-2},
    ),
    Mutant(
        "cross_entropy", "edges out of the sum", "missing tail",
        "the maximum takes the edges of unaligned rows in, the sum was forgotten",
        (("    if not ALIGNED:\n        row_sum += tl.sum(tl.exp(x - row_max), axis=0)\n", ""),),
        VALUES, "forward", "stream", "fp32",
    ),
    Mutant(
        "cross_entropy", "edges of the gradient not stored", "unwritten tail",
        "whole lanes are stored; the store of those across a row's ends was forgotten",
        ((
            "        tl.store(dx_ptr + edge, gradient_of(x, lse, weight, floor, peak, g, edge == at, counted), "
            "mask=inside)",
            "        pass",
        ),),
        WRITTEN, "backward", "blocks", "fp32",
    ),
    Mutant(
        "cross_entropy", "mean over all rows", "wrong scale",
        "the same where no target is ignored",
        (("count += (target != ignore_index).to(tl.int32)", "count += (offs < m).to(tl.int32)"),),
        VALUES, "forward", "one_pass", "fp32", sizes={"m": 9, "n": 2049, "gradient": True, "ignored": True},
    ),
    Mutant(
        "cross_entropy", "smoothing spread over the other classes", "wrong scale",
        "another definition of smoothed labels: the target's own share of s is left out",
        (("label_smoothing / n, 1.0", "label_smoothing / (n - 1), 1.0"),),
        VALUES, "backward", "blocks", "fp32", sizes=_SMOOTHED,
    ),
    Mutant(
        "cross_entropy", "z-loss without a gradient", "missing term",
        "the loss has the term, and its gradient is a factor that is 1 without it",
        (("return 1.0 + 2.0 * z_loss * lse,", "return 1.0 + 0.0 * lse,"),),
        VALUES, "backward", "blocks", "fp32", sizes={"m": 3, "n": 4097, "reduction": "none", "z_loss": 1e-2},
    ),
    Mutant(
        "cross_entropy", "each term times the loss's gradient", "NaN from 0 times infinity",
        "the same as their sum times it, unless it is infinite and a term 0, as without smoothed labels",
        ((
            "dx = tl.exp(x - shift) * weight - floor - tl.where(at_target, peak, 0.0)\n"
            "    return tl.where(counted, dx * g, 0.0)",
            "dx = tl.exp(x - shift) * (weight * g) - floor * g - tl.where(at_target, peak * g, 0.0)\n"
            "    return tl.where(counted, dx, 0.0)",
        ),),
        NAN_INF, "backward", "blocks", "fp32", sizes={"m": 37, "n": 129, "ignored": True},
    ),
    Mutant(
        "cross_entropy", "maximum not subtracted", "overflow",
        "the same in exact arithmetic, and right for all inputs of ordinary size",
        ((
            "row_max = tl.maximum(tl.max(x, axis=1), LOWEST)",
            "row_max = tl.zeros([BLOCK_M], tl.float32)",
        ),),
        LARGE, "forward", "one_pass", "fp32",
    ),
    Mutant(
        "cross_entropy", "gradient written over the logits", "input overwritten",
        "saves an allocation, as some libraries do",
        (("saved = empty_like(x) if dx is None else dx", "saved = x"),),
        UNCHANGED, "forward", "one_pass", "fp32",
    ),
    Mutant(
        "cross_entropy", "strided dY taken as it is", "non-contiguous input misread",
        "autograd hands back dY in whatever layout the next operation had",
        (("_backward(x, target, lse, scale, dloss.contiguous()", "_backward(x, target, lse, scale, dloss"),),
        GRADIENTS, "backward", "public", "fp32",
    ),
    Mutant(
        "cross_entropy", "row offsets of 32 bits", "int32 overflow of offsets",
        "program_id is 32-bit, and so is its product with the rows' distance",
        ((
            "row = pid.to(tl.int64) * stride_xm\n"
            "    counted, valid, logit = target_of(x_ptr + row, tl.load(target_ptr + pid)",
            "row = pid * stride_xm\n"
            "    counted, valid, logit = target_of(x_ptr + row, tl.load(target_ptr + pid)",
        ),),
        VALUES, "forward", "stream", huge=True, gpu_only=HUGE,
    ),
)  # fmt: skip
