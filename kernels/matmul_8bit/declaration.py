"""What the project knows of products of 8 bits: variants, from the preferred one on, peers, cases and costs."""

import functools

from atlas.declaration import Capability, Declaration, Pass, Variant, compiled, eager, max_autotuned

from .cases import EDGE_CASES, HUGE_CASES, by_torch, call, inputs, least_bytes, reference, sweep, tuned_by_torch
from .clustered import clustered
from .described import (
    descriptor_kernel,
    launch_described,
    launch_specialized,
    persistent_kernel,
    resident_programs,
)
from .spaces import (
    ALTERNATING_SPACE,
    SPACE,
    SPECIALIZED_SPACE,
    SPLIT_SPACE,
    alternates,
    default,
    default_alternating,
    default_specialized,
    default_split,
    describes,
    fits,
    fits_alternating,
    fits_specialized,
    fits_split,
    handles,
    persists,
    specializes,
    splits,
)
from .split import launch_split_descriptor
from .tiled import DTYPES, launch_tiled

DECLARATION = Declaration(
    name="matmul_8bit",
    family="matmul",
    summary="C = A B of fp8 or int8, scaled",
    call=lambda function, inputs: call(function, **inputs),
    dtypes=DTYPES,
    cases=sweep,
    edge_cases=EDGE_CASES,
    huge_cases=HUGE_CASES,
    forward=Pass(
        inputs=inputs,
        reference=reference,
        outputs=("c",),
        variants=(
            clustered(),
            Variant(
                name="split_descriptor",
                summary="few tiles, a long sum: K in parts, which a second kernel adds up and scales",
                launch=launch_split_descriptor,
                space=SPLIT_SPACE,
                default=default_split,
                fits=fits_split,
                handles=splits,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
                follows="descriptor",
            ),
            Variant(
                name="specialized",
                summary="one warp loads; groups of warps multiply, and one adds or writes meanwhile",
                launch=launch_specialized,
                space=SPECIALIZED_SPACE,
                default=default_specialized,
                fits=fits_specialized,
                handles=specializes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
                follows="persistent",
            ),
            Variant(
                name="alternating",
                summary="the groups have tiles of their own: one multiplies while the other writes",
                launch=launch_specialized,
                space=ALTERNATING_SPACE,
                default=default_alternating,
                fits=fits_alternating,
                handles=alternates,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
                follows="specialized",
            ),
            Variant(
                name="persistent",
                summary="a program for each place on the GPU; reads for the next tile while it writes one, in parts",
                launch=functools.partial(launch_described, persistent_kernel, resident_programs),
                space=SPACE,
                default=functools.partial(default, persistent=True),
                fits=functools.partial(fits, persistent=True),
                handles=persists,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
                follows="descriptor",
            ),
            Variant(
                name="descriptor",
                summary="the tiles of `tiled`, moved by the copy engine (TMA) through descriptors",
                launch=functools.partial(launch_described, descriptor_kernel, lambda gpu, config, tiles: tiles),
                space=SPACE,
                default=default,
                fits=fits,
                handles=describes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
                follows="tiled",
            ),
            Variant(
                name="tiled",
                summary="large pipelined tiles, ordered in groups that share rows and columns in L2",
                launch=launch_tiled,
                space=SPACE,
                default=default,
                fits=fits,
                handles=handles,
            ),
        ),
        peers={
            "torch": eager(by_torch),
            "torch.compile": compiled(by_torch),
            "torch.compile max-autotune": max_autotuned(by_torch, cases=tuned_by_torch),
        },
        bytes=least_bytes,
        flops=lambda c: {"a @ b": 2 * c["m"] * c["n"] * c["k"]},
        reduction=lambda c: c["k"],
        precision=lambda c: "bf16",
    ),
)
