"""What the project knows of bmm: its variants, from the preferred one on, its peers, its cases and costs."""

from atlas.declaration import Capability, Declaration, Pass, Variant, compiled, eager, max_autotuned

from kernels.matmul.bf16x6 import bf16x6, multiplies_terms
from kernels.matmul.registers import registers
from kernels.matmul.swizzled import swizzled

from .cases import DTYPES, EDGE_CASES, HUGE_CASES, MAX_AUTOTUNED, inputs, least_bytes, reference, sweep
from .clustered import clustered, launch_clustered
from .described import launch_bf16x6, launch_direct, launch_persistent, launch_registers, launch_swizzled
from .direct import direct
from .spaces import (
    PERSISTENT_SPACE,
    SPACE,
    copies,
    default,
    default_persistent,
    fits,
    fits_persistent,
    swizzles_batch,
)
from .staged import staged
from .terms import terms
from .tiled import launch_tiled

DECLARATION = Declaration(
    name="batched_matmul",
    family="matmul",
    summary="C[b] = A[b] B[b]",
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
            staged(),
            registers(launch_registers),
            bf16x6(launch_bf16x6, multiplies_terms),
            clustered(launch_clustered),
            direct(launch_direct),
            Variant(
                name="persistent",
                summary="the copy engine moves blocks, of padded copies where rows are off 16 bytes; one program an SM",
                launch=launch_persistent,
                space=PERSISTENT_SPACE,
                default=default_persistent,
                fits=fits_persistent,
                handles=copies,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
                follows="tiled",
            ),
            terms(),
            swizzled(launch_swizzled, swizzles_batch),
            Variant(
                name="tiled",
                summary="one program a tile of one product, in an order that shares rows and columns in L2",
                launch=launch_tiled,
                space=SPACE,
                default=default,
                fits=fits,
            ),
        ),
        peers={
            "torch": eager(reference),
            "torch.compile": compiled(reference),
            "torch.compile max-autotune": max_autotuned(reference, cases=lambda c: c in MAX_AUTOTUNED),
        },
        bytes=least_bytes,
        flops=lambda c: {"a @ b": 2 * c["b"] * c["m"] * c["n"] * c["k"]},
        reduction=lambda c: c["k"],
    ),
)
