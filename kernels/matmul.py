"""Matrix multiplication: C[m, n] = sum over k of A[m, k] B[k, n], accumulated in fp32.

Reads A (M K elements) and B (K N), writes C (M N); 2 M N K floating-point operations.  Squares from about 1024 on are
bound by the tensor cores; a product with few rows reads B once and is bound by memory.  A tile of BLOCK_M x BLOCK_N
elements of C reads (BLOCK_M + BLOCK_N) K elements from L2, so tiles must be large to keep L2 from becoming the bound,
and small enough to give every SM some.

Where ``tl.dot`` has no tensor cores to use (fp32 in IEEE precision on every GPU, and all dtypes on compute capability
7.5 since Triton 3.4) it becomes FMA instructions on the ordinary cores: other tiles, other speeds.
"""

import functools
import math

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
    choose,
    compiled,
    cuda,
    eager,
    element_size,
    torch_dtype,
)
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def _multiply_tile(
    a_ptr, b_ptr, tile_m, tile_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The fp32 accumulator of the tile (tile_m, tile_n) of C: BLOCK_M x BLOCK_N, from all of K."""
    # Rows past M and columns past N wrap around to valid ones: the loop needs no mask for them, and they are not
    # stored.  A remainder of a multiple of 16 keeps 16 neighbours adjacent, which is all that a 16-byte load needs;
    # no hint is given, because for other sizes it would be untrue.
    offs_m = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    offs_n = ((tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k.to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k.to(tl.int64)[:, None] * stride_bk + offs_n[None, :] * stride_bn
    # A stride of 16 M elements times BLOCK_K = 128 passes 2^31.
    block_k = tl.full((), BLOCK_K, tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:  # 0 past K: adds nothing to the sum
            a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += block_k * stride_ak
        b_ptrs += block_k * stride_bk
    return acc


@triton.jit
def _store_tile(c_ptr, acc, tile_m, tile_n, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Rounds the accumulator to C's dtype and writes the part inside C, which is contiguous."""
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


@triton.jit
def _naive_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of C; programs follow one another along the rows of tiles."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile_m = tl.program_id(0) // tiles_n
    tile_n = tl.program_id(0) % tiles_n
    acc = _multiply_tile(
        a_ptr, b_ptr, tile_m, tile_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, PRECISION,
    )  # fmt: skip
    _store_tile(c_ptr, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)


@triton.jit
def _grouped(position, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """The tile at ``position`` of an order that goes down GROUP_M rows of tiles before it takes the next column.

    The programs that run at one time then cover a block of tiles that is nearly square: of all shapes of that many
    tiles it reads the fewest rows of A and columns of B, and those stay in L2.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_of_group = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = (position // tiles_of_group) * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)
    within = position % tiles_of_group
    return first_m + within % rows, within // rows


@triton.jit
def _tiled_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of C; programs that run together own neighbouring tiles (see ``_grouped``)."""
    tile_m, tile_n = _grouped(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    acc = _multiply_tile(
        a_ptr, b_ptr, tile_m, tile_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, PRECISION,
    )  # fmt: skip
    _store_tile(c_ptr, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)


@triton.jit
def _descriptor_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of C, as in ``_tiled_kernel``; the copy engine moves whole blocks by their descriptors.

    No thread computes an address, and what lies outside a matrix is read as 0 and not written.
    """
    tile_m, tile_n = _grouped(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a = a_desc.load([k, m]).T if A_BY_COLUMNS else a_desc.load([m, k])
        b = b_desc.load([n, k]).T if B_BY_COLUMNS else b_desc.load([k, n])
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    c_desc.store([m, n], acc.to(c_desc.dtype))


def _launch(kernel, a, b, *, config):
    """Launch a kernel that reads through pointers: one program a tile, A and B in whatever strides they have."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    a, b = _as_interpreted(a), _as_interpreted(b)
    if c.numel():
        tiles = triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"])
        even_k = k % config["BLOCK_K"] == 0  # no mask in the loop, whatever the architecture's copies make of it
        kernel[(tiles,)](
            a, b, c, m, n, k, *a.stride(), *b.stride(), EVEN_K=even_k, PRECISION=_fp32_precision(), **config
        )  # fmt: skip
    return c


def _launch_descriptor(a, b, *, config):
    """Launch ``_descriptor_kernel``; operands that no descriptor can describe are read through pointers instead."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    a_by_columns, b_by_columns = a.stride(1) != 1, b.stride(1) != 1
    a_rows, b_rows = a.t() if a_by_columns else a, b.t() if b_by_columns else b
    if not all(_describable(matrix) for matrix in (a_rows, b_rows, c)):
        return _launch(_tiled_kernel, a, b, config=config)
    a_rows, b_rows = _as_interpreted(a_rows), _as_interpreted(b_rows)
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    _descriptor_kernel[(triton.cdiv(m, rows) * triton.cdiv(n, columns),)](
        TensorDescriptor.from_tensor(a_rows, [block_k, rows] if a_by_columns else [rows, block_k]),
        TensorDescriptor.from_tensor(b_rows, [columns, block_k] if b_by_columns else [block_k, columns]),
        TensorDescriptor.from_tensor(c, [rows, columns]),
        m, n, k, A_BY_COLUMNS=a_by_columns, B_BY_COLUMNS=b_by_columns, PRECISION=_fp32_precision(), **config,
    )  # fmt: skip
    return c


def _as_interpreted(matrix):
    """On the CPU bf16 as fp32: the kernel multiplies the same values and rounds C to bf16 all the same.

    The interpreter's ``tl.dot`` multiplies the bit patterns of bf16 (triton#11584, closed as unsupported; so in 3.7.1).
    """
    return matrix.float() if matrix.dtype == torch.bfloat16 and matrix.device.type == "cpu" else matrix


def _describable(matrix):
    """Whether the copy engine can read this matrix: not empty, rows contiguous, and all of them aligned to 16 bytes."""
    row_bytes = matrix.stride(0) * matrix.element_size()
    aligned = row_bytes > 0 and row_bytes % 16 == 0 and matrix.data_ptr() % 16 == 0
    return aligned and matrix.numel() > 0 and matrix.stride(1) == 1


def _fp32_precision():
    """How fp32 operands are multiplied, as torch is told to: "ieee", or "tf32" where the caller has allowed it.

    This attribute follows ``torch.set_float32_matmul_precision`` and ``allow_tf32`` too, while their own getters raise
    once it has been set itself (torch 2.13).
    """
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


# An operator of its own, so that torch.compile takes it whole: traced into, the choice of a config reads files.
@torch.library.custom_op("kernel_atlas::matmul", mutates_args=())
def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    variant, config = choose(DECLARATION, "forward", _case_of(a, b), a.device)
    with torch.cuda.device_of(a):
        return variant.launch(a, b, config=config)


@_product.register_fake
def _(a, b):
    return a.new_empty(a.shape[0], b.shape[1])


def _keep_operands(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _gradients(ctx, dc):
    # Two products of the same kind: differentiable in their turn, and transposed by strides alone.
    a, b = ctx.saved_tensors
    da = _product(dc, b.t()) if ctx.needs_input_grad[0] else None
    db = _product(a.t(), dc) if ctx.needs_input_grad[1] else None
    return da, db


_product.register_autograd(_gradients, setup_context=_keep_operands)


def _case_of(a, b):
    dtype = "tf32" if a.dtype == torch.float32 and _fp32_precision() == "tf32" else _NAMES[a.dtype]
    return case(dtype, m=a.shape[0], n=b.shape[1], k=a.shape[1])


def matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``torch.matmul`` for an ``other`` of one or two dimensions; ``input`` may have any number from one on.

    Both are fp32, fp16 or bf16, of one dtype and device, in any strides: transposed operands are not copied, leading
    dimensions of ``input`` are merged (copied only where their strides cannot be).  Accumulates in fp32; fp32 operands
    are multiplied as ``torch.set_float32_matmul_precision`` says, IEEE by default.  A product over no elements is zero.

    Raises NotImplementedError for a batched ``other``, TypeError for other dtypes, ValueError for shapes that do not
    agree, two devices, sparse tensors, and sizes of 2^31 - 1024 or more.
    """
    if input.dtype != other.dtype or input.dtype not in _NAMES:
        raise TypeError(
            f"matmul takes two tensors of one dtype out of {', '.join(_DTYPES)}: {input.dtype}, {other.dtype}"
        )
    if not input.dim() or not other.dim():
        raise ValueError("matmul takes tensors of at least one dimension: a 0-dimensional one is multiplied with *")
    if other.dim() > 2:
        raise NotImplementedError(
            f"matmul takes an `other` of one or two dimensions, not a batch of matrices {tuple(other.shape)}: "
            "use torch.matmul"
        )
    k = input.shape[-1]
    if k != other.shape[0]:
        raise ValueError(
            f"matmul takes an `other` whose first dimension is the last of `input`: "
            f"{tuple(input.shape)} times {tuple(other.shape)}"
        )
    if input.device != other.device or {input.layout, other.layout} != {torch.strided}:
        raise ValueError(
            f"matmul takes dense tensors of one device: {input.layout} on {input.device}, "
            f"{other.layout} on {other.device}"
        )
    rows = math.prod(input.shape[:-1])
    if max(rows, k, *other.shape) > _LARGEST:
        raise ValueError(f"matmul takes sizes up to {_LARGEST}: {tuple(input.shape)} times {tuple(other.shape)}")
    b = other if other.dim() == 2 else other[:, None]
    # Raw addresses know nothing of a lazy negation (the imaginary part of a conjugate has one): carry it out.
    product = _product(input.resolve_neg().reshape(rows, k), b.resolve_neg())
    return product.reshape(input.shape[:-1] + other.shape[1:])


_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}
_LARGEST = 2**31 - 1025
"""Row, column and k offsets are 32-bit in the kernels and may pass the size by one tile."""


def _reference(a, b):
    return a @ b


def _inputs(problem: Case, device, generator):
    def draw(*shape):
        return torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)

    return {"a": draw(problem["m"], problem["k"]), "b": draw(problem["k"], problem["n"])}


def _bytes(problem: Case) -> dict[str, float]:
    m, n, k = problem["m"], problem["n"], problem["k"]
    size = element_size(problem.dtype)
    return {"a": m * k * size, "b": k * n * size, "c": m * n * size}


def _cases(gpu: GPU) -> list[Case]:
    largest = gpu.memory_bytes // 8
    squares = {"bf16": (512, 1024, 2048, 4096, 8192), "fp16": (1024, 4096, 8192), "fp32": (1024, 4096)}
    cases = [case(dtype, m=n, n=n, k=n) for dtype, sizes in squares.items() for n in sizes]
    cases += [
        case("bf16", "feed-forward, up, of a model 4096 wide", m=4096, n=14336, k=4096),
        case("bf16", "feed-forward, down: the long sum", m=4096, n=4096, k=14336),
        case("bf16", "16 tokens at once: reads the weights and little else", m=16, n=8192, k=8192),
    ]
    return [c for c in cases if sum(_bytes(c).values()) <= largest]


_EDGE_CASES = tuple(
    case(dtype, reason, m=m, n=n, k=k)
    for dtype in _DTYPES
    for (m, n, k), reason in (
        ((1, 1, 1), "one element of each"),
        ((128, 128, 64), "whole tiles only"),
        ((70, 64, 64), "a tail in m"),
        ((64, 70, 64), "a tail in n"),
        ((64, 64, 70), "a tail in k: the masked loop"),
        ((33, 65, 129), "tails everywhere, strides that allow no wide loads"),
        ((48, 40, 7), "k smaller than any block of it"),
        ((1, 96, 128), "a single row"),
        ((128, 1, 96), "a single column"),
        ((16, 256, 64), "more columns of tiles than rows: the last group is not full"),
        ((320, 32, 16), "more rows of tiles than columns"),
    )
)

_HUGE_CASES = (
    case("bf16", "offsets into A beyond 2^31", m=2**18 + 1, n=16, k=8192),
    case("bf16", "offsets into C beyond 2^31", m=2**18 + 1, n=8192, k=16),
)


def _uses_tensor_cores(problem: Case, gpu: GPU) -> bool:
    """Whether ``tl.dot`` of this dtype reaches tensor cores on this GPU; else it becomes FMA."""
    return Capability.TENSOR_CORES in gpu.capabilities and problem.dtype != "fp32"


def _buffers(config: Config, problem: Case, gpu: GPU) -> int:
    """How many blocks of A and of B lie in shared memory at a time, as Triton 3.6 and 3.7 allocate them."""
    if gpu.backend == "cuda" and int(gpu.arch) < 80:
        return 1  # no asynchronous copies: the loop is not pipelined
    if Capability.WGMMA in gpu.capabilities and _uses_tensor_cores(problem, gpu) and config["BLOCK_M"] >= 64:
        return config["num_stages"]  # wgmma reads its operands where they lie
    return max(1, config["num_stages"] - 1)  # the stage in work is in registers


def _narrow(problem: Case) -> bool:
    """Whether operands may have to be read element by element, through registers, and the loop is not pipelined.

    Triton knows of a size or stride only whether 16 divides it.  Whether it matters depends on the layout, which a case
    does not say: row-major operands, the worse, are assumed.
    """
    return bool(problem["n"] % 16 or problem["k"] % 16)


def _stage_bytes(config: Config, problem: Case) -> int:
    return (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] * element_size(problem.dtype)


def _tiles(config: Config, problem: Case) -> int:
    return triton.cdiv(problem["m"], config["BLOCK_M"]) * triton.cdiv(problem["n"], config["BLOCK_N"])


def _shape(config: Config, problem: Case, gpu: GPU) -> str:
    """``thin``: the tile is as tall or as wide as C; ``full``: C has two of the largest tiles for every SM; ``few``."""
    m, n = problem["m"], problem["n"]
    if config["BLOCK_M"] >= max(16, m) or config["BLOCK_N"] >= max(32, n):
        return "thin"
    return "full" if m * n >= 2 * gpu.sms * 128 * 256 else "few"


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``tiled`` cannot launch, or cannot be the best for this problem; ``""`` for one worth a trial."""
    shared = _buffers(config, problem, gpu) * _stage_bytes(config, problem)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    kind = _fits_tensor_cores if _uses_tensor_cores(problem, gpu) else _fits_fma
    return _fits_problem(config, problem, gpu) or kind(config, problem, gpu)


def _fits_problem(config: Config, problem: Case, gpu: GPU) -> str:
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    if rows >= max(32, 2 * problem["m"]) or columns >= max(64, 2 * problem["n"]):
        return "a tile twice as large as C"
    shape = _shape(config, problem, gpu)
    if shape != "thin" and (rows < 32 or max(rows, columns) > 2 * min(rows, columns)):
        return "of two tiles of one area, the one nearer to square reads less"
    tiles = _tiles(config, problem)
    if rows * columns > 2048 and 4 * tiles < gpu.sms:
        return f"{tiles} tiles leave most of {gpu.sms} SMs idle"
    tensor_cores = _uses_tensor_cores(problem, gpu)
    if shape == "few" and tiles > 4 * gpu.sms and (tensor_cores or rows * columns < 64 * 64):
        return f"{tiles} tiles, where fewer and larger ones reach every SM"
    # Programs that run together should cover a square of C.  The order does not matter where all run together, where C
    # is thin, and where FMA is the bound.
    ordered = shape == "full" and tensor_cores
    if not (1024 <= config["GROUP_M"] * rows <= 2048 if ordered else config["GROUP_M"] == 8):
        return "a group far from square, or an order that does not matter"
    return ""


def _fits_tensor_cores(config: Config, problem: Case, gpu: GPU) -> str:
    rows, columns, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    accumulators = rows * columns // (32 * warps)
    row_bytes = config["BLOCK_K"] * element_size(problem.dtype)
    if _narrow(problem):  # a block that waits in registers: with more of either, sm_80 and sm_90 spill (Triton 3.7.1)
        if accumulators > 64 or row_bytes != 64 or config["num_stages"] > 2:
            return "elements that are read one by one take registers, and no stages"
        return ""
    if not (64 if warps > 4 else 4) <= accumulators <= 128:
        # 128 x 256 in 4 warps spills 800 bytes a thread on sm_90 (Triton 3.7.1)
        return f"{accumulators} accumulators a thread in {warps} warps: registers spill, or too little work a warp"
    if not 128 <= row_bytes <= 256:
        return "shared memory is swizzled in rows of 128 bytes: less wastes it, more than two costs a stage"
    shape = _shape(config, problem, gpu)
    if shape == "full" and rows * columns // (rows + columns) < 64:  # multiplications with each element read from L2
        return "reads more from L2 than a larger tile, of which there are enough"
    # Latency times bandwidth asks for some 32 KiB under way in every SM.  A full GPU has one or two programs on each;
    # where tiles are small or thin several share an SM and reach it together.
    under_way = (config["num_stages"] - 1) * _stage_bytes(config, problem) // 1024
    least, most = {"full": (64, 144), "few": (32, 96), "thin": (16, 96)}[shape]
    if not least <= under_way <= most:
        return f"{under_way} KiB under way: too few to hide latency, or more than that needs"
    return ""


def _fits_fma(config: Config, problem: Case, gpu: GPU) -> str:
    rows, columns, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    accumulators = rows * columns // (32 * warps)
    # 16-bit operands are held a second time, as fp32: 64 x 128 in 4 warps spills 570 bytes on sm_75 (Triton 3.7.1).
    most = 64 if problem.dtype == "fp32" else 32
    if not (32 if warps > 4 else 4) <= accumulators <= most or max(rows, columns) > 128:
        return f"{accumulators} accumulators a thread in {warps} warps: registers spill, or too little work a warp"
    if config["BLOCK_K"] > (32 if problem.dtype == "fp32" else 16):
        return "all of a block of A and B passes through registers, in fp32: a longer one spills"
    if config["num_stages"] > (2 if _buffers(config, problem, gpu) == 1 else 3):
        return "the loop is bound by FMA, not by latency"
    if _shape(config, problem, gpu) == "full" and accumulators < 32:
        return "too few multiplications for each operand read from shared memory"
    return ""


_SPACE = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64, 128),
    "GROUP_M": (4, 8, 16),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
}

# (BLOCK_M, BLOCK_N, num_warps): the share of its best rate that a GPU reaches with such tiles on every SM.  Estimates,
# from how often an operand is used again; the tuner replaces them.
_TENSOR_CORE_TILES = {
    (128, 256, 8): 1.0,
    (128, 128, 4): 0.9,
    (128, 128, 8): 0.85,
    (64, 128, 4): 0.7,
    (64, 64, 4): 0.5,
    (32, 64, 4): 0.3,
    (16, 64, 4): 0.2,
    (16, 32, 4): 0.1,
}
_FMA_TILES = {(128, 128, 8): 1.0, (128, 64, 8): 0.9, (64, 64, 4): 0.8, (32, 64, 4): 0.6, (16, 32, 4): 0.3}


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    """Of a few tiles worth a trial, the one that ends first if all SMs take tiles in step.

    Compute capability 7.5 takes at most 64 x 64: the FMA form of fp16 holds both operands in registers as fp32.
    """
    tensor_cores = _uses_tensor_cores(problem, gpu)
    shares = _TENSOR_CORE_TILES if tensor_cores else _FMA_TILES
    if not tensor_cores and gpu.backend == "cuda" and int(gpu.arch) < 80:
        shares = {tile: share for tile, share in shares.items() if tile[0] * tile[1] <= 64 * 64}

    def config(rows, columns, warps):
        block_k, stages = 16, 2
        if tensor_cores and _narrow(problem):
            block_k = 64 // element_size(problem.dtype)
        elif tensor_cores:
            # Rows of 128 bytes in shared memory fill the widest swizzle; a thin tile wants more of K under way.
            block_k = (256 if rows == 16 else 128) // element_size(problem.dtype)
            stages = 3 if rows == 128 else 4
        return dict(zip(_SPACE, (rows, columns, block_k, 8, warps, stages), strict=True))

    def seconds(tile):  # in units of one multiplication-addition on every SM
        waves = triton.cdiv(_tiles(config(*tile), problem), gpu.sms)
        return waves * tile[0] * tile[1] / shares[tile]

    fitting = [tile for tile in shares if not _fits(config(*tile), problem, gpu)]
    return config(*min(fitting or list(shares)[-1:], key=seconds))


def _describes(problem: Case, gpu: GPU) -> str:
    """Why ``descriptor`` does not take a case."""
    if problem.dtype == "fp32":
        return "fp32 in IEEE precision is bound by FMA, which no copy engine speeds up"
    if any(problem[size] * element_size(problem.dtype) % 16 for size in "nk"):
        return "rows of A, B or C are not aligned to 16 bytes"
    return ""


def _naive_config(problem: Case, gpu: GPU) -> dict[str, int]:
    return {name: values[0] for name, values in _NAIVE_SPACE.items()}


# One fixed tile, small enough for every GPU, and no pipelining: the first rung of the ladder.
_NAIVE_SPACE = {"BLOCK_M": (64,), "BLOCK_N": (64,), "BLOCK_K": (16,), "num_warps": (4,), "num_stages": (1,)}

DECLARATION = Declaration(
    name="matmul",
    family="matmul",
    summary="C = A B",
    function=matmul,
    call=lambda function, inputs: function(inputs["a"], inputs["b"]),
    dtypes=_DTYPES,
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
                name="tiled",
                summary="large pipelined tiles, ordered in groups that share rows and columns in L2",
                launch=functools.partial(_launch, _tiled_kernel),
                space=_SPACE,
                default=_default,
                fits=_fits,
            ),
            Variant(
                name="descriptor",
                summary="the tiles of `tiled`, moved by the copy engine (TMA) through descriptors",
                launch=_launch_descriptor,
                space=_SPACE,
                default=_default,
                fits=_fits,
                handles=_describes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
            ),
            Variant(
                name="naive",
                summary="one small tile a program, in row order, loads not overlapped with products",
                launch=functools.partial(_launch, _naive_kernel),
                space=_NAIVE_SPACE,
                default=_naive_config,
            ),
        ),
        peers={
            "torch": eager(_reference),
            "torch.compile": compiled(_reference),
            "cuda.naive": cuda("naive"),
            "cuda.tiled": cuda("tiled"),
        },
        bytes=_bytes,
        flops=lambda c: {"a @ b": 2 * c["m"] * c["n"] * c["k"]},
        reduction=lambda c: c["k"],
    ),
)
