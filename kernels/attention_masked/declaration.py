"""attention_masked as the project knows it."""

import functools

from atlas.declaration import Declaration, Pass, Variant

from kernels.attention.spaces import BACKWARD_SPACE, FORWARD_SPACE, HOPPER, TMA, describes, too_wide

from .backward import launch_backward
from .cases import (
    DTYPES,
    EDGE_CASES,
    HUGE_CASES,
    backward_inputs,
    backward_reference,
    backward_spread,
    bytes_of,
    forward_inputs,
    products_of,
    reference,
    sweep,
)
from .few_keys import SPACE as FEW_KEYS_SPACE
from .few_keys import few_keys_default, fits_few_keys, handles_few_keys, launch_few_keys
from .forward import launch_forward
from .peers import BACKWARD_PEERS, FORWARD_PEERS
from .spaces import backward_default, fits_backward, fits_forward, forward_default


def _window(inputs):
    """The window of a call as users write it."""
    return tuple(count - 1 if count else None for count in (inputs["left"], inputs["right"]))


DECLARATION = Declaration(
    name="attention_masked",
    family="attention",
    summary="out = softmax(scale Q K^T + mask) V by heads, in a window, with log-sum-exp",
    call=lambda function, inputs: function(
        inputs["q"],
        inputs["k"],
        inputs["v"],
        inputs["mask"],
        _window(inputs),
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
                name="descriptor",
                summary="the blocks of `tiled`, moved by the copy engine (TMA) through descriptors, but for the mask's",
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
                summary="a block of queries a program, the mask's beside; keys of the window, through pointers",
                launch=functools.partial(launch_forward, False),
                space=FORWARD_SPACE,
                default=functools.partial(forward_default, pointers=True),
                fits=functools.partial(fits_forward, pointers=True),
            ),
        ),
        peers=FORWARD_PEERS,
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
                name="few_keys",
                summary="all keys of a head in one block: each product once, dQ, dK and dV in one kernel (TMA)",
                launch=launch_few_keys,
                space=FEW_KEYS_SPACE,
                default=few_keys_default,
                fits=fits_few_keys,
                handles=handles_few_keys,
                needs=HOPPER,
                follows="descriptor",
            ),
            Variant(
                name="descriptor",
                summary="the kernels of `tiled`, blocks moved by the copy engine (TMA), but for the mask's",
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
        peers=BACKWARD_PEERS,
        bytes=bytes_of("q out dout dq", "k v dk dv"),
        flops=products_of("Q K^T", "dout V^T", "P^T dout", "dS^T Q", "dS K"),
        # dS has three sums of d terms in it (S, dP and D), and is summed over queries of a group, or keys.
        reduction=lambda c: 3 * c["d"] + max(c["l"] * c["h"] // c["g"], c["s"]),
        spread=backward_spread,
    ),
)
