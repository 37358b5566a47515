"""The variants of products with packed weights and their declaration, for weights of 4 bits and of 8."""

import functools

import torch
from atlas.declaration import Capability, Case, Declaration, Pass, Peer, Variant, case, normal, searching

from kernels.common.packed import DTYPES, Packed
from kernels.common.peers import by_cublaslt

from .cases import CASES, EDGE_CASES, compiled, dequantised, searched, sizes, torch_int4, tuned_by_torch
from .direct_space import DIRECT_SPACE, direct_default, fits_direct
from .fragments import launch_fragments
from .light_space import LIGHT, lights
from .many_rows import (
    CONVERTED_SPACE,
    DEQUANTISE,
    SEPARATE_SPACE,
    SPECIALIZED_SPACE,
    converted_default,
    converts,
    directs,
    fits_converted,
    fits_separate,
    fits_specialized,
    separates,
    specialises,
    specialized_default,
)
from .packing import pack_w4
from .shared import launch_shared
from .spaces import (
    FRAGMENTS_SPACE,
    SHARED_SPACE,
    TILES_SPACE,
    decodes,
    fits_fragments,
    fits_shared,
    fits_tiles,
    fragments_default,
    shared_default,
    shares,
    tiles_default,
)
from .tiles import (
    launch_converted,
    launch_direct,
    launch_light,
    launch_separate,
    launch_specialized,
    launch_tiles,
)


def variants_of(bits):
    """The variants for weights of so many bits, the preferred one first."""
    return (
        Variant(
            name="fragments",
            summary="for few rows: packed words become operands of tensor cores where they were loaded; warps share k",
            launch=functools.partial(launch_fragments, bits),
            space=FRAGMENTS_SPACE,
            default=functools.partial(fragments_default, bits),
            fits=functools.partial(fits_fragments, bits),
            handles=decodes,
            needs=frozenset({Capability.TENSOR_CORES}),
        ),
        Variant(
            name="light",
            summary="small products from 9 rows on: `direct` in one role, weights by shared memory; clusters share k",
            launch=functools.partial(launch_light, bits),
            space=LIGHT.space,
            default=LIGHT.default,
            fits=LIGHT.fits,
            handles=functools.partial(lights, bits),
            needs=frozenset({Capability.WGMMA}),
            follows="direct",
        ),
        Variant(
            name="shared",
            summary="for few rows: the warps of a program share x and have columns of their own; programs share k",
            launch=functools.partial(launch_shared, bits),
            space=SHARED_SPACE,
            default=functools.partial(shared_default, bits),
            fits=functools.partial(fits_shared, bits),
            handles=functools.partial(shares, bits),
            needs=frozenset({Capability.TENSOR_CORES}),
        ),
        *_of_many_rows(bits),
        Variant(
            name="tiles",
            summary="plain Triton: tiles of weights are brought to 16 bits between load and tl.dot",
            launch=functools.partial(launch_tiles, bits),
            space=TILES_SPACE,
            default=tiles_default,
            fits=fits_tiles,
        ),
    )


def _of_many_rows(bits):
    """Those of them that multiply in cuBLAS or by wgmma."""
    return (
        Variant(
            name="direct",
            summary="from 17 rows on: all by TMA; lanes load words of four, which become 16 bits in registers",
            launch=functools.partial(launch_direct, bits),
            space=DIRECT_SPACE,
            default=functools.partial(direct_default, bits),
            fits=functools.partial(fits_direct, bits),
            handles=functools.partial(directs, bits),
            needs=frozenset({Capability.WGMMA}),
        ),
        Variant(
            name="specialized",
            summary="from 33 rows on: a warp loads x, two groups of four bring weights to 16 bits in wgmma's registers",
            launch=functools.partial(launch_specialized, bits),
            space=SPECIALIZED_SPACE,
            default=specialized_default,
            fits=fits_specialized,
            handles=functools.partial(specialises, bits),
            needs=frozenset({Capability.WGMMA}),
        ),
        Variant(
            name="converted",
            summary="for many rows: blocks of weights are brought to 16 bits in shared memory, once for a tile's rows",
            launch=functools.partial(launch_converted, bits),
            space=CONVERTED_SPACE,
            default=converted_default,
            fits=fits_converted,
            handles=functools.partial(converts, bits),
            needs=frozenset({Capability.WGMMA}),
        ),
        Variant(
            name="separate",
            summary="for many rows: the weights are written out in 16 bits, the product is cuBLAS's",
            launch=functools.partial(launch_separate, bits),
            space=SEPARATE_SPACE,
            default=lambda problem, gpu: dict(DEQUANTISE),
            fits=fits_separate,
            handles=functools.partial(separates, bits),
        ),
    )


def declared(name, bits, summary, pack, dequantised, cases, edge_cases, peers):
    """The declaration of products with weights of so many bits.

    ``pack(weight, case)`` gives a case's weights, ``dequantised(words, scales, zeros, n, k, group)`` what they stand
    for in plain torch; ``peers`` are those beside torch's product with weights of 16 bits.
    """

    def inputs(problem: Case, device, generator):
        draw = normal(problem, device, generator)
        packed = pack(draw(problem["n"], problem["k"]), problem)
        x = draw(problem["m"], problem["k"])
        return {"x": x, "words": packed.words, "scales": packed.scales, "zeros": packed.zeros, "n": problem["n"],
                "group": problem["group"]}  # fmt: skip

    def reference(x, words, scales, zeros, n, group):
        return torch.nn.functional.linear(x, dequantised(words, scales, zeros, n, x.shape[1], group))

    def in_16_bits(x, words, scales, zeros, n, group):
        """What a user has without packed weights: torch's product with weights in x's dtype, dequantised before."""
        w = in_dtype(x, words, scales, zeros, n, group)
        return lambda: torch.nn.functional.linear(x, w)

    def cublaslt(x, words, scales, zeros, n, group):
        return by_cublaslt(x, in_dtype(x, words, scales, zeros, n, group).t())

    def in_dtype(x, words, scales, zeros, n, group):
        return dequantised(words, scales.float(), zeros, n, x.shape[1], group).to(x.dtype)

    def call(function, given):
        packed = (given[name] for name in ("words", "scales", "zeros", "n"))
        return function(given["x"], Packed(*packed, given["x"].shape[1], given["group"]))

    huge = dict(cases[0].sizes) | {"m": 2**18 + 1, "n": 64, "k": 8192}
    return Declaration(
        name=name,
        family="matmul",
        summary=summary,
        call=call,
        dtypes=tuple(DTYPES.values()),
        cases=lambda gpu: [c for c in cases if 4 * c["n"] * c["k"] <= gpu.memory_bytes // 8],
        edge_cases=edge_cases,
        huge_cases=(case("bf16", "offsets into x beyond 2^31", **huge),),
        differentiable=("x",),
        forward=Pass(
            inputs=inputs,
            reference=reference,
            outputs=("y",),
            variants=variants_of(bits),
            peers={"torch": Peer(in_16_bits), "cublaslt": Peer(cublaslt)} | peers,
            bytes=lambda c: sizes(c, bits),
            flops=lambda c: {"x @ W^T": 2 * c["m"] * c["n"] * c["k"]},
            reduction=lambda c: c["k"],
        ),
    )


DECLARATION = declared(
    "matmul_w4a16",
    4,
    "y = x W^T, W of 4 bits with a scale and a zero point for each group",
    lambda weight, problem: pack_w4(weight, problem["group"], not problem["zeros"]),
    dequantised,
    CASES,
    EDGE_CASES,
    {
        "torch.compile": Peer(compiled, compiles=True),
        "torch.compile max-autotune": searching(searched, tuned_by_torch),
        "torch int4": Peer(torch_int4),
    },
)
