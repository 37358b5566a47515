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
    gpu_of,
    max_autotuned,
    torch_dtype,
)
from atlas.declaration.products import as_interpreted, describable, fp32_precision, uses_tensor_cores
from atlas.operators import Differentiable, Operator, constant_result, launch
from atlas.operators.rounding import rounding_to_tf32
from triton.language.extra.cuda import gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels._matmul_swizzled import swizzled


@triton.jit
def _multiply_tile(
    a_ptr, b_ptr, tile_m, tile_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
    A_POLICY: tl.constexpr, B_POLICY: tl.constexpr,
):  # fmt: skip
    """The fp32 accumulator of the tile (tile_m, tile_n) of C: BLOCK_M x BLOCK_N, from all of K.

    A_POLICY and B_POLICY are eviction policies of what is read, for loads into registers: others cannot have one.
    """
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
            a = tl.load(a_ptrs, eviction_policy=A_POLICY)
            b = tl.load(b_ptrs, eviction_policy=B_POLICY)
        else:  # 0 past K: adds nothing to the sum
            a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0, eviction_policy=A_POLICY)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0, eviction_policy=B_POLICY)
        if PRECISION == "tf32":
            a, b = _to_tf32(a), _to_tf32(b)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += block_k * stride_ak
        b_ptrs += block_k * stride_bk
    return acc


@triton.jit
def _to_tf32(x):
    """fp32 rounded to the nearest number of tf32; tensor cores by themselves ignore the bits that are too many."""
    return tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], tl.float32, is_pure=True, pack=1)


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
        BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, PRECISION, "", "",
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
    # A loop that may not run gives the accumulator two origins, and ptxas (of Triton 3.6; operands along K) then has
    # every wgmma wait for the one before: 0.72 of cuBLAS (4096 each way, H200).
    tl.assume(K > 0)
    tile_m, tile_n = _grouped(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    acc = _multiply_tile(
        a_ptr, b_ptr, tile_m, tile_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, PRECISION, "", "",
    )  # fmt: skip
    _store_tile(c_ptr, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)


@triton.jit
def _described_blocks(a_desc, b_desc, m, n, k, A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr):
    """The blocks of A from (m, k) and of B from (k, n); a matrix stored by columns is described as its transpose."""
    a = a_desc.load([k, m]).T if A_BY_COLUMNS else a_desc.load([m, k])
    b = b_desc.load([n, k]).T if B_BY_COLUMNS else b_desc.load([k, n])
    return a, b


@triton.jit
def _store_described(c_desc, acc, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr):
    """Rounds the accumulator and writes it through ``c_desc`` in PARTS (1 or 2) parts of BLOCK_N / PARTS columns.

    A part waits in shared memory for the copy engine; halves leave room there for one more stage of A and B.
    """
    if PARTS == 1:
        c_desc.store([m, n], acc.to(c_desc.dtype))
    else:
        left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
        c_desc.store([m, n], left.to(c_desc.dtype))
        c_desc.store([m, n + BLOCK_N // 2], right.to(c_desc.dtype))


@triton.jit
def _descriptor_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of C, as in ``_tiled_kernel``; the copy engine moves whole blocks by their descriptors.

    No thread computes an address, and what lies outside a matrix is read as 0 and not written.
    """
    tl.assume(K > 0)  # see ``_tiled_kernel``
    tile_m, tile_n = _grouped(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a, b = _described_blocks(a_desc, b_desc, m, n, k, A_BY_COLUMNS, B_BY_COLUMNS)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    _store_described(c_desc, acc, m, n, BLOCK_M, BLOCK_N, 1)


@triton.jit
def _persistent_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, PARTS: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program an SM takes every num_programs-th tile, in the order of ``_grouped``.

    Flattened, the loops over tiles and over K are one pipeline: the next tile's first blocks are under way while this
    one's accumulator is rounded and written.
    """
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for position in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile_m, tile_n = _grouped(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            a, b = _described_blocks(a_desc, b_desc, m, n, k, A_BY_COLUMNS, B_BY_COLUMNS)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        _store_described(c_desc, acc, m, n, BLOCK_M, BLOCK_N, PARTS)


@triton.jit
def _specialized_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_a, stride_b,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As ``_persistent_kernel``, but warps have roles: one group copies, others multiply and write.

    ``stride_a`` and ``stride_b`` are of the dimension that is not contiguous.  The descriptors are made here, since
    Triton 3.6 and 3.7 do not give warps roles in kernels that get them from the host.  Nor does Triton 3.6 compile an
    epilogue in parts here, and one that stores through pointers it compiles to wrong results.
    """
    if A_BY_COLUMNS:
        a_desc = tl.make_tensor_descriptor(a_ptr, [K, M], [stride_a, 1], [BLOCK_K, BLOCK_M])
    else:
        a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [stride_a, 1], [BLOCK_M, BLOCK_K])
    if B_BY_COLUMNS:
        b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [stride_b, 1], [BLOCK_N, BLOCK_K])
    else:
        b_desc = tl.make_tensor_descriptor(b_ptr, [K, N], [stride_b, 1], [BLOCK_K, BLOCK_N])
    c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for position in tl.range(tl.program_id(0), tiles, tl.num_programs(0), warp_specialize=True):
        tile_m, tile_n = _grouped(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            a, b = _described_blocks(a_desc, b_desc, m, n, k, A_BY_COLUMNS, B_BY_COLUMNS)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        _store_described(c_desc, acc, m, n, BLOCK_M, BLOCK_N, 1)


@triton.jit
def _part(part, K, K_PART):
    """Begin and end of the elements of K that ``part`` sums; the last parts may have fewer than K_PART, or none."""
    start = tl.minimum(part.to(tl.int64) * K_PART, K)
    return start.to(tl.int32), tl.minimum(start + K_PART, K).to(tl.int32)


@triton.jit
def _split_kernel(
    a_ptr, b_ptr, parts_ptr, M, N, K, K_PART, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr, PRECISION: tl.constexpr, A_POLICY: tl.constexpr, B_POLICY: tl.constexpr,
):  # fmt: skip
    """Program (tile, part) sums one tile over K_PART elements of K, and writes it to parts[part, M, N].

    Where C is thin its tiles are few; parts of K make more programs, and each element of the larger operand is still
    read once, which is what bounds such a product.
    """
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile_m, tile_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n
    start, end = _part(tl.program_id(1), K, K_PART)
    acc = _multiply_tile(
        a_ptr + start.to(tl.int64) * stride_ak, b_ptr + start.to(tl.int64) * stride_bk, tile_m, tile_n, M, N,
        end - start, stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, PRECISION,
        A_POLICY, B_POLICY,
    )  # fmt: skip
    _store_tile(parts_ptr + tl.program_id(1).to(tl.int64) * M * N, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)


@triton.jit
def _sum_kernel(parts_ptr, c_ptr, size, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """c = the sum over parts[PARTS, size], in their order: each program BLOCK elements.

    EARLY: it is launched while the kernel that writes the parts still runs, and waits for its end here.
    """
    if EARLY:
        gdc_wait()
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for _ in tl.static_range(PARTS):
        acc += tl.load(parts_ptr + offs, mask=offs < size, other=0.0)
        parts_ptr += size
    tl.store(c_ptr + offs, acc.to(c_ptr.dtype.element_ty), mask=offs < size)


@triton.jit
def _vector_kernel(
    v_ptr, w_ptr, out_ptr, N, K, K_PART, stride_v, stride_wk, stride_wn, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """out[part, n] = sum over a part of K of v[k] W[k, n]: program (tile, part) owns BLOCK_N columns.

    Each thread sums its own elements of every block; only the last step adds up across threads.  W is read once, so it
    need not push anything else out of L2.
    """
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    start, end = _part(tl.program_id(1), K, K_PART)
    offs_k = tl.arange(0, BLOCK_K)
    columns = w_ptr + offs_n.to(tl.int64)[None, :] * stride_wn
    acc = tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
    for k in range(start, end, BLOCK_K):
        rows = (k + offs_k).to(tl.int64)
        inside = (rows[:, None] < end) & (offs_n[None, :] < N)
        v = tl.load(v_ptr + rows * stride_v, mask=rows < end, other=0.0)
        w = tl.load(columns + rows[:, None] * stride_wk, mask=inside, other=0.0, eviction_policy="evict_first")
        acc += v.to(tl.float32)[:, None] * w.to(tl.float32)
    out = tl.sum(acc, axis=0)
    out_ptrs = out_ptr + tl.program_id(1).to(tl.int64) * N + offs_n
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=offs_n < N)


@triton.jit
def _transpose_kernel(x_ptr, out_ptr, M, N, stride_xb, stride_xm, BLOCK: tl.constexpr):
    """out[b, n, m] = x[b, m, n], both by rows: program (block, b) owns a block of BLOCK x BLOCK elements."""
    batch = tl.program_id(1).to(tl.int64)
    x_ptr += batch * stride_xb
    out_ptr += batch * M * N
    blocks_n = tl.cdiv(N, BLOCK)
    offs_m = tl.program_id(0) // blocks_n * BLOCK + tl.arange(0, BLOCK)
    offs_n = tl.program_id(0) % blocks_n * BLOCK + tl.arange(0, BLOCK)
    x_ptrs = x_ptr + offs_m.to(tl.int64)[:, None] * stride_xm + offs_n[None, :]
    x = tl.load(x_ptrs, mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))
    out_ptrs = out_ptr + offs_n.to(tl.int64)[:, None] * M + offs_m[None, :]
    tl.store(out_ptrs, tl.trans(x), mask=(offs_n[:, None] < N) & (offs_m[None, :] < M))


def _empty(a, b):
    return torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)


def _precision(a, tf32):
    tf32 = tf32 and a.dtype == torch.float32 and Capability.TF32 in gpu_of(a.device).capabilities
    return "tf32" if tf32 else "ieee"


def _tiles_of(c, config):
    return triton.cdiv(c.shape[0], config["BLOCK_M"]) * triton.cdiv(c.shape[1], config["BLOCK_N"])


def _launch(kernel, a, b, tf32=False, *, config):
    """Launch a kernel that reads through pointers: one program a tile, A and B in whatever strides they have."""
    (m, k), n = a.shape, b.shape[1]
    c = _empty(a, b)
    a, b = as_interpreted(a), as_interpreted(b)
    if not k:
        return c.zero_()
    if c.numel():
        even_k = k % config["BLOCK_K"] == 0  # no mask in the loop, whatever the architecture's copies make of it
        launch(
            kernel, (_tiles_of(c, config),), a, b, c, m, n, k, *a.stride(), *b.stride(),
            EVEN_K=even_k, PRECISION=_precision(a, tf32), **config,
        )  # fmt: skip
    return c


def _by_columns(matrix):
    return matrix.stride(1) != 1


def _rows(matrix):
    """The matrix, or where it is stored by columns its transpose."""
    return as_interpreted(matrix.t() if _by_columns(matrix) else matrix)


def _describe(matrix, block, precision="ieee"):
    """The descriptor of blocks of ``block`` elements of ``matrix``, transposed where it is stored by columns."""
    descriptor = TensorDescriptor.from_tensor(_rows(matrix), block[::-1] if _by_columns(matrix) else block)
    return rounding_to_tf32(descriptor) if precision == "tf32" else descriptor


def _all_describable(*matrices):
    return all(describable(matrix.t() if _by_columns(matrix) else matrix) for matrix in matrices)


def _pointers(config):
    """The part of a config that ``_tiled_kernel`` has."""
    return {name: config[name] for name in _SPACE}


def _launch_descriptor(a, b, tf32=False, *, config):
    """Launch ``_descriptor_kernel``; operands that no descriptor can describe are read through pointers instead."""
    return _launch_described(_descriptor_kernel, None, a, b, tf32, config)


def _launch_persistent(a, b, tf32=False, *, config):
    """Launch ``_persistent_kernel``; operands that no descriptor can describe are read through pointers instead."""
    return _launch_described(_persistent_kernel, gpu_of(a.device).sms, a, b, tf32, config)


def _launch_described(kernel, most, a, b, tf32, config):
    """Launch ``kernel`` with descriptors, on one program a tile and at most ``most``."""
    c = _empty(a, b)
    if not _all_describable(a, b, c):
        return _launch(_tiled_kernel, a, b, tf32, config=_pointers(config))
    precision = _precision(a, tf32)
    if precision == "tf32":
        a, b = _along_k(a.t()).t(), _along_k(b)
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    programs = _tiles_of(c, config) if most is None else min(most, _tiles_of(c, config))
    launch(
        kernel, (programs,), _describe(a, [rows, block_k], precision), _describe(b, [block_k, columns], precision),
        TensorDescriptor.from_tensor(c, [rows, columns // config.get("PARTS", 1)]), *c.shape, a.shape[1],
        A_BY_COLUMNS=_by_columns(a), B_BY_COLUMNS=_by_columns(b), PRECISION=precision, **config,
    )  # fmt: skip
    return c


def _along_k(b):
    """B [k, n] stored by columns: as it is, or a transposed copy.

    Tensor cores take 16-bit operands in either order, those of 32 bits only where K is contiguous.  Turned round block
    by block, through registers, a product took 1630 us that a copy lets take 350 (4096 each way, H200, Triton 3.6).
    """
    return b if _by_columns(b) else _turned(b[None])[0]


def _turned(x):
    """A copy of x [b, m, n], matrices by rows, that lies by columns."""
    batch, m, n = x.shape
    out = torch.empty((batch, n, m), dtype=x.dtype, device=x.device)
    blocks = triton.cdiv(m, 64) * triton.cdiv(n, 64)
    launch(_transpose_kernel, (blocks, batch), x, out, m, n, x.stride(0), x.stride(1), BLOCK=64, num_warps=8)
    return out.transpose(1, 2)


def _launch_specialized(a, b, tf32=False, *, config):
    """Launch ``_specialized_kernel``; operands that no descriptor can describe are read through pointers instead."""
    c = _empty(a, b)
    if not _all_describable(a, b, c):
        return _launch(_tiled_kernel, a, b, tf32, config=_pointers(config) | {"num_warps": 8})
    programs = min(gpu_of(a.device).sms, _tiles_of(c, config))
    a_rows, b_rows = _rows(a), _rows(b)
    launch(
        _specialized_kernel, (programs,), a_rows, b_rows, c, *c.shape, a.shape[1], a_rows.stride(0), b_rows.stride(0),
        A_BY_COLUMNS=_by_columns(a), B_BY_COLUMNS=_by_columns(b), PRECISION=_precision(a, tf32), **config,
    )  # fmt: skip
    return c


def _launch_swizzled(a, b, tf32=False, *, config):
    """Launch the kernel in Gluon for fp32; operands that no descriptor can describe are read through pointers."""
    import kernels.hopper.matmul_fp32 as hopper

    if a.dtype != torch.float32 or not _all_describable(a, b):
        return _launch(_tiled_kernel, a, b, tf32, config=dict(zip(_SPACE, (64, 64, 32, 8, 4, 3), strict=True)))
    c = _empty(a, b)
    hopper.product(a, b, c, config=config)
    return c


def _launch_split(a, b, tf32=False, *, config):
    """Launch ``_split_kernel``, and ``_sum_kernel`` if there are several parts."""
    (m, k), n = a.shape, b.shape[1]
    c = _empty(a, b)
    if not c.numel():
        return c
    splits, precision = config["SPLITS"], _precision(a, tf32)
    tile = {name: value for name, value in config.items() if name != "SPLITS"}
    parts = c if splits == 1 else torch.empty((splits, m, n), dtype=torch.float32, device=a.device)
    a, b = as_interpreted(a), as_interpreted(b)
    launch(
        _split_kernel, (_tiles_of(c, config), splits), a, b, parts, m, n, k, _part_of_k(k, splits, config["BLOCK_K"]),
        *a.stride(), *b.stride(), EVEN_K=k % config["BLOCK_K"] == 0, PRECISION=precision,
        A_POLICY=_policy(config["BLOCK_N"], n), B_POLICY=_policy(config["BLOCK_M"], m), **tile,
    )  # fmt: skip
    return c if splits == 1 else _sum(parts, c)


def _policy(block, size):
    """What L2 is told of an operand: to drop it first where one tile covers all of the other, and it is read once."""
    return "evict_first" if block >= size else ""


def _part_of_k(k, splits, block_k):
    """Elements of K that one of ``splits`` parts sums: whole blocks, so that only the last has a tail."""
    return triton.cdiv(triton.cdiv(k, block_k), splits) * block_k


def _sum(parts, c):
    gpu = gpu_of(c.device)
    early = gpu.backend == "cuda" and int(gpu.arch) >= 90
    launch(
        _sum_kernel, (triton.cdiv(c.numel(), 512),), parts, c, c.numel(),
        PARTS=parts.shape[0], BLOCK=512, EARLY=early, num_warps=4, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return c


def _launch_vector(a, b, tf32=False, *, config):
    """Launch ``_vector_kernel`` for a row times a matrix; a matrix times a column is one of their transposes."""
    c = _empty(a, b)
    if not c.numel():
        return c
    vector, matrix = (a[0], b) if a.shape[0] == 1 else (b[:, 0], a.t())
    (k, n), splits = matrix.shape, config["SPLITS"]
    parts = c if splits == 1 else torch.empty((splits, n), dtype=torch.float32, device=a.device)
    launch(
        _vector_kernel, (triton.cdiv(n, config["BLOCK_N"]), splits),
        vector, matrix, parts, n, k, _part_of_k(k, splits, config["BLOCK_K"]), *vector.stride(), *matrix.stride(),
        BLOCK_N=config["BLOCK_N"], BLOCK_K=config["BLOCK_K"], num_warps=config["num_warps"],
    )  # fmt: skip
    return c if splits == 1 else _sum(parts, c)


@constant_result  # torch.compile compiles anew when the switch is changed
def _tf32_allowed():
    """Whether fp32 operands may be multiplied as tf32, as torch is told."""
    return fp32_precision() == "tf32"


def _run(a, b, tf32):
    variant, config = choose(DECLARATION, "forward", _case_of(a, b, tf32), a.device)
    return variant.launch(a, b, tf32, config=config)


def _setup_context(ctx, inputs, output):
    *operands, ctx.tf32 = inputs
    ctx.save_for_backward(*operands)


def _backward(ctx, dc):
    # Two products of the same kind: differentiable in their turn, and transposed by strides alone.
    a, b = ctx.saved_tensors
    da = _product(dc, b.t(), ctx.tf32) if ctx.needs_input_grad[0] else None
    db = _product(a.t(), dc, ctx.tf32) if ctx.needs_input_grad[1] else None
    return da, db, None


_product = Differentiable(
    Operator(
        "matmul",
        "(Tensor a, Tensor b, bool tf32) -> Tensor",
        run=_run,
        fake=lambda a, b, tf32: a.new_empty(a.shape[0], b.shape[1]),
    ),
    setup_context=_setup_context,
    backward=_backward,
)


def _case_of(a, b, tf32):
    """The case of a call; operands that lie neither by rows nor by columns count as the latter."""
    dtype = "tf32" if _precision(a, tf32) == "tf32" else _NAMES[a.dtype]
    layout = "".join("T" if _by_columns(matrix) else "N" for matrix in (a, b))
    sizes = {"m": a.shape[0], "n": b.shape[1], "k": a.shape[1]}
    return case(dtype, **sizes, **({} if layout == "NN" else {"layout": layout}))


def matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``torch.matmul`` for an ``other`` of one or two dimensions; ``input`` may have any number from one on.

    Both are fp32, fp16 or bf16, of one dtype and device, in any strides: transposed operands are not copied, leading
    dimensions of ``input`` are merged (copied only where their strides cannot be).  Accumulates in fp32; fp32 operands
    are multiplied as ``torch.set_float32_matmul_precision`` says, IEEE by default.  A product over no elements is zero.

    Raises NotImplementedError for a batched ``other``, TypeError for other dtypes, ValueError for shapes that do not
    agree, two devices, sparse tensors, and sizes of 2^31 - 1024 or more.
    """
    left, right = input.shape, other.shape
    if (
        input.dtype is not other.dtype
        or input.dtype not in _NAMES
        or not left
        or not 1 <= len(right) <= 2
        or left[-1] != right[0]
        or input.device != other.device
        or input.layout is not torch.strided
        or other.layout is not torch.strided
    ):
        _refuse(input, other)
    rows = left[0] if len(left) == 2 else math.prod(left[:-1])
    if max(rows, *right) > _LARGEST:
        raise ValueError(f"matmul takes sizes up to {_LARGEST}: {tuple(left)} times {tuple(right)}")
    # Raw addresses know nothing of a lazy negation (the imaginary part of a conjugate has one): carry it out.
    a, b = input.resolve_neg(), other.resolve_neg()
    tf32 = input.dtype is torch.float32 and _tf32_allowed()
    if len(left) == 2 and len(right) == 2:
        return _product(a, b, tf32)
    product = _product(a.reshape(rows, left[-1]), b if len(right) == 2 else b[:, None], tf32)
    return product.reshape(left[:-1] + right[1:])


def _refuse(input, other):
    """Say what :func:`matmul` does not take in these operands."""
    if input.dtype != other.dtype or input.dtype not in _NAMES:
        raise TypeError(
            f"matmul takes two tensors of one dtype out of {', '.join(_NAMES.values())}: {input.dtype}, {other.dtype}"
        )
    if not input.dim() or not other.dim():
        raise ValueError("matmul takes tensors of at least one dimension: a 0-dimensional one is multiplied with *")
    if other.dim() > 2:
        raise NotImplementedError(
            f"matmul takes an `other` of one or two dimensions, not a batch of matrices {tuple(other.shape)}: "
            "use kernels.bmm"
        )
    if input.shape[-1] != other.shape[0]:
        raise ValueError(
            f"matmul takes an `other` whose first dimension is the last of `input`: "
            f"{tuple(input.shape)} times {tuple(other.shape)}"
        )
    raise ValueError(
        f"matmul takes dense tensors of one device: {input.layout} on {input.device}, {other.layout} on {other.device}"
    )


_DTYPES = ("fp32", "tf32", "fp16", "bf16")
_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_LARGEST = 2**31 - 1025
"""Row, column and k offsets are 32-bit in the kernels and may pass the size by one tile."""


def _reference(a, b, tf32):
    return a @ b


def _layout(problem: Case) -> str:
    """Two letters, of A and B: N for a matrix stored by rows, T for one stored by columns; NN unless said."""
    return dict(problem.sizes).get("layout", "NN")


def _inputs(problem: Case, device, generator):
    def draw(rows, columns, layout):
        shape = (rows, columns) if layout == "N" else (columns, rows)
        matrix = torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)
        return matrix if layout == "N" else matrix.t()

    m, n, k, (of_a, of_b) = problem["m"], problem["n"], problem["k"], _layout(problem)
    return {"a": draw(m, k, of_a), "b": draw(k, n, of_b), "tf32": problem.dtype == "tf32"}


def _bytes(problem: Case) -> dict[str, float]:
    m, n, k = problem["m"], problem["n"], problem["k"]
    size = element_size(problem.dtype)
    return {"a": m * k * size, "b": k * n * size, "c": m * n * size}


def _cases(gpu: GPU) -> list[Case]:
    largest = gpu.memory_bytes // 8
    squares = {"bf16": (512, 1024, 2048, 4096, 8192, 16384), "fp16": (4096,), "tf32": (4096,), "fp32": (4096,)}
    cases = [case(dtype, m=n, n=n, k=n) for dtype, sizes in squares.items() for n in sizes]
    cases += [
        case("bf16", reason, m=4096, n=4096, k=4096, layout=layout)
        for layout, reason in (("NT", "a linear layer"), ("TN", "the gradient of its weight"))
    ]
    cases += [
        case("bf16", "feed-forward, up, of a model 4096 wide", m=4096, n=14336, k=4096),
        case("bf16", "feed-forward, down: the long sum", m=4096, n=4096, k=14336),
    ]
    cases += [case("bf16", "few tokens: reads the weights and little else", m=m, n=8192, k=8192) for m in _SKINNY]
    cases += [
        case("bf16", "one token through a linear layer: rows of the weight are long", m=1, n=8192, k=8192, layout="NT"),
        case("bf16", "the gradient of 512 tokens through 14336 features", m=512, n=4096, k=14336),
        case("bf16", "and that of the weight", m=14336, n=4096, k=512, layout="TN"),
        case("fp32", "a small linear layer", m=1024, n=1024, k=1024, layout="NT"),
        case("fp32", "the gradient of its input", m=1024, n=1024, k=1024),
        case("fp32", "the gradient of its weight", m=1024, n=1024, k=1024, layout="TN"),
    ]
    return [c for c in cases if sum(_bytes(c).values()) <= largest]


_SKINNY = (1, 16, 128)

_MAX_AUTOTUNED = (case("bf16", m=1024, n=1024, k=1024), case("bf16", m=4096, n=4096, k=4096))
"""Few, since inductor compiles 20 kernels for each: some 5 s on a host of an H200."""

_SHAPES = {
    "one element of each": (1, 1, 1),
    "whole tiles only": (128, 128, 64),
    "tails everywhere, strides that allow no wide loads": (33, 65, 129),
    "a single row": (1, 96, 128),
    "a tail in k: the masked loop": (64, 64, 70),
    "k smaller than any block of it": (48, 40, 7),
    "a single column": (128, 1, 96),
    "a tail in m": (70, 64, 64),
    "a tail in n": (64, 70, 64),
    "more columns of tiles than rows: the last group is not full": (16, 256, 64),
    "more rows of tiles than columns": (320, 32, 16),
}
# fp32 has loops of its own (FMA, other configs), and bf16 only another instruction: they need not show again that
# tiles are in the right order.
_SHOWN = {"fp16": len(_SHAPES), "fp32": 7, "bf16": 4}

_EDGE_CASES = (
    *(
        case(dtype, reason, m=m, n=n, k=k)
        for dtype, shown in _SHOWN.items()
        for reason, (m, n, k) in list(_SHAPES.items())[:shown]
    ),
    *(
        case("fp16", f"either layout and tails: {layout}", m=72, n=136, k=200, layout=layout)
        for layout in ("NT", "TN", "TT")
    ),
    case("fp16", "a row times a matrix by columns", m=1, n=72, k=200, layout="NT"),
    case("fp16", "a matrix by columns times a column", m=72, n=1, k=200, layout="TN"),
    *(
        case("fp32", f"more tiles of 64 x 64 than SMs, with tails: {layout}", m=4228, n=132, k=36, layout=layout)
        for layout in ("NN", "NT", "TN", "TT")
    ),
    case("tf32", "10 bits of mantissa", m=72, n=136, k=200),
    case("tf32", "operands that tensor cores want transposed", m=72, n=136, k=200, layout="TN"),
)

_HUGE_CASES = (
    case("bf16", "offsets into A beyond 2^31", m=2**18 + 1, n=16, k=8192),
    case("bf16", "offsets into C beyond 2^31", m=2**18 + 1, n=8192, k=16),
)


def _buffers(config: Config, problem: Case, gpu: GPU) -> int:
    """How many blocks of A and of B lie in shared memory at a time, as Triton 3.6 and 3.7 allocate them."""
    if gpu.backend == "cuda" and int(gpu.arch) < 80:
        return 1  # no asynchronous copies: the loop is not pipelined
    if Capability.WGMMA in gpu.capabilities and uses_tensor_cores(problem, gpu) and config["BLOCK_M"] >= 64:
        return config["num_stages"]  # wgmma reads its operands where they lie
    return max(1, config["num_stages"] - 1)  # the stage in work is in registers


def _row_lengths(problem: Case) -> tuple[int, int, int]:
    """Elements of a row of A, of B and of C, where a row is what is contiguous."""
    m, n, k, (of_a, of_b) = problem["m"], problem["n"], problem["k"], _layout(problem)
    return k if of_a == "N" else m, n if of_b == "N" else k, n


def _narrow(problem: Case) -> bool:
    """Whether operands may have to be read element by element, through registers, and the loop is not pipelined.

    Triton knows of a size or stride only whether 16 divides it.
    """
    return any(length % 16 for length in (*_row_lengths(problem)[:2], problem["k"]))


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
    if problem.dtype == "tf32" and config["BLOCK_M"] * config["BLOCK_N"] > 64 * 32 * config["num_warps"]:
        return "operands of 32 bits are turned round in registers: with so many accumulators they spill"
    kind = _fits_tensor_cores if uses_tensor_cores(problem, gpu) else _fits_fma
    return _fits_problem(config, problem, gpu) or kind(config, problem, gpu)


def _copied(problem: Case, gpu: GPU) -> bool:
    """Whether this GPU has a copy engine that can read the operands."""
    return Capability.TENSOR_DESCRIPTORS in gpu.capabilities and not _describes(problem, gpu)


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
    tensor_cores = uses_tensor_cores(problem, gpu)
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
    if _copied(problem, gpu):
        return _fits_copied(config, problem, gpu)
    # Latency times bandwidth asks for some 32 KiB under way in every SM.  A full GPU has one or two programs on each;
    # where tiles are small or thin several share an SM and reach it together.
    under_way = (config["num_stages"] - 1) * _stage_bytes(config, problem) // 1024
    least, most = {"full": (64, 144), "few": (32, 96), "thin": (16, 96)}[shape]
    if not least <= under_way <= most:
        return f"{under_way} KiB under way: too few to hide latency, or more than that needs"
    return ""


def _fits_copied(config: Config, problem: Case, gpu: GPU) -> str:
    """What sweeps on an H200 left of ``tiled`` and ``descriptor``: deep pipelines, large tiles that still reach SMs."""
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    shape, tiles = _shape(config, problem, gpu), _tiles(config, problem)
    if shape == "few" and 16 * min(problem["m"], problem["n"]) <= max(problem["m"], problem["n"]):
        return "a tile as tall or wide as C reads the other operand once"
    row_bytes = config["BLOCK_K"] * element_size(problem.dtype)
    if row_bytes != 128 and (shape == "full" or rows * columns > 128 * 64):
        return "a longer block of K costs a stage"
    if rows * columns > 64 * 32 and 2 * tiles < gpu.sms:
        return f"{tiles} tiles leave half of {gpu.sms} SMs idle"
    if shape == "few" and rows * columns < 128 * 128 and tiles > 2 * gpu.sms:
        return f"{tiles} tiles, where fewer and larger ones reach every SM"
    # One tile an SM may want them: 512 x 4096 x 14336 takes 82.5 us by 128 x 128 in 8 warps, as cuBLAS.
    alone = shape == "few" and rows * columns == 128 * 128
    if config["num_warps"] > 4 and rows * columns < 128 * 256 and problem.dtype != "tf32" and not alone:
        return "4 warps multiply as fast and wait for one another less"
    if config["GROUP_M"] != 8:
        return "an order that brought nothing"
    stage = _stage_bytes(config, problem) // 1024
    under_way = (config["num_stages"] - 1) * stage
    least, most = {"full": (80, 144), "few": (96, 144), "thin": (64 if rows < 64 else 96, 168)}[shape]
    if not least <= under_way <= most:
        return f"{under_way} KiB under way: too few to hide latency, or more than that needs"
    deeper = next((stages for stages in _SPACE["num_stages"] if stages > config["num_stages"]), math.inf)
    if shape != "full" and (deeper - 1) * stage <= most:
        return "more stages would fit"
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
    if config["num_stages"] != _fma_stages(problem, gpu):
        return "too few stages to hide latency, or more than FMA leaves to hide"
    if _shape(config, problem, gpu) == "full" and accumulators < 32:
        return "too few multiplications for each operand read from shared memory"
    return ""


_SPACE = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64, 128),
    "GROUP_M": (4, 8, 16),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5, 6, 8),
}

# (BLOCK_M, BLOCK_N, num_warps): the share of its best rate that a GPU reaches with such tiles on every SM.  Estimates,
# from how often an operand is used again; the tuner replaces them.
_TENSOR_CORE_TILES = {
    (128, 256, 8): 1.0,
    (128, 128, 4): 0.9,
    (128, 128, 8): 0.85,
    (64, 128, 4): 0.7,
    (128, 64, 4): 0.7,
    (64, 64, 4): 0.5,
    (32, 64, 4): 0.3,
    (16, 64, 4): 0.2,
    (16, 32, 4): 0.1,
}
_FMA_TILES = {(128, 128, 8): 1.0, (128, 64, 8): 1.0, (64, 64, 4): 1.02, (32, 64, 4): 0.8, (16, 32, 4): 0.3}


def _fma_stages(problem: Case, gpu: GPU) -> int:
    """Stages of a loop of FMA: fp32 operands gain from asynchronous copies (1024 each way on an H200: 95 us, 68 us)."""
    return 3 if problem.dtype == "fp32" and gpu.backend == "cuda" and int(gpu.arch) >= 80 else 2


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    """Of a few tiles worth a trial, the one that ends first if all SMs take tiles in step.

    Compute capability 7.5 takes at most 64 x 64: the FMA form of fp16 holds both operands in registers as fp32.
    """
    tensor_cores = uses_tensor_cores(problem, gpu)
    shares = _TENSOR_CORE_TILES if tensor_cores else _FMA_TILES
    if not tensor_cores and gpu.backend == "cuda" and int(gpu.arch) < 80:
        shares = {tile: share for tile, share in shares.items() if tile[0] * tile[1] <= 64 * 64}

    def config(rows, columns, warps):
        stages = _fma_stages(problem, gpu)
        block_k = 32 if stages > 2 else 16  # half the barriers; 16 takes fewer registers where loads pass through them
        if tensor_cores and _narrow(problem):
            block_k, stages = 64 // element_size(problem.dtype), 2
        elif _copied(problem, gpu):
            block_k = (256 if rows * columns <= 128 * 64 else 128) // element_size(problem.dtype)
            stage = (rows + columns) * block_k * element_size(problem.dtype)
            stages = next(s for s in (8, 6, 5, 4, 3) if (s - 1) * stage <= 144 * 1024)
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
    """Why ``descriptor`` and what follows from it do not take a case."""
    if problem.dtype == "fp32":
        return "fp32 in IEEE precision is bound by FMA, which no copy engine speeds up"
    if any(length * element_size(problem.dtype) % 16 for length in _row_lengths(problem)):
        return "rows of A, B or C are not aligned to 16 bytes"
    return ""


def _fits_descriptor(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``descriptor`` cannot launch, or cannot be the best."""
    size = element_size(problem.dtype)
    if problem.dtype == "tf32":  # the tile of C, of 32 bits, lies beside the blocks
        shared = config["num_stages"] * _stage_bytes(config, problem) + config["BLOCK_M"] * config["BLOCK_N"] * size
        if shared + _BARRIERS > gpu.shared_bytes:
            return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    return _fits(config, problem, gpu)


def _fits_persistent(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``persistent`` cannot launch, or cannot be the best."""
    beside = config["BLOCK_M"] * config["BLOCK_N"] * element_size(problem.dtype) // config["PARTS"]
    if config["PARTS"] > 1 and config["BLOCK_M"] * config["BLOCK_N"] < 128 * 128:
        return "the tile of C is small beside the blocks"
    if _shape(config, problem, gpu) == "thin":
        return "a thin C has no more tiles than programs: `descriptor` with a loop around it"
    return _fits_loop(config, problem, gpu, beside)


def _fits_loop(config: Config, problem: Case, gpu: GPU, beside: int) -> str:
    """Why not this config of a loop over tiles whose epilogue has ``beside`` bytes of shared memory to itself."""
    rows, columns, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    stages = _stages(config, problem, gpu, beside)
    if config["num_stages"] != stages:
        return f"{stages} stages fit, no fewer should be taken"
    largest, tiles = 128 * 256, _tiles(config, problem)
    row_bytes = config["BLOCK_K"] * element_size(problem.dtype)
    if row_bytes != 128 and not (row_bytes == 256 and rows * columns <= 128 * 64):
        return "rows of 128 bytes fill the widest swizzle; more costs stages"
    if warps != (8 if rows * columns == largest else 4) or rows * columns > largest:
        return "registers spill, or too little work a warp"
    if min(rows, columns) * 2 < max(rows, columns):
        return "of two tiles of one area, the one nearer to square reads less"
    if 2 * tiles < gpu.sms:
        return f"{tiles} tiles leave half of {gpu.sms} SMs idle"
    if tiles > gpu.sms and rows * columns < largest:
        return "a larger tile, which reads less, would reach every SM"
    if config["GROUP_M"] != 8 and tiles <= 2 * gpu.sms:
        return "an order that does not matter"
    return ""


def _stages(config: Config, problem: Case, gpu: GPU, beside: int) -> int:
    """How many stages there is shared memory for: at least 2, at most 6."""
    return max(2, min(6, (gpu.shared_bytes - _BARRIERS - beside) // _stage_bytes(config, problem)))


_BARRIERS = 2048
"""Bytes of shared memory beside the blocks, at most: barriers and alignment."""

_PERSISTENT_SPACE = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64, 128),
    "GROUP_M": (8, 16),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5, 6),
    "PARTS": (1, 2),
}


def _default_persistent(problem: Case, gpu: GPU) -> dict[str, int]:
    tile = _default(problem, gpu)
    wgmma = Capability.WGMMA in gpu.capabilities
    if wgmma and problem.dtype == "tf32" and tile["BLOCK_M"] == tile["BLOCK_N"] == 128:
        tile["BLOCK_N"] = 256  # its operands lie as the tensor cores want them
    parts = 2 if tile["BLOCK_M"] * tile["BLOCK_N"] >= 128 * 128 else 1
    beside = tile["BLOCK_M"] * tile["BLOCK_N"] * element_size(problem.dtype) // parts
    if problem.dtype == "tf32" and not wgmma:
        tile["num_stages"] = 3  # compute capability 10.0 exchanges the whole tile of C through shared memory
    else:
        tile["num_stages"] = 2 if _narrow(problem) else _stages(tile, problem, gpu, beside)
    return {**tile, "PARTS": parts}


def _fits_specialized(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``specialized`` cannot launch, or cannot be the best."""
    # Two groups of 4 warps multiply, half a tile each.
    halves = {**config, "num_warps": 8}
    return _fits_loop(halves, problem, gpu, config["BLOCK_M"] * config["BLOCK_N"] * element_size(problem.dtype))


def _specialises(problem: Case, gpu: GPU) -> str:
    """Why ``specialized`` does not take a case."""
    if problem.dtype == "tf32":
        return "Triton 3.6 does not compile it for tf32 operands that must pass through registers"
    return _describes(problem, gpu)


_SPECIALISED_SPACE = {
    "BLOCK_M": (128, 256),
    "BLOCK_N": (128, 256),
    "BLOCK_K": (64,),
    "GROUP_M": (8, 16),
    "num_warps": (4,),
    "num_stages": (2, 3, 4),
}


def _default_specialized(problem: Case, gpu: GPU) -> dict[str, int]:
    full = _shape({"BLOCK_M": 128, "BLOCK_N": 256}, problem, gpu) == "full"
    return dict(zip(_SPECIALISED_SPACE, (128, 256, 64, 8, 4, 3) if full else (128, 128, 64, 8, 4, 4), strict=True))


def _naive_config(problem: Case, gpu: GPU) -> dict[str, int]:
    return {name: values[0] for name, values in _NAIVE_SPACE.items()}


# One fixed tile, small enough for every GPU, and no pipelining: the first rung of the ladder.
_NAIVE_SPACE = {"BLOCK_M": (64,), "BLOCK_N": (64,), "BLOCK_K": (16,), "num_warps": (4,), "num_stages": (1,)}


def _splits(problem: Case, gpu: GPU) -> str:
    """Why ``split`` does not take a case."""
    thin = min(problem["m"], problem["n"])
    return f"C is {thin} wide at least: its tiles reach every SM" if thin > _THIN else ""


_THIN = 128
"""Rows or columns of C up to which K is worth splitting: one tile covers them."""


def _fits_split(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``split`` cannot launch, or cannot be the best."""
    rows, columns, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    m, n, size = problem["m"], problem["n"], element_size(problem.dtype)
    shared = _buffers(config, problem, gpu) * _stage_bytes(config, problem)
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    if (rows if m <= n else columns) != min(_THIN, max(16, triton.next_power_of_2(min(m, n)))):
        return "the tile is not as thin as C"
    warps_per_sm = _tiles(config, problem) * config["SPLITS"] * warps / gpu.sms
    if not 10 <= warps_per_sm <= 36 and config["SPLITS"] != (1 if warps_per_sm > 36 else 16):
        return f"{warps_per_sm:.0f} warps for each SM: too few to hide latency, or more parts than that needs"
    if not uses_tensor_cores(problem, gpu) or _narrow(problem):
        if config["num_stages"] > 1 or config["BLOCK_K"] * size > 64 or not 4 <= rows * columns // (32 * warps) <= 32:
            return "all of a block passes through registers: a larger one spills"
        return ""
    if config["num_stages"] > 1 and _copied(problem, gpu):
        return "pipelined thin tiles are `descriptor`'s"
    if config["num_stages"] > 1:
        under_way = (config["num_stages"] - 1) * _stage_bytes(config, problem) // 1024
        return "" if 32 <= under_way <= 64 and rows * columns <= 4096 else f"{under_way} KiB under way"
    if warps < 8:
        return "8 warps, or ptxas of CUDA 12.9 spills a few bytes"
    streamed = (columns if m <= n else rows) * config["BLOCK_K"] * size // (32 * warps)
    return "" if streamed == 128 else f"{streamed} bytes a thread at a time, where eight loads of 16 hide latency"


_SPLIT_SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (16, 32, 64, 128),
    "BLOCK_K": (16, 32, 64, 128),
    "SPLITS": (1, 2, 4, 8, 16),
    "num_warps": (4, 8),
    "num_stages": (1, 4),
}


def _default_split(problem: Case, gpu: GPU) -> dict[str, int]:
    thin = min(_THIN, max(16, triton.next_power_of_2(min(problem["m"], problem["n"]))))
    size = element_size(problem.dtype)
    block_k, wide, warps = 256 // size, 128, 8
    if not uses_tensor_cores(problem, gpu) or _narrow(problem):
        block_k, wide = (16, 32) if problem.dtype != "fp32" or thin > 32 else (16, 64)
        warps = 8 if thin * wide >= 2048 else 4
    rows, columns = (thin, wide) if problem["m"] <= problem["n"] else (wide, thin)
    tiles = triton.cdiv(problem["m"], rows) * triton.cdiv(problem["n"], columns)
    splits = next((s for s in (1, 2, 4, 8) if tiles * s * warps >= 12 * gpu.sms), 16)
    return dict(zip(_SPLIT_SPACE, (rows, columns, block_k, splits, warps, 1), strict=True))


def _is_vector(problem: Case, gpu: GPU) -> str:
    """Why ``vector`` does not take a case."""
    if min(problem["m"], problem["n"]) > 1:
        return "neither operand is a vector"
    return ""


def _along_the_sum(problem: Case) -> bool:
    """Whether the matrix that a vector is multiplied with is contiguous along K."""
    of_a, of_b = _layout(problem)
    return of_b == "T" if problem["m"] == 1 else of_a == "N"


def _fits_vector(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``vector`` cannot be the best."""
    size, block_n, warps = element_size(problem.dtype), config["BLOCK_N"], config["num_warps"]
    if block_n * config["BLOCK_K"] * size // (32 * warps) != 128:
        return "other than eight loads of 16 bytes a thread at a time"
    if block_n > 16 if _along_the_sum(problem) else block_n * size != 128:
        return "rows of 128 bytes where columns are adjacent, long ones where K is"
    tiles = triton.cdiv(max(problem["m"], problem["n"]), block_n)
    warps_per_sm = tiles * config["SPLITS"] * warps / gpu.sms
    if not 12 <= warps_per_sm <= 40 and config["SPLITS"] != (1 if warps_per_sm > 40 else 16):
        return f"{warps_per_sm:.0f} warps for each SM: too few to hide latency, or more parts than that needs"
    return ""


_VECTOR_SPACE = {
    "BLOCK_N": (4, 8, 16, 32, 64),
    "BLOCK_K": (64, 128, 256, 512, 1024, 2048, 4096),
    "SPLITS": (1, 2, 4, 8, 16),
    "num_warps": (4, 8, 16),
}


def _default_vector(problem: Case, gpu: GPU) -> dict[str, int]:
    size, warps = element_size(problem.dtype), 8
    block_n = 16 if _along_the_sum(problem) else 128 // size
    tiles = triton.cdiv(max(problem["m"], problem["n"]), block_n)
    splits = next((s for s in (1, 2, 4, 8) if tiles * s * warps >= 12 * gpu.sms), 16)
    block_k = 128 * 32 * warps // (block_n * size)
    return dict(zip(_VECTOR_SPACE, (block_n, block_k, splits, warps), strict=True))


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
                name="vector",
                summary="a row times a matrix without tl.dot: each element is loaded once, straight into registers",
                launch=_launch_vector,
                space=_VECTOR_SPACE,
                default=_default_vector,
                fits=_fits_vector,
                handles=_is_vector,
                follows="split",
            ),
            Variant(
                name="persistent",
                summary="one program an SM takes tile after tile; loops over tiles and K are one pipeline",
                launch=_launch_persistent,
                space=_PERSISTENT_SPACE,
                default=_default_persistent,
                fits=_fits_persistent,
                handles=_describes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
                follows="descriptor",
            ),
            Variant(
                name="descriptor",
                summary="the tiles of `tiled`, moved by the copy engine (TMA) through descriptors",
                launch=_launch_descriptor,
                space=_SPACE,
                default=_default,
                fits=_fits_descriptor,
                handles=_describes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
                follows="tiled",
            ),
            swizzled(_launch_swizzled, row_lengths=lambda c: _row_lengths(c)[:2]),
            Variant(
                name="tiled",
                summary="large pipelined tiles, ordered in groups that share rows and columns in L2",
                launch=functools.partial(_launch, _tiled_kernel),
                space=_SPACE,
                default=_default,
                fits=_fits,
                follows="naive",
            ),
            Variant(
                name="split",
                summary="thin tiles, and K in parts so that they are enough; a second kernel adds the parts up",
                launch=_launch_split,
                space=_SPLIT_SPACE,
                default=_default_split,
                fits=_fits_split,
                handles=_splits,
                follows="tiled",
            ),
            Variant(
                name="specialized",
                summary="as `persistent`, with warps that copy and warps that multiply",
                launch=_launch_specialized,
                space=_SPECIALISED_SPACE,
                default=_default_specialized,
                fits=_fits_specialized,
                handles=_specialises,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
                follows="persistent",
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
            "torch.compile max-autotune": max_autotuned(_reference, cases=lambda c: c in _MAX_AUTOTUNED),
            "cuda.naive": cuda("naive"),
            "cuda.tiled": cuda("tiled"),
        },
        bytes=_bytes,
        flops=lambda c: {"a @ b": 2 * c["m"] * c["n"] * c["k"]},
        reduction=lambda c: c["k"],
    ),
)
