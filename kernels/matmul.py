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
    Capability,
    Declaration,
    Pass,
    Variant,
    case,
    choose,
    compiled,
    cuda,
    eager,
    gpu_of,
    max_autotuned,
)
from atlas.declaration.products import as_interpreted, describable, fp32_precision
from atlas.operators import CustomOperator, Differentiable, autocast, autocasting, constant_result, launch
from atlas.operators.rounding import rounding_to_tf32
from triton.language.extra.cuda import gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels._matmul_cases import (
    _DTYPES,
    _EDGE_CASES,
    _HUGE_CASES,
    _LARGEST,
    _MAX_AUTOTUNED,
    _NAMES,
    _bytes,
    _cases,
    _inputs,
    _reference,
)
from kernels._matmul_spaces import (
    _NAIVE_SPACE,
    _PERSISTENT_SPACE,
    _SPACE,
    _SPECIALISED_SPACE,
    _SPLIT_SPACE,
    _VECTOR_SPACE,
    _default,
    _default_persistent,
    _default_specialized,
    _default_split,
    _default_vector,
    _describes,
    _fits,
    _fits_descriptor,
    _fits_persistent,
    _fits_specialized,
    _fits_split,
    _fits_vector,
    _is_vector,
    _naive_config,
    _row_lengths,
    _specialises,
    _splits,
)
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
    a, b, _ = inputs
    ctx.save_for_backward(a, b)


def _backward(ctx, dc):
    # Two products of the same kind: differentiable in their turn, and transposed by strides alone.  Each is as precise
    # as torch is told to be when it is made.
    a, b = ctx.saved_tensors
    tf32 = _tf32_allowed()
    da = _product(dc, b.t(), tf32) if ctx.needs_input_grad[0] else None
    db = _product(a.t(), dc, tf32) if ctx.needs_input_grad[1] else None
    return da, db, None


_product = Differentiable(
    CustomOperator(
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
    if autocasting():
        input, other = autocast("matmul", input, other)
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
    tf32 = input.dtype is torch.float32 and _tf32_allowed()
    if len(left) == 2 and len(right) == 2:
        return _product(input, other, tf32)
    product = _product(input.reshape(rows, left[-1]), other if len(right) == 2 else other[:, None], tf32)
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
