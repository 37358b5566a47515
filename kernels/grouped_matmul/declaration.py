"""What the project knows of grouped products: variants, from the preferred one on, peers, cases and costs."""

import functools

from atlas.declaration import (
    Capability,
    Declaration,
    Pass,
    Peer,
    Variant,
    compiled_gradients,
    eager,
    gradients,
    max_autotuned,
    max_autotuned_gradients,
)

from .cases import (
    DTYPES,
    EDGE_CASES,
    HUGE_CASES,
    MAX_AUTOTUNED,
    backward_bytes,
    backward_inputs,
    backward_reference,
    flops,
    inputs,
    least_bytes,
    only_bf16,
    prepare_backward_loop,
    prepare_loop,
    reference,
    sweep,
    takes,
    torch_grouped,
)
from .rows import launch_rows
from .spaces import (
    GLUON_SPACE,
    SPACE,
    default,
    default_in_gluon,
    describes,
    fits,
    fits_in_gluon,
    fits_tiled_backward,
    long_groups,
)
from .sums import launch_backward


def _variants(launch_pass, fits_tiled):
    """The variants of a pass."""
    return (
        Variant(
            name="gluon",
            summary="for long groups, in Gluon: a warp copies, two groups of warps multiply",
            follows="descriptor",
            launch=functools.partial(launch_pass, in_gluon=True),
            space=GLUON_SPACE,
            default=default_in_gluon,
            fits=fits_in_gluon,
            handles=long_groups,
            needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        ),
        Variant(
            name="descriptor",
            summary="blocks moved by the copy engine (TMA) through descriptors",
            follows="tiled",
            launch=functools.partial(launch_pass, by_descriptor=True),
            space=SPACE,
            default=functools.partial(default, described=True),
            fits=functools.partial(fits, described=True),
            handles=describes,
            needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        ),
        Variant(
            name="tiled",
            summary="pipelined tiles read through pointers",
            launch=launch_pass,
            space=SPACE,
            default=default,
            fits=fits_tiled,
        ),
    )


DECLARATION = Declaration(
    name="grouped_matmul",
    family="matmul",
    summary="c = a b[g], rows in groups",
    call=lambda function, inputs: function(inputs["a"], inputs["b"], offs=inputs["offs"]),
    dtypes=DTYPES,
    cases=sweep,
    edge_cases=EDGE_CASES,
    huge_cases=HUGE_CASES,
    differentiable=("a", "b"),
    forward=Pass(
        inputs=inputs,
        reference=reference,
        outputs=("c",),
        variants=_variants(launch_rows, fits),
        peers={
            "torch": eager(reference),
            "torch loop": Peer(prepare_loop),
            "torch._grouped_mm": only_bf16(eager(torch_grouped)),
            "torch.compile max-autotune": max_autotuned(torch_grouped, cases=takes),
        },
        bytes=least_bytes,
        flops=flops,
        reduction=lambda c: c["k"],
    ),
    backward=Pass(
        inputs=backward_inputs,
        reference=backward_reference,
        outputs=("da", "db"),
        variants=_variants(launch_backward, fits_tiled_backward),
        peers={
            "torch": eager(backward_reference),
            "torch loop": Peer(prepare_backward_loop),
            "torch._grouped_mm": only_bf16(gradients(torch_grouped, ("a", "b"), cotangent="dc")),
            "torch.compile": only_bf16(compiled_gradients(torch_grouped, ("a", "b"), cotangent="dc")),
            "torch.compile max-autotune": max_autotuned_gradients(
                torch_grouped, ("a", "b"), lambda c: c in MAX_AUTOTUNED, cotangent="dc"
            ),
        },
        bytes=backward_bytes,
        flops=lambda c: {"dc @ b^T": flops(c)["a @ b"], "a^T @ dc": flops(c)["a @ b"]},
        reduction=lambda c: max(c["m"], c["n"]),
    ),
)
