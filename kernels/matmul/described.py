"""`descriptor`, `persistent` and `specialized`: the copy engine (TMA) moves blocks by their descriptors."""

import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.products import as_interpreted
from atlas.operators import launch
from atlas.operators.rounding import rounding_to_tf32
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common import batches
from kernels.common.padded import padded
from kernels.common.parts import count_of_parts, empty_parts, sum_parts
from kernels.common.products import all_describable, by_columns, precision_of_product
from kernels.common.tiles import grouped_tile

from .spaces import SPACE
from .tiled import empty_product, launch_pointers, tiled_kernel, tiles_of


@triton.jit
def described_blocks(a_desc, b_desc, m, n, k, A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr):
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
    """One program owns one tile of C, as in ``tiled_kernel``; the copy engine moves whole blocks by their descriptors.

    No thread computes an address, and what lies outside a matrix is read as 0 and not written.
    """
    tl.assume(K > 0)  # see ``tiled_kernel``
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a, b = described_blocks(a_desc, b_desc, m, n, k, A_BY_COLUMNS, B_BY_COLUMNS)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    _store_described(c_desc, acc, m, n, BLOCK_M, BLOCK_N, 1)


@triton.jit
def _persistent_kernel(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, PARTS: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program an SM takes every num_programs-th tile, in the order of ``grouped_tile``.

    Flattened, the loops over tiles and over K are one pipeline: the next tile's first blocks are under way while this
    one's accumulator is rounded and written.
    """
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for position in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile_m, tile_n = grouped_tile(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            a, b = described_blocks(a_desc, b_desc, m, n, k, A_BY_COLUMNS, B_BY_COLUMNS)
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
        tile_m, tile_n = grouped_tile(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            a, b = described_blocks(a_desc, b_desc, m, n, k, A_BY_COLUMNS, B_BY_COLUMNS)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        _store_described(c_desc, acc, m, n, BLOCK_M, BLOCK_N, 1)


def launch_descriptor(a, b, tf32=False, *, config):
    """Launch ``_descriptor_kernel``; operands that no descriptor can describe are read through pointers instead."""
    return _launch_described(_descriptor_kernel, None, a, b, tf32, config)


def launch_persistent(a, b, tf32=False, *, config):
    """Launch ``_persistent_kernel``; operands that no descriptor can describe are read through pointers instead."""
    return _launch_described(_persistent_kernel, gpu_of(a.device).sms, a, b, tf32, config)


def _launch_described(kernel, most, a, b, tf32, config):
    """Launch ``kernel`` with descriptors, on one program a tile and at most ``most``."""
    c = empty_product(a, b)
    if not all_describable(a, b, c):
        return launch_pointers(tiled_kernel, a, b, tf32, config=_pointers(config))
    precision = precision_of_product(a, tf32)
    if precision == "tf32":
        a, b = along_k(a.t()).t(), along_k(b)
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    programs = tiles_of(c, config) if most is None else min(most, tiles_of(c, config))
    launch(
        kernel, (programs,),
        descriptor_of(a, [rows, block_k], precision), descriptor_of(b, [block_k, columns], precision),
        TensorDescriptor.from_tensor(c, [rows, columns // config.get("PARTS", 1)]), *c.shape, a.shape[1],
        A_BY_COLUMNS=by_columns(a), B_BY_COLUMNS=by_columns(b), PRECISION=precision, **config,
    )  # fmt: skip
    return c


def launch_specialized(a, b, tf32=False, *, config):
    """Launch ``_specialized_kernel``; operands that no descriptor can describe are read through pointers instead."""
    c = empty_product(a, b)
    if not all_describable(a, b, c):
        return launch_pointers(tiled_kernel, a, b, tf32, config=_pointers(config) | {"num_warps": 8})
    programs = min(gpu_of(a.device).sms, tiles_of(c, config))
    a_rows, b_rows = by_rows(a), by_rows(b)
    launch(
        _specialized_kernel, (programs,), a_rows, b_rows, c, *c.shape, a.shape[1], a_rows.stride(0), b_rows.stride(0),
        A_BY_COLUMNS=by_columns(a), B_BY_COLUMNS=by_columns(b), PRECISION=precision_of_product(a, tf32), **config,
    )  # fmt: skip
    return c


def launch_gluon(a, b, tf32=False, *, config):
    """Launch the kernel in Gluon; operands that no descriptor can describe are copied first."""
    from .hopper import product

    c = empty_product(a, b)
    if a.element_size() != 2 or not (c.numel() and a.shape[1]):
        plain = dict(zip(SPACE, (128, 128, 32, config["GROUP_M"], 8, 3), strict=True))
        return launch_pointers(tiled_kernel, a, b, tf32, config=plain)
    product(padded(a), padded(b), c, config=config, programs=gpu_of(a.device).sms)
    return c


def launch_registers(a, b, tf32=False, *, config):
    """Launch the kernel in Gluon for tf32; else `tiled`."""
    from .hopper_tf32 import products

    c = empty_product(a, b)
    if precision_of_product(a, tf32) != "tf32" or not (c.numel() and a.shape[1]):
        plain = dict(zip(SPACE, (64, 64, 32, config["GROUP_Y"], 4, 3), strict=True))
        return launch_pointers(tiled_kernel, a, b, tf32, config=plain)
    count = count_of_parts(a.shape[1], {**config, "BLOCK_K": 32})
    parts = c[None] if count == 1 else empty_parts(c, count)
    products(a[None], b[None], parts, config=config, programs=gpu_of(a.device).sms)
    return c if count == 1 else sum_parts(parts, c)


def launch_bf16x6(a, b, tf32=False, *, config):
    """Launch the kernel in Gluon for fp32; else `tiled`."""
    from .hopper_bf16x6 import products

    c = empty_product(a, b)
    if a.element_size() != 4 or not (c.numel() and a.shape[1]):
        plain = dict(zip(SPACE, (64, 64, 32, config["GROUP_M"], 4, 3), strict=True))
        return launch_pointers(tiled_kernel, a, b, tf32, config=plain)
    products(a[None], b[None], c[None], config=config, programs=gpu_of(a.device).sms)
    return c


def _pointers(config):
    """The part of a config that ``tiled_kernel`` has."""
    return {name: config[name] for name in SPACE}


def by_rows(matrix):
    """The matrix, or where it is stored by columns its transpose."""
    return as_interpreted(matrix.t() if by_columns(matrix) else matrix)


def descriptor_of(matrix, block, precision="ieee"):
    """The descriptor of blocks of ``block`` elements of ``matrix``, transposed where it is stored by columns."""
    descriptor = TensorDescriptor.from_tensor(by_rows(matrix), block[::-1] if by_columns(matrix) else block)
    return rounding_to_tf32(descriptor) if precision == "tf32" else descriptor


def along_k(b):
    """:func:`.batches.along_k` of one matrix [k, n]."""
    return b if by_columns(b) else batches.along_k(b[None])[0]
