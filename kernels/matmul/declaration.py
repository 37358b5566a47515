"""What the project knows of matmul: its variants, from the preferred one on, its peers, its cases and costs."""

import functools

from atlas.declaration import Capability, Declaration, Pass, Peer, Variant, compiled, cuda, eager, max_autotuned

from kernels.common.products import operand_bytes, row_lengths

from .bf16x6 import bf16x6, multiplies_terms
from .cases import DTYPES, EDGE_CASES, HUGE_CASES, MAX_AUTOTUNED, inputs, prepare_cublaslt, reference, sweep
from .clustered import clustered, launch_clustered
from .columns import columns, launch_columns
from .described import (
    launch_bf16x6,
    launch_descriptor,
    launch_gluon,
    launch_persistent,
    launch_registers,
    launch_specialized,
)
from .few_rows import few_rows, launch_few_rows
from .hopper_spaces import gluon
from .odd_rows import odd_rows
from .outer import OUTER_SPACE, default_outer, fits_outer, launch_outer, multiplies_outer
from .registers import registers
from .rounds import launch_rounds, rounds
from .shifted import launch_shifted, shifted
from .spaces import (
    NAIVE_SPACE,
    PERSISTENT_SPACE,
    SPACE,
    SPECIALIZED_SPACE,
    copies_along_k,
    default,
    default_naive,
    default_persistent,
    default_specialized,
    fits,
    fits_descriptor,
    fits_persistent,
    fits_specialized,
    specializes,
)
from .split_described import launch_split_descriptor, launch_swizzled
from .split_spaces import split_descriptor
from .staggered import launch_staggered, staggered
from .streamed import launch_streamed, streamed
from .swizzled import swizzled
from .thin import launch_split, launch_vector
from .thin_spaces import (
    SPLIT_SPACE,
    VECTOR_SPACE,
    default_split,
    default_vector,
    fits_split,
    fits_vector,
    has_vector,
    splits_k,
)
from .tiled import launch_pointers, naive_kernel, tiled_kernel
from .uncopied import uncopied

DECLARATION = Declaration(
    name="matmul",
    family="matmul",
    summary="C = A B",
    call=lambda function, inputs: function(inputs["a"], inputs["b"]),
    dtypes=DTYPES,
    cases=sweep,
    edge_cases=EDGE_CASES,
    huge_cases=HUGE_CASES,
    differentiable=("a", "b"),
    forward=Pass(
        inputs=inputs,
        reference=reference,
        outputs=("c",),
        variants=(
            Variant(
                name="vector",
                summary="a row times a matrix without tl.dot: each element is loaded once, straight into registers",
                launch=launch_vector,
                space=VECTOR_SPACE,
                default=default_vector,
                fits=fits_vector,
                handles=has_vector,
                follows="split",
            ),
            Variant(
                name="outer",
                summary="a handful of products each, added up without tl.dot: writing C is the work",
                launch=launch_outer,
                space=OUTER_SPACE,
                default=default_outer,
                fits=fits_outer,
                handles=multiplies_outer,
                follows="naive",
            ),
            streamed(launch_streamed),
            uncopied(launch_split),
            few_rows(launch_few_rows),
            registers(launch_registers),
            bf16x6(launch_bf16x6, multiplies_terms),
            shifted(launch_shifted),
            staggered(launch_staggered),
            odd_rows(launch_split, row_lengths),
            clustered(launch_clustered, row_lengths),
            split_descriptor(launch_split_descriptor, row_lengths),
            columns(launch_columns),
            rounds(launch_rounds),
            gluon(launch_gluon),
            Variant(
                name="persistent",
                summary="one program an SM takes tile after tile; loops over tiles and K are one pipeline",
                launch=launch_persistent,
                space=PERSISTENT_SPACE,
                default=default_persistent,
                fits=fits_persistent,
                handles=copies_along_k,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
                follows="descriptor",
            ),
            Variant(
                name="descriptor",
                summary="the tiles of `tiled`, moved by the copy engine (TMA) through descriptors",
                launch=launch_descriptor,
                space=SPACE,
                default=default,
                fits=fits_descriptor,
                handles=copies_along_k,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
                follows="tiled",
            ),
            swizzled(launch_swizzled),
            Variant(
                name="tiled",
                summary="large pipelined tiles, ordered in groups that share rows and columns in L2",
                launch=functools.partial(launch_pointers, tiled_kernel),
                space=SPACE,
                default=default,
                fits=fits,
                follows="naive",
            ),
            Variant(
                name="split",
                summary="thin tiles, and K in parts so that they are enough; a second kernel adds the parts up",
                launch=launch_split,
                space=SPLIT_SPACE,
                default=default_split,
                fits=fits_split,
                handles=splits_k,
                follows="tiled",
            ),
            Variant(
                name="specialized",
                summary="as `persistent`, with warps that copy and warps that multiply",
                launch=launch_specialized,
                space=SPECIALIZED_SPACE,
                default=default_specialized,
                fits=fits_specialized,
                handles=specializes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
                follows="persistent",
            ),
            Variant(
                name="naive",
                summary="one small tile a program, in row order, loads not overlapped with products",
                launch=functools.partial(launch_pointers, naive_kernel),
                space=NAIVE_SPACE,
                default=default_naive,
            ),
        ),
        peers={
            "torch": eager(reference),
            "torch.compile": compiled(reference),
            "torch.compile max-autotune": max_autotuned(reference, cases=lambda c: c in MAX_AUTOTUNED),
            "cublaslt": Peer(prepare_cublaslt),
            "cuda.naive": cuda("naive"),
            "cuda.tiled": cuda("tiled"),
        },
        bytes=operand_bytes,
        flops=lambda c: {"a @ b": 2 * c["m"] * c["n"] * c["k"]},
        reduction=lambda c: c["k"],
    ),
)
