"""attention_fp8 as the project knows it."""

import functools

from atlas.declaration import Declaration, Pass, Variant, searching

from kernels.attention.cases import by_backend, by_torch, products_of, searched
from kernels.attention.spaces import HOPPER, for_hopper

from .cases import EDGE_CASES, HUGE_CASES, flex_in_bf16, in_bf16, inputs_of, reference, spread, sweep, traffic
from .hopper_forward import HOPPER_SPACE, fits_hopper, hopper_default, launch_hopper
from .tiled import (
    HALF_SPACE,
    HEADS,
    TILED_SPACE,
    fits_half,
    fits_tiled,
    half_default,
    handles_half,
    launch_tiled,
    multiplies_fp8,
    tiled_default,
)

DECLARATION = Declaration(
    name="attention_fp8",
    family="attention",
    summary="out = softmax(scale Q K^T) V of fp8 heads, with their scales, causal or not, and log-sum-exp",
    call=lambda function, inputs: function(
        inputs["q"],
        inputs["k"],
        inputs["v"],
        *inputs["scales"],
        is_causal=inputs["causal"],
        scale=inputs["scale"],
        enable_gqa=True,
    ),
    dtypes=("fp8e4m3",),
    cases=sweep,
    edge_cases=EDGE_CASES,
    huge_cases=HUGE_CASES,
    forward=Pass(
        inputs=inputs_of,
        reference=reference,
        outputs=("out", "lse"),
        variants=(
            Variant(
                name="descriptor",
                summary="the blocks of `tiled` by TMA, P and V in fp16: few keys, or heads `gluon` lacks (Hopper)",
                launch=functools.partial(launch_tiled, half=True),
                space=HALF_SPACE,
                default=half_default,
                fits=fits_half,
                handles=handles_half,
                needs=HOPPER,
                follows="tiled",
            ),
            Variant(
                name="gluon",
                summary="a warp that loads and groups of warps that multiply; V transposed before (Hopper alone)",
                launch=launch_hopper,
                space=HOPPER_SPACE,
                default=hopper_default,
                fits=fits_hopper,
                handles=functools.partial(for_hopper, HEADS),
                needs=HOPPER,
                follows="tiled",
            ),
            Variant(
                name="tiled",
                summary="a block of queries a program; keys and values through pointers, masks on the diagonal alone",
                launch=launch_tiled,
                space=TILED_SPACE,
                default=tiled_default,
                fits=fits_tiled,
                handles=multiplies_fp8,
            ),
        ),
        peers={
            "torch": in_bf16(by_torch),
            "cudnn": in_bf16(by_backend("CUDNN_ATTENTION")),
            "flash": in_bf16(by_backend("FLASH_ATTENTION")),
            "flex_attention max-autotune": searching(flex_in_bf16, searched),
        },
        weak=dict.fromkeys(
            ("torch", "cudnn", "flash", "flex_attention max-autotune"),
            "computes in bf16, since torch has no attention of fp8",
        ),
        bytes=traffic,
        flops=products_of("Q K^T", "P V"),
        reduction=lambda c: c["d"] + c["s"],
        spread=spread,
    ),
)
