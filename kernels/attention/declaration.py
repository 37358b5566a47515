"""attention as the project knows it."""

import functools

from atlas.declaration import Declaration, Pass, Variant, eager, gradients, searching

from kernels.common.peers import by_flex_attention

from .backward import launch_backward
from .cases import (
    DTYPES,
    EDGE_CASES,
    HUGE_CASES,
    backward_inputs,
    backward_reference,
    backward_spread,
    by_backend,
    by_torch,
    bytes_of,
    forward_inputs,
    products_of,
    reference,
    searched,
    sweep,
)
from .forward import launch_forward
from .hopper_forward import HEADS, HOPPER_SPACE, fits_hopper, hopper_default, launch_hopper
from .hopper_gradients import fits_hopper_backward, handles_hopper_backward, launch_hopper_backward
from .small import (
    BACKWARD_SMALL,
    FORWARD_SMALL,
    handles_small,
    handles_small_backward,
    small_backward_default,
    small_default,
)
from .spaces import (
    BACKWARD_SPACE,
    FORWARD_SPACE,
    HOPPER,
    TMA,
    backward_default,
    describes,
    fits_backward,
    fits_forward,
    for_hopper,
    forward_default,
    too_wide,
)

DECLARATION = Declaration(
    name="attention",
    family="attention",
    summary="out = softmax(scale Q K^T) V by heads, causal or not, with log-sum-exp",
    call=lambda function, inputs: function(
        inputs["q"],
        inputs["k"],
        inputs["v"],
        is_causal=inputs["causal"],
        scale=inputs["scale"],
        enable_gqa=True,
    ),
    dtypes=DTYPES,
    cases=sweep,
    edge_cases=EDGE_CASES,
    huge_cases=HUGE_CASES,
    differentiable=("q", "k", "v"),
    forward=Pass(
        inputs=forward_inputs,
        reference=reference,
        outputs=("out", "lse"),
        offset_inputs=("v",),
        variants=(
            Variant(
                name="small",
                summary="the blocks of `descriptor`, of 64 queries, where tiles of `gluon` are too few (Hopper alone)",
                follows="descriptor",
                launch=functools.partial(launch_forward, True),
                space=FORWARD_SMALL,
                default=small_default,
                fits=fits_forward,
                handles=handles_small,
                needs=HOPPER,
            ),
            Variant(
                name="gluon",
                summary="a warp that loads and groups of warps that multiply; softmax under products (Hopper alone)",
                launch=launch_hopper,
                space=HOPPER_SPACE,
                default=hopper_default,
                fits=fits_hopper,
                handles=functools.partial(for_hopper, HEADS),
                needs=HOPPER,
                follows="descriptor",
            ),
            Variant(
                name="descriptor",
                summary="the blocks of `tiled`, moved by the copy engine (TMA) through descriptors",
                follows="tiled",
                launch=functools.partial(launch_forward, True),
                space=FORWARD_SPACE,
                default=forward_default,
                fits=fits_forward,
                handles=describes,
                needs=TMA,
            ),
            Variant(
                name="tiled",
                summary="a block of queries a program; keys and values through pointers, masks on the diagonal alone",
                launch=functools.partial(launch_forward, False),
                space=FORWARD_SPACE,
                default=functools.partial(forward_default, pointers=True),
                fits=functools.partial(fits_forward, pointers=True),
            ),
        ),
        peers={
            "torch": eager(by_torch),
            "cudnn": eager(by_backend("CUDNN_ATTENTION")),
            "flash": eager(by_backend("FLASH_ATTENTION")),
            "flex_attention max-autotune": searching(by_flex_attention, searched),
        },
        bytes=bytes_of("q out", "k v"),
        flops=products_of("Q K^T", "P V"),
        reduction=lambda c: c["d"] + c["s"],  # scores are sums of d terms
    ),
    backward=Pass(
        inputs=backward_inputs,
        reference=backward_reference,
        outputs=("dq", "dk", "dv"),
        variants=(
            Variant(
                name="small",
                summary="the kernels of `descriptor`, blocks of 64, where tiles of `gluon` are too few (Hopper alone)",
                follows="descriptor",
                launch=functools.partial(launch_backward, True),
                space=BACKWARD_SMALL,
                default=small_backward_default,
                fits=fits_backward,
                handles=handles_small_backward,
                needs=HOPPER,
            ),
            Variant(
                name="gluon",
                summary="each product once, dQ added up in memory in a fixed order; two kernels for heads beyond 128",
                launch=launch_hopper_backward,
                space={"EVEN": (True, False)},
                default=lambda problem, gpu: {"EVEN": True},
                fits=fits_hopper_backward,
                handles=handles_hopper_backward,
                needs=HOPPER,
                follows="descriptor",
            ),
            Variant(
                name="descriptor",
                summary="the kernels of `tiled`, blocks moved by the copy engine (TMA)",
                follows="tiled",
                launch=functools.partial(launch_backward, True),
                space=BACKWARD_SPACE,
                default=backward_default,
                fits=fits_backward,
                handles=describes,
                needs=TMA,
            ),
            Variant(
                name="tiled",
                summary="a kernel for dK and dV, and one for dQ that computes P and dP again; loads through pointers",
                launch=functools.partial(launch_backward, False),
                space=BACKWARD_SPACE,
                default=functools.partial(backward_default, pointers=True),
                fits=functools.partial(fits_backward, pointers=True),
                handles=too_wide,
            ),
        ),
        peers={
            "torch": gradients(by_torch, ("q", "k", "v"), "dout"),
            "cudnn": gradients(by_backend("CUDNN_ATTENTION"), ("q", "k", "v"), "dout"),
            "flash": gradients(by_backend("FLASH_ATTENTION"), ("q", "k", "v"), "dout"),
        },
        bytes=bytes_of("q out dout dq", "k v dk dv"),
        flops=products_of("Q K^T", "dout V^T", "P^T dout", "dS^T Q", "dS K"),
        # dS has three sums of d terms in it (S, dP and D), and is summed over queries of a group, or keys.
        reduction=lambda c: 3 * c["d"] + max(c["l"] * c["h"] // c["g"], c["s"]),
        spread=backward_spread,
    ),
)
