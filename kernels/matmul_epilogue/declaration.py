"""What the project knows of the linear layer: variants, from the preferred one on, peers, cases and costs."""

import functools

from atlas.declaration import (
    Capability,
    Declaration,
    Pass,
    Peer,
    Variant,
    compiled,
    compiled_gradients,
    eager,
    gradients,
    max_autotuned,
)

from kernels.matmul.bf16x6 import bf16x6, multiplies_terms
from kernels.matmul.clustered import clustered
from kernels.matmul.few_rows import few_rows
from kernels.matmul.odd_rows import odd_rows
from kernels.matmul.split_spaces import split_descriptor
from kernels.matmul.staggered import staggered
from kernels.matmul.swizzled import swizzled

from .cases import (
    DTYPES,
    EDGE_CASES,
    HUGE_CASES,
    backward_bytes,
    backward_flops,
    backward_inputs,
    backward_reference,
    call,
    flops,
    inputs,
    least_bytes,
    prepare_cublaslt,
    pulled_back,
    reference,
    sweep,
    tuned_by_torch,
)
from .clustered import launch_clustered
from .described import (
    descriptor_kernel,
    launch_bf16x6,
    launch_blocks,
    launch_specialized,
    launch_swizzled,
    persistent_kernel,
)
from .few_rows import launch_few_rows
from .pull import launch_backward
from .spaces import (
    ALTERNATING_SPACE,
    FEW_ROWS_SPACE,
    PERSISTENT_SPACE,
    PULL_SPACE,
    SPACE,
    SPECIALIZED_SPACE,
    alternates,
    default,
    default_alternating,
    default_few_rows,
    default_persistent,
    default_pull,
    default_specialized,
    describes,
    fits,
    fits_few_rows,
    fits_persistent,
    fits_pull,
    fits_specialized,
    has_few_rows,
    has_many_rows,
    persists,
    row_lengths,
    specializes,
)
from .split import launch_few_rows_by_fma, launch_odd_rows, launch_split_descriptor, launch_staggered
from .tiled import launch_tiled

DECLARATION = Declaration(
    name="matmul_epilogue",
    family="matmul",
    summary="y = act(x W^T + bias) + residual",
    call=call,
    dtypes=DTYPES,
    cases=sweep,
    edge_cases=EDGE_CASES,
    huge_cases=HUGE_CASES,
    differentiable=("x", "weight", "bias"),
    forward=Pass(
        inputs=inputs,
        reference=reference,
        outputs=("y",),
        variants=(
            few_rows(launch_few_rows_by_fma, lambda problem: "NT", least=1, follows="tiled"),
            bf16x6(launch_bf16x6, functools.partial(multiplies_terms, finishes=True)),
            staggered(launch_staggered, lambda problem: "NT", least=1),
            odd_rows(launch_odd_rows, row_lengths, least=1),
            Variant(
                name="alternating",
                summary="Gluon: the groups have tiles of their own, and one multiplies while the other finishes",
                follows="specialized",
                launch=functools.partial(launch_specialized, True),
                space=ALTERNATING_SPACE,
                default=default_alternating,
                fits=functools.partial(fits_specialized, alternate=True),
                handles=alternates,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
            ),
            Variant(
                name="specialized",
                summary="Gluon: a warp loads, two or three groups of warps multiply and finish their rows of a tile",
                follows="persistent",
                launch=functools.partial(launch_specialized, False),
                space=SPECIALIZED_SPACE,
                default=default_specialized,
                fits=fits_specialized,
                handles=specializes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
            ),
            clustered(launch_clustered, row_lengths),
            split_descriptor(launch_split_descriptor, row_lengths),
            Variant(
                name="persistent",
                summary="one program an SM: the next tile's blocks load while one is finished",
                follows="descriptor",
                launch=functools.partial(launch_blocks, persistent_kernel),
                space=PERSISTENT_SPACE,
                default=default_persistent,
                fits=fits_persistent,
                handles=persists,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
            ),
            swizzled(launch_swizzled),
            Variant(
                name="tiled",
                summary="pipelined tiles in an order that shares rows and columns in L2; the epilogue from registers",
                launch=launch_tiled,
                space=SPACE,
                default=default,
                fits=fits,
            ),
            Variant(
                name="descriptor",
                summary="the tiles of `tiled`, moved by the copy engine (TMA) through descriptors",
                follows="tiled",
                launch=functools.partial(launch_blocks, descriptor_kernel),
                space=SPACE,
                default=default,
                fits=fits,
                handles=describes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
            ),
        ),
        peers={
            "torch": eager(reference),
            "torch.compile": compiled(reference),
            "torch.compile max-autotune": max_autotuned(reference, cases=tuned_by_torch),
            "cublaslt": Peer(prepare_cublaslt),
        },
        bytes=least_bytes,
        flops=flops,
        reduction=lambda c: c["k"],
    ),
    backward=Pass(
        inputs=backward_inputs,
        reference=backward_reference,
        outputs=("dx", "dweight", "dbias"),
        variants=(
            Variant(
                name="few_rows",
                summary="all gradients in one launch: programs own tiles of dW or of dx, and compute act' for them",
                launch=launch_few_rows,
                space=FEW_ROWS_SPACE,
                default=default_few_rows,
                fits=fits_few_rows,
                handles=has_few_rows,
                follows="pull",
            ),
            Variant(
                name="pull",
                summary="act' and the bias' gradient in one pass over dy, then matmul's products",
                launch=launch_backward,
                space=PULL_SPACE,
                default=default_pull,
                fits=fits_pull,
                handles=has_many_rows,
            ),
        ),
        peers={
            "torch": pulled_back(gradients, compiles=False),
            "torch.compile": pulled_back(compiled_gradients, compiles=True),
        },
        bytes=backward_bytes,
        flops=backward_flops,
        reduction=lambda c: max(c["m"], c["n"]),
    ),
)
