"""Batched matrix multiplication: C[b, m, n] = sum over k of A[b, m, k] B[b, k, n], accumulated in fp32.

Reads A (B M K elements) and B (B K N), writes C (B M N); 2 B M N K floating-point operations.  Each product is tiled as
in `matmul`, whose device functions these kernels share; new is only where a product's matrices lie, and that
tiles of all products are one list: many small products fill a GPU that each by itself would leave idle.

A matrix that all products share (a batch stride of 0, as ``expand`` makes it) is read where it lies, from L2 after the
first product, and never copied.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Capability,
    Case,
    Config,
    Declaration,
    Pass,
    Variant,
    case,
    compiled,
    eager,
    element_size,
    gpu_of,
)
from atlas.declaration.products import as_interpreted, describable, uses_tensor_cores
from atlas.operators import Differentiable, Operator, autocast, autocasting, launch
from atlas.operators.rounding import rounding_to_tf32
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common.padded import padded_rows
from kernels.common.products import (
    BARRIERS,
    LARGEST,
    buffers,
    describes,
    drawn_operands,
    fitting,
    fma_stages,
    narrow,
    operand_bytes,
    precision_of_product,
    stage_bytes,
    wants_tf32,
)
from kernels.common.tiles import grouped_tile, multiply_tile, store_tile, turned

__all__ = ["bmm"]


@triton.jit
def _tiled_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program p owns one tile of one product; those of the first come first, in the order of ``grouped_tile``."""
    tl.assume(K > 0)  # see ``tiled_kernel`` in kernels/matmul/tiled.py
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tile_m, tile_n = grouped_tile(tl.program_id(0) % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    acc = multiply_tile(
        a_ptr + batch * stride_ab, b_ptr + batch * stride_bb, tile_m, tile_n, M, N, K,
        stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, PRECISION, "", "",
    )  # fmt: skip
    store_tile(c_ptr + batch * M * N, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)


def _launch_tiled(a, b, tf32=False, *, config):
    """Launch ``_tiled_kernel``: one program a tile, A and B in whatever strides they have."""
    c, k = _empty(a, b), a.shape[2]
    precision = precision_of_product(a, tf32)
    a, b = as_interpreted(a), as_interpreted(b)
    if not k:
        return c.zero_()
    if c.numel():
        launch(
            _tiled_kernel, (_tiles_of(c, config),), a, b, c, *c.shape[1:], k, *a.stride(), *b.stride(),
            EVEN_K=k % config["BLOCK_K"] == 0, PRECISION=precision, **config,
        )  # fmt: skip
    return c


def _empty(a, b):
    return torch.empty((a.shape[0], a.shape[1], b.shape[2]), dtype=a.dtype, device=a.device)


def _tiles_of(c, config):
    batch, m, n = c.shape
    return batch * triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"])


@triton.jit
def _load_block(desc, batch, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BY_COLUMNS: tl.constexpr):
    """ROWS x COLUMNS of matrix ``batch`` from (row, column) on; ``desc`` is of the transposes if ``BY_COLUMNS``."""
    if BY_COLUMNS:
        return desc.load([batch, column, row]).reshape(COLUMNS, ROWS).T
    return desc.load([batch, row, column]).reshape(ROWS, COLUMNS)


@triton.jit
def _persistent_kernel(
    a_desc, b_desc, c_desc, c_ptr, BATCH, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, PARTS: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, A_SHARED: tl.constexpr, B_SHARED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program an SM takes every num_programs-th tile of all products; the copy engine moves blocks.

    The descriptors have three dimensions, so that a tile at a product's edge is filled with zeros and not with the next
    product's elements.  That of a shared matrix has one matrix (A_SHARED, B_SHARED).  Where C has no descriptor, since
    its rows are off 16 bytes, tiles are written through ``c_ptr``.
    """
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for position in tl.range(tl.program_id(0), tiles * BATCH, tl.num_programs(0), flatten=True):
        batch = position // tiles
        tile_m, tile_n = grouped_tile(position % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        of_a = 0 if A_SHARED else batch
        of_b = 0 if B_SHARED else batch
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            a = _load_block(a_desc, of_a, m, k, BLOCK_M, BLOCK_K, A_BY_COLUMNS)
            b = _load_block(b_desc, of_b, k, n, BLOCK_K, BLOCK_N, B_BY_COLUMNS)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        if c_desc is None:
            store_tile(c_ptr + batch.to(tl.int64) * M * N, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)
        elif PARTS == 1:
            c_desc.store([batch, m, n], acc.to(c_desc.dtype).reshape(1, BLOCK_M, BLOCK_N))
        else:  # halves of its columns: they leave room in shared memory for one more stage of A and B
            left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
            c_desc.store([batch, m, n], left.to(c_desc.dtype).reshape(1, BLOCK_M, BLOCK_N // 2))
            c_desc.store([batch, m, n + BLOCK_N // 2], right.to(c_desc.dtype).reshape(1, BLOCK_M, BLOCK_N // 2))


def _launch_persistent(a, b, tf32=False, *, config):
    """Launch ``_persistent_kernel``; operands that no descriptor can describe are copied first."""
    c, k = _empty(a, b), a.shape[2]
    if not k:
        return c.zero_()
    if not c.numel():
        return c
    precision = precision_of_product(a, tf32)
    a, b = as_interpreted(a), as_interpreted(b)
    if precision == "tf32":  # see ``along_k`` in kernels/matmul/described.py
        a, b = (_along_k(a.transpose(1, 2))).transpose(1, 2), _along_k(b)
    a, b = _padded(a), _padded(b)
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    launch(
        _persistent_kernel, (min(gpu_of(a.device).sms, _tiles_of(c, config)),),
        _describe(a, rows, block_k, precision), _describe(b, block_k, columns, precision),
        _describe(c, rows, columns // config["PARTS"]) if copyable(c) else None, c, *c.shape, k,
        A_BY_COLUMNS=_by_columns(a), B_BY_COLUMNS=_by_columns(b), A_SHARED=_shared(a), B_SHARED=_shared(b),
        PRECISION=precision, **config,
    )  # fmt: skip
    return c


def _padded(matrices):
    """The matrices as the copy engine can read them; else copies, in the same order, of one matrix if all share it."""
    if copyable(matrices):
        return matrices
    if _by_columns(matrices) and matrices.stride(1) == 1:
        return _padded(matrices.transpose(1, 2)).transpose(1, 2)
    return padded_rows(matrices[:1] if _shared(matrices) else matrices).expand(matrices.shape)


def _by_columns(matrices):
    return matrices.stride(2) != 1


def _shared(matrices):
    return matrices.shape[0] > 1 and matrices.stride(0) == 0


def _rows(matrices):
    """The matrices by rows: their transposes where they are stored by columns, and one of them where all share it."""
    rows = matrices.transpose(1, 2) if _by_columns(matrices) else matrices
    return rows[:1] if _shared(matrices) else rows


def copyable(matrices):
    """Whether the copy engine can read these matrices: see ``describable``; and products begin at whole 16 bytes."""
    rows = _rows(matrices)
    apart = rows.stride(0) * rows.element_size()
    return rows.numel() > 0 and describable(rows[0]) and (rows.shape[0] == 1 or (apart > 0 and apart % 16 == 0))


def _describe(matrices, rows, columns, precision="ieee"):
    """The descriptor of blocks of ``rows`` x ``columns``, transposed where matrices are stored by columns."""
    block = [1, columns, rows] if _by_columns(matrices) else [1, rows, columns]
    memory = _rows(matrices)
    # The stride of a single matrix is never used, but it must be a possible one.
    apart = memory.stride(0) if memory.shape[0] > 1 else memory.shape[1] * memory.stride(1)
    descriptor = TensorDescriptor(memory, list(memory.shape), [apart, memory.stride(1), 1], block)
    return rounding_to_tf32(descriptor) if precision == "tf32" else descriptor


def _along_k(b):
    """B [b, k, n] stored by columns: as it is, or transposed copies; a shared matrix is copied once."""
    if _by_columns(b):
        return b
    return turned(_rows(b)).expand(b.shape)


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot launch, or cannot be the best for this problem; ``""`` for one worth a trial."""
    shared = buffers(config, problem, gpu) * stage_bytes(config, problem)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    rows, columns, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    if rows >= max(32, 2 * problem["m"]) or columns >= max(64, 2 * problem["n"]):
        return "a tile twice as large as C"
    if rows < min(64, problem["m"]) or columns < min(64, problem["n"]):
        return "a tile smaller than C and than 64 rows and columns: operands are read too often"
    accumulators = rows * columns // (32 * warps)
    least = 4 if warps == 4 else 64
    row_bytes = config["BLOCK_K"] * element_size(problem.dtype)
    if uses_tensor_cores(problem, gpu) and not narrow(problem):
        most, right_k, stages = 64 if problem.dtype == "tf32" else 128, row_bytes == 128, (3, 4)
    elif uses_tensor_cores(problem, gpu):  # blocks wait in registers: see kernels/matmul/spaces.py
        most, right_k, stages = 64, row_bytes == 64, (2,)
    else:
        least, most = 16 if warps == 8 else 4, 64 if problem.dtype == "fp32" else 32
        right_k = config["BLOCK_K"] in ((16, 32) if problem.dtype == "fp32" else (16,))
        stages = (fma_stages(problem, gpu),)
    if not least <= accumulators <= most:
        return f"{accumulators} accumulators a thread in {warps} warps: registers spill, or too little work a warp"
    if not right_k:
        return "rows of a block of K are of one length: what the swizzle fills, or registers hold"
    return "" if config["num_stages"] in stages else "too little under way, or more than is of use"


_SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64),
    "GROUP_M": (8,),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
}


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    tensor_cores = uses_tensor_cores(problem, gpu)
    most = 128 if tensor_cores else 64
    rows = min(most, max(16, triton.next_power_of_2(problem["m"])))
    columns = min(most, max(32, triton.next_power_of_2(problem["n"])))
    if not tensor_cores:
        block_k, stages = 16, fma_stages(problem, gpu)
    elif narrow(problem):
        block_k, stages = 64 // element_size(problem.dtype), 2
    else:
        block_k, stages = 128 // element_size(problem.dtype), 3
    # 64 x 64 in 4 warps spills a few bytes in fp32 on compute capability 10.0 (Triton 3.7.1).
    warps = 8 if rows * columns == (128 * 128 if tensor_cores else 64 * 64) else 4
    return dict(zip(_SPACE, (rows, columns, block_k, 8, warps, stages), strict=True))


def _fits_persistent(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``persistent`` cannot launch, or cannot be the best."""
    rows, columns, size = config["BLOCK_M"], config["BLOCK_N"], element_size(problem.dtype)
    beside = rows * columns * size // config["PARTS"] + BARRIERS
    free = gpu.shared_bytes - beside - config["num_stages"] * stage_bytes(config, problem)
    if free < 0:
        return f"{-free} bytes of shared memory too many"
    if config["num_stages"] < 4 and free > stage_bytes(config, problem):
        return "one more stage would fit"
    if config["PARTS"] > 1 and rows * columns < 128 * 256:
        return "the tile of C is small beside the blocks"
    if rows * columns == 128 * 256 and columns < 256:
        return "wide tiles, as matmul's"
    return _fits(config, problem, gpu)


_PERSISTENT_SPACE = {**_SPACE, "PARTS": (1, 2)}


def _default_persistent(problem: Case, gpu: GPU) -> dict[str, int]:
    config = _default(problem, gpu)
    return {**config, "num_stages": 4 if config["num_stages"] == 3 else config["num_stages"], "PARTS": 1}


def _reference(a, b, tf32):
    return torch.bmm(a, b)


def _inputs(problem: Case, device, generator):
    return drawn_operands(problem, (problem["b"],), device, generator)


def _bytes(problem: Case) -> dict[str, float]:
    return {name: problem["b"] * one for name, one in operand_bytes(problem).items()}


def _cases(gpu: GPU) -> list[Case]:
    cases = [
        case("bf16", "more small products than SMs", b=512, m=128, n=128, k=128),
        case("bf16", "large products, few of them", b=16, m=1024, n=1024, k=1024),
        case("bf16", "by columns, as queries times keys", b=64, m=2048, n=2048, k=128, layout="NT"),
        case("bf16", "a long sum, as weights times values", b=64, m=2048, n=128, k=2048),
        case("bf16", "a tensor core's peak", b=4, m=4096, n=4096, k=4096),
        case("fp16", b=16, m=1024, n=1024, k=1024),
        case("tf32", b=16, m=1024, n=1024, k=1024),
        case("fp32", b=16, m=512, n=512, k=512),
    ]
    return fitting(cases, _bytes, gpu)


_EDGE_CASES = (
    *(
        case(dtype, reason, b=b, m=m, n=n, k=k)
        for dtype in ("fp32", "fp16", "bf16")
        for (b, m, n, k), reason in (
            ((1, 1, 1, 1), "one element of each"),
            ((3, 33, 65, 129), "tails everywhere, products that begin off 16 bytes"),
            ((2, 128, 128, 64), "whole tiles only"),
            ((5, 24, 40, 72), "a tile's edge is another product's first rows"),
            ((2, 130, 24, 7), "k smaller than any block of it"),
        )
    ),
    *(
        case("fp16", f"either layout and tails: {layout}", b=2, m=72, n=136, k=200, layout=layout)
        for layout in ("NT", "TN", "TT")
    ),
    case("tf32", "10 bits of mantissa", b=2, m=72, n=136, k=200),
)

_HUGE_CASES = (case("bf16", "offsets into A and C beyond 2^31, between products", b=2**15 + 8, m=512, n=128, k=136),)

DECLARATION = Declaration(
    name="batched_matmul",
    family="matmul",
    summary="C[b] = A[b] B[b]",
    call=lambda function, inputs: function(inputs["a"], inputs["b"]),
    dtypes=("fp32", "tf32", "fp16", "bf16"),
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("a", "b"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("c",),
        variants=(
            Variant(
                name="persistent",
                summary="the copy engine moves blocks, through descriptors of three dimensions; one program an SM",
                launch=_launch_persistent,
                space=_PERSISTENT_SPACE,
                default=_default_persistent,
                fits=_fits_persistent,
                handles=describes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
                follows="tiled",
            ),
            Variant(
                name="tiled",
                summary="one program a tile of one product, in an order that shares rows and columns in L2",
                launch=_launch_tiled,
                space=_SPACE,
                default=_default,
                fits=_fits,
            ),
        ),
        peers={"torch": eager(_reference), "torch.compile": compiled(_reference)},
        bytes=_bytes,
        flops=lambda c: {"a @ b": 2 * c["b"] * c["m"] * c["n"] * c["k"]},
        reduction=lambda c: c["k"],
    ),
)


def case_of(a, b, tf32):
    dtype = DECLARATION.dtype_of(a, tf32=precision_of_product(a, tf32) == "tf32")
    layout = "".join("T" if _by_columns(matrices) else "N" for matrices in (a, b))
    sizes = {"b": a.shape[0], "m": a.shape[1], "n": b.shape[2], "k": a.shape[2]}
    return case(dtype, **sizes, **({} if layout == "NN" else {"layout": layout}))


def _setup_context(ctx, inputs, output):
    a, b, _ = inputs
    ctx.save_for_backward(a, b)


def _backward(ctx, dc):
    a, b = ctx.saved_tensors
    tf32 = wants_tf32(a)
    da = _products(dc, b.transpose(1, 2), tf32) if ctx.needs_input_grad[0] else None
    db = _products(a.transpose(1, 2), dc, tf32) if ctx.needs_input_grad[1] else None
    return da, db, None


_products = Differentiable(
    Operator(
        DECLARATION,
        "forward",
        "(Tensor a, Tensor b, bool tf32) -> Tensor",
        name="bmm",
        case_of=case_of,
        fake=lambda a, b, tf32: a.new_empty(a.shape[0], a.shape[1], b.shape[2]),
    ),
    setup_context=_setup_context,
    backward=_backward,
)


@DECLARATION.public
def bmm(input: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """``torch.bmm``: [b, m, k] times [b, k, n] is [b, m, n], in any strides, an expanded batch included.

    Both are fp32, fp16 or bf16, of one dtype and device.  Accumulates in fp32; fp32 operands are multiplied as
    ``torch.set_float32_matmul_precision`` says, IEEE by default.  A product over no elements is zero.

    Raises TypeError for other dtypes; ValueError for tensors not of three dimensions, shapes that do not agree, two
    devices, sparse tensors, and sizes or tiles beyond 32 bits.
    """
    if autocasting():
        input, mat2 = autocast("bmm", input, mat2)
    DECLARATION.dtype_of(input, mat2)
    shape, other = input.shape, mat2.shape
    if len(shape) != 3 or len(other) != 3 or shape[0] != other[0] or shape[2] != other[1]:
        raise ValueError(f"bmm takes [b, m, k] and [b, k, n]: {tuple(shape)} and {tuple(other)}")
    if input.device != mat2.device or input.layout != torch.strided or mat2.layout != torch.strided:
        raise ValueError(
            f"bmm takes dense tensors of one device: {input.layout} on {input.device}, {mat2.layout} on {mat2.device}"
        )
    if max(*shape[1:], other[2]) > LARGEST or shape[0] * (shape[1] // 16 + 1) * (other[2] // 16 + 1) > LARGEST:
        raise ValueError(f"bmm takes sizes, and tiles of 16 x 16, up to {LARGEST}: {tuple(shape)}, {tuple(other)}")
    return _products(input, mat2, wants_tf32(input))
