"""attention_mla as the project knows it."""

import functools

from atlas.declaration import Declaration, Pass, Variant, eager, gradients, searching

from kernels.attention.backward import launch_backward
from kernels.attention.cases import backward_reference, backward_spread, by_backend, by_torch, searched
from kernels.attention.forward import launch_forward
from kernels.attention.hopper_forward import HOPPER_SPACE
from kernels.attention.spaces import BACKWARD_SPACE, FORWARD_SPACE, HOPPER, TMA
from kernels.common.peers import by_flex_attention

from .cases import (
    BACKWARD_BYTES,
    DTYPES,
    EDGE_CASES,
    FORWARD_BYTES,
    HUGE_CASES,
    backward_inputs,
    bytes_of,
    forward_inputs,
    products_of,
    reference,
    sweep,
    with_padded_values,
)
from .hopper import (
    fits_gradient,
    fits_hopper,
    handles_gradient,
    handles_hopper,
    hopper_default,
    launch_hopper,
    launch_hopper_backward,
)
from .spaces import backward_default, describes, fits_backward, fits_forward, forward_default, too_wide

PEERS = {
    "torch": by_torch,
    "cudnn": by_backend("CUDNN_ATTENTION"),
    "flash, values padded": with_padded_values(by_backend("FLASH_ATTENTION")),
}

DECLARATION = Declaration(
    name="attention_mla",
    family="attention",
    summary="out = softmax(scale Q K^T) V by heads, whose values have another size, with log-sum-exp",
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
                name="gluon",
                summary="attention's own: a warp that loads, groups that multiply; V of its own width (Hopper alone)",
                launch=launch_hopper,
                space=HOPPER_SPACE,
                default=hopper_default,
                fits=fits_hopper,
                handles=handles_hopper,
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
            **{name: eager(peer) for name, peer in PEERS.items()},
            "flex_attention max-autotune": searching(by_flex_attention, searched),
        },
        bytes=bytes_of(**FORWARD_BYTES),
        flops=products_of(**{"Q K^T": "d", "P V": "e"}),
        reduction=lambda c: c["d"] + c["s"],  # scores are sums of d terms
    ),
    backward=Pass(
        inputs=backward_inputs,
        reference=backward_reference,
        outputs=("dq", "dk", "dv"),
        variants=(
            Variant(
                name="gluon",
                summary="attention's own, narrower heads filled up with zeros by TMA; two kernels beyond 128 columns",
                launch=launch_hopper_backward,
                space={"EVEN": (True, False)},
                default=lambda problem, gpu: {"EVEN": True},
                fits=fits_gradient,
                handles=handles_gradient,
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
        peers={name: gradients(peer, ("q", "k", "v"), "dout") for name, peer in PEERS.items()},
        bytes=bytes_of(**BACKWARD_BYTES),
        flops=products_of(**{"Q K^T": "d", "dout V^T": "e", "P^T dout": "e", "dS^T Q": "d", "dS K": "d"}),
        # dS has sums of d and of e terms in it (S; dP and D), and is summed over queries of a group, or keys.
        reduction=lambda c: c["d"] + 2 * c["e"] + max(c["l"] * c["h"] // c["g"], c["s"]),
        spread=backward_spread,
    ),
)
