"""Products of 8-bit matrices: C = (A B) * scale_a * scale_b + bias for fp8 and int8, and the exact int32 A B of int8.

A is M x K and B is K x N, of fp8 (e4m3 x e4m3, and e5m2 x e4m3 either way round) or both of int8.  scale_a and scale_b
are fp32 and multiply: one number each, or one for each row of A and each column of B.  Reads A and B (M K + K N bytes),
writes C (M N elements of 2 or 4 bytes); 2 M N K operations.

*Accumulation.*  int8 is summed in int32, exactly.  Products of fp8 are exact in fp32, but Hopper's tensor cores add
them with some 14 bits: of a sum that has grown to s an addition cuts off up to 2^-13 s, always towards zero.  So there
are two modes, as in torch and cuBLAS, and they are different cases here: ``use_fast_accum=True`` leaves all of K to the
tensor cores; False has them add 128 elements of K and adds the partial sums in fp32 registers.  The second takes twice
the registers for C, hence smaller tiles.

*Layout.*  Tensor cores take 8-bit operands with K contiguous only: A by rows and B by columns, as ``weight.t()`` is.
Other layouts are right, and slow.
"""

import functools

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
    eager,
    gpu_of,
    torch_dtype,
)
from atlas.declaration.products import describable
from atlas.operators import CustomOperator, launch
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["int_mm", "quantise", "scaled_mm"]


@triton.jit
def _grouped(position, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """The tile at ``position`` of an order that goes down GROUP_M rows of tiles before it takes the next column.

    Programs that run at one time cover a block of tiles that is nearly square, and share its rows and columns in L2.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_of_group = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = (position // tiles_of_group) * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)
    within = position % tiles_of_group
    return first_m + within % rows, within // rows


@triton.jit
def _accumulate(a, b, acc, PROMOTE: tl.constexpr):
    """acc + a b; with PROMOTE the tensor cores' sums go to acc's fp32 registers every PROMOTE elements of k."""
    if PROMOTE:
        return tl.dot(a, b, acc, max_num_imprecise_acc=PROMOTE, out_dtype=acc.dtype)
    else:
        return tl.dot(a, b, acc, out_dtype=acc.dtype)


@triton.jit
def _numbers(scale_a_ptr, scale_b_ptr, SCALES: tl.constexpr):
    """Both scales where each is one number; read before the loop, they are there when it ends."""
    if SCALES == "tensor":
        return tl.load(scale_a_ptr), tl.load(scale_b_ptr)
    else:
        return 1.0, 1.0


@triton.jit
def _scaled(
    acc, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, offs_m, offs_n, M, N, SCALES: tl.constexpr
):  # fmt: skip
    """acc * scale_a * scale_b + bias of a block of C, in fp32; the accumulator as it is where SCALES is "none"."""
    if SCALES != "none":
        acc = acc.to(tl.float32)
        if SCALES == "row":
            acc = acc * tl.load(scale_a_ptr + offs_m, mask=offs_m < M, other=0.0)[:, None]
            acc = acc * tl.load(scale_b_ptr + offs_n, mask=offs_n < N, other=0.0)[None, :]
        else:  # one after the other: the product of both may overflow where this does not
            acc = acc * number_a * number_b
        if bias_ptr is not None:
            acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    return acc


@triton.jit
def _tiled_kernel(
    a_ptr, b_ptr, c_ptr, scale_a_ptr, scale_b_ptr, bias_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, ACC: tl.constexpr, PROMOTE: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of C; programs that run together own neighbouring tiles (see ``_grouped``)."""
    tile_m, tile_n = _grouped(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    # Rows past M and columns past N wrap around to valid ones, and are not stored: the loop needs no mask for them.
    a_ptrs = a_ptr + (offs_m % M).to(tl.int64)[:, None] * stride_am + offs_k.to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k.to(tl.int64)[:, None] * stride_bk + (offs_n % N).to(tl.int64)[None, :] * stride_bn
    block_k = tl.full((), BLOCK_K, tl.int64)  # a stride of 16 M elements times BLOCK_K passes 2^31
    number_a, number_b = _numbers(scale_a_ptr, scale_b_ptr, SCALES)
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:  # 0 past K: adds nothing to the sum
            a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
        acc = _accumulate(a, b, acc, PROMOTE)
        a_ptrs += block_k * stride_ak
        b_ptrs += block_k * stride_bk
    c = _scaled(acc, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, offs_m, offs_n, M, N, SCALES)
    c_ptrs = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(c_ptrs, c.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


@triton.jit
def _store_parts(
    c_desc, acc, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, m, n, M, N,
    BLOCK_N: tl.constexpr, PARTS: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """Scales and writes the tile at row m and column n in PARTS of its columns, one after the other.

    C waits in shared memory for the copy engine, beside the stages of A and B: parts leave these more room.
    """
    if PARTS > 1:
        HALF: tl.constexpr = BLOCK_N // 2
        left, right = acc.reshape(acc.shape[0], 2, HALF).permute(0, 2, 1).split()
        _store_parts(
            c_desc, left, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, m, n, M, N,
            HALF, PARTS // 2, SCALES,
        )  # fmt: skip
        _store_parts(
            c_desc, right, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, m, n + HALF, M, N,
            HALF, PARTS // 2, SCALES,
        )  # fmt: skip
    else:
        offs_m = m + tl.arange(0, acc.shape[0])
        offs_n = n + tl.arange(0, BLOCK_N)
        c = _scaled(acc, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, offs_m, offs_n, M, N, SCALES)
        c_desc.store([m, n], c.to(c_desc.dtype))


@triton.jit
def _descriptor_kernel(
    a_desc, b_desc, c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PARTS: tl.constexpr, ACC: tl.constexpr, PROMOTE: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of C, as in ``_tiled_kernel``; the copy engine moves whole blocks by their descriptors.

    No thread computes an address, and what lies outside a matrix is read as 0 and not written.
    """
    tile_m, tile_n = _grouped(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    number_a, number_b = _numbers(scale_a_ptr, scale_b_ptr, SCALES)
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for k in range(0, K, BLOCK_K):
        acc = _accumulate(a_desc.load([m, k]), b_desc.load([n, k]).T, acc, PROMOTE)
    _store_parts(
        c_desc, acc, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, m, n, M, N, BLOCK_N, PARTS, SCALES
    )  # fmt: skip


@triton.jit
def _persistent_kernel(
    a_desc, b_desc, c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PARTS: tl.constexpr, ACC: tl.constexpr, PROMOTE: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """One program for each place on the GPU owns every so-many-th tile: it reads for the next while it writes one."""
    number_a, number_b = _numbers(scale_a_ptr, scale_b_ptr, SCALES)
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for position in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile_m, tile_n = _grouped(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
        for k in range(0, K, BLOCK_K):
            acc = _accumulate(a_desc.load([m, k]), b_desc.load([n, k]).T, acc, PROMOTE)
        _store_parts(
            c_desc, acc, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, m, n, M, N, BLOCK_N, PARTS, SCALES
        )  # fmt: skip


_PROMOTED = 128
"""Elements of k that fp8 may be summed over in the tensor cores' own accumulator where fast accumulation is off."""


def _meta(a, scale_a, fast, config):
    """The constants of a launch that follow from its operands."""
    integers = a.dtype == torch.int8
    return {
        "ACC": tl.int32 if integers else tl.float32,
        "PROMOTE": 0 if integers or fast else min(_PROMOTED, config["BLOCK_K"]),
        "SCALES": _scales(scale_a),
        **config,
    }


def _scales(scale_a):
    """What a case calls the scales: "none", "tensor" for one number each, "row" for one a row and a column."""
    return "none" if scale_a is None else "row" if scale_a.dim() else "tensor"


def _output(a, b, scale_a, out_dtype):
    """An empty C; without scales the exact sums of int8 are returned."""
    dtype = torch.int32 if scale_a is None else out_dtype
    return torch.empty((a.shape[0], b.shape[1]), dtype=dtype, device=a.device)


def _launch_tiled(a, b, scale_a, scale_b, bias, fast, out_dtype=torch.bfloat16, *, config):
    """Launch ``_tiled_kernel``: one program a tile, A and B in whatever strides they have."""
    (m, k), n = a.shape, b.shape[1]
    c = _output(a, b, scale_a, out_dtype)
    meta = _meta(a, scale_a, fast, config)
    a, b = _as_interpreted(a), _as_interpreted(b)
    if c.numel():
        launch(
            _tiled_kernel, (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),),
            a, b, c, scale_a, scale_b, bias, m, n, k, *a.stride(), *b.stride(),
            EVEN_K=k % config["BLOCK_K"] == 0, **meta,
        )  # fmt: skip
    return c


def _launch_described(kernel, programs, a, b, scale_a, scale_b, bias, fast, out_dtype=torch.bfloat16, *, config):
    """Launch a kernel that reads through descriptors, on ``programs(gpu, config, tiles)`` programs.

    Operands that no descriptor can describe are read through pointers instead.
    """
    (m, k), n = a.shape, b.shape[1]
    c = _output(a, b, scale_a, out_dtype)
    if not (describable(a) and describable(b.t()) and describable(c)):
        return _launch_tiled(a, b, scale_a, scale_b, bias, fast, out_dtype, config=config)
    meta = _meta(a, scale_a, fast, config)
    a, b = _as_interpreted(a), _as_interpreted(b)
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    tiles = triton.cdiv(m, rows) * triton.cdiv(n, columns)
    parts = _parts(rows * columns * c.element_size())
    launch(
        kernel, (programs(gpu_of(a.device), config, tiles),),
        TensorDescriptor.from_tensor(a, [rows, block_k]),
        TensorDescriptor.from_tensor(b.t(), [columns, block_k]),
        TensorDescriptor.from_tensor(c, [rows, columns // parts]),
        scale_a, scale_b, bias, m, n, k, PARTS=parts, **meta,
    )  # fmt: skip
    return c


def _launch_specialized(a, b, scale_a, scale_b, bias, fast, out_dtype=torch.bfloat16, *, config):
    """The same by warps of two kinds; what the copy engine cannot read goes through pointers."""
    import kernels.hopper.matmul_8bit as hopper

    c = _output(a, b, scale_a, out_dtype)
    if not (describable(a) and describable(b.t()) and describable(c)):
        plain = dict(zip(_SPACE, (64, 128, 128, config["GROUP_M"], 4, 3), strict=True))
        return _launch_tiled(a, b, scale_a, scale_b, bias, fast, out_dtype, config=plain)
    given = {"scales": _scales(scale_a), "config": config, "programs": gpu_of(a.device).sms}
    if "GROUPS" in config:
        hopper.specialized(
            a, b, c, scale_a, scale_b, bias, promote=a.dtype != torch.int8 and not fast, **given
        )  # fmt: skip
    else:
        hopper.alternating(a, b, c, scale_a, scale_b, bias, **given)
    return c


def _parts(tile_bytes):
    """In how many parts a tile of C of so many bytes goes through shared memory."""
    return max(1, tile_bytes // _PART_BYTES)


_PART_BYTES = 32768
"""Shared memory for C: beside four stages of the largest tile there is no room for more."""


def _as_interpreted(matrix):
    """On the CPU fp8 as fp32: the interpreter takes e4m3's NaN for a number, and rounds subnormals of e5m2 (3.7.1)."""
    return matrix.float() if matrix.dtype in _FP8 and matrix.device.type == "cpu" else matrix


def _run(a, b, scale_a, scale_b, bias, out_dtype, fast):
    variant, config = choose(DECLARATION, "forward", _case_of(a, b, scale_a, fast), a.device)
    return variant.launch(a, b, scale_a, scale_b, bias, fast, out_dtype, config=config)


def _fake(a, b, scale_a, scale_b, bias, out_dtype, fast):
    return a.new_empty((a.shape[0], b.shape[1]), dtype=torch.int32 if scale_a is None else out_dtype)


_product = CustomOperator(
    "matmul_8bit",
    "(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? bias, ScalarType out_dtype, bool fast) -> Tensor",
    run=_run,
    fake=_fake,
)


def _case_of(a, b, scale_a, fast):
    flags = {"scales": _scales(scale_a)}
    if a.dtype != torch.int8:
        flags["fast"] = fast
    # One of the operands is e4m3 always.
    dtype = b.dtype if a.dtype == torch.float8_e4m3fn else a.dtype
    return case(_NAMES[dtype], m=a.shape[0], n=b.shape[1], k=a.shape[1], **flags)


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """(a @ b) * scale_a * scale_b + bias, as ``torch._scaled_mm``: a [m, k] and b [k, n] of fp8, or both of int8.

    fp8 is e4m3 times e4m3, or one of the two e5m2.  The scales are fp32 and multiply: one element each, or [m, 1] and
    [1, n].  ``bias`` is [n], of a floating dtype; sums, scales and bias are fp32 and rounded once, to ``out_dtype``:
    bf16, fp16 or fp32.  ``use_fast_accum`` leaves the sums over k of fp8 to the tensor cores, which keep some 14 bits
    of them; else every 128 products are added in fp32.  Sums of int8 are exact up to k = 2^17.

    Fast where a is contiguous by rows and b by columns (``weight.t()``), with k a multiple of 16; any other strides and
    sizes are right too.  Has no gradient.  Raises TypeError for other dtypes, ValueError for shapes or devices that do
    not agree, NotImplementedError where a gradient is asked for and for a GPU without such tensor cores.
    """
    _check(a, b, "scaled_mm", _FP8_PAIRS | {(torch.int8, torch.int8)})
    if out_dtype not in _OUT:
        raise TypeError(f"scaled_mm returns bf16, fp16 or fp32, not {out_dtype}")
    scale_a, scale_b = _checked_scales(a, b, scale_a, scale_b)
    if bias is not None:
        if bias.shape != b.shape[1:] or bias.device != a.device or bias.dtype not in _OUT:
            raise ValueError(
                f"scaled_mm takes a bias of {b.shape[1]} bf16, fp16 or fp32 on {a.device}: "
                f"{tuple(bias.shape)} of {bias.dtype} on {bias.device}"
            )
        bias = bias.contiguous()
    if torch.is_grad_enabled() and (scale_a.requires_grad or scale_b.requires_grad or _wants_gradient(bias)):
        raise NotImplementedError("scaled_mm has no gradient: detach its scales and bias")
    return _product(a, b, scale_a, scale_b, bias, out_dtype, use_fast_accum and a.dtype != torch.int8)


def int_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The int32 product of int8 matrices a [m, k] and b [k, n], as ``torch._int_mm``, of any sizes and strides.

    Exact up to k = 2^17, beyond which a sum may wrap around.  For C in bf16, with scales, see :func:`scaled_mm`.

    Raises TypeError for other dtypes, ValueError for shapes or devices that do not agree, NotImplementedError for a GPU
    without such tensor cores.
    """
    _check(a, b, "int_mm", {(torch.int8, torch.int8)})
    return _product(a, b, None, None, None, torch.int32, False)


def quantise(x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[torch.Tensor, torch.Tensor]:
    """``(values, scale)`` with x ~ values * scale: rows of x [m, k] in 8 bits, and the fp32 scale [m, 1] of each.

    A row's scale is its largest magnitude over the largest value of ``dtype`` (e4m3 448, e5m2 57344, int8 127), and 1
    for a row of zeros.  Values are rounded to the nearest, ties to even: a relative error of up to 2^-4 in e4m3, 2^-3
    in e5m2, and an absolute one of half a scale in int8.  A weight [n, k] goes into a product as ``values.t()`` and
    ``scale.t()``.  NaN and infinities make their row NaN.  Plain torch: ``torch.compile`` makes one kernel of it.

    Raises TypeError for a ``dtype`` of other than those 8-bit ones, ValueError for x of other than two dimensions.
    """
    if dtype not in _NAMES or not x.is_floating_point():
        raise TypeError(f"quantise takes floating numbers to {', '.join(map(str, _NAMES))}: {x.dtype} to {dtype}")
    if x.dim() != 2:
        raise ValueError(f"quantise takes a matrix, a scale for each row: {tuple(x.shape)}")
    x = x.float()
    largest = 127.0 if dtype == torch.int8 else torch.finfo(dtype).max
    most = x.abs().amax(dim=1, keepdim=True) if x.numel() else x.new_zeros((x.shape[0], 1))
    scale = torch.where(most == 0, 1.0, most / largest)
    values = (x / scale).clamp(-largest, largest)  # a division may round up, past the largest
    return (values.round() if dtype == torch.int8 else values).to(dtype), scale


def _check(a, b, name, pairs):
    """Raise for two operands that are no pair of matrices of these dtypes."""
    if (a.dtype, b.dtype) not in pairs:
        known = "; ".join(sorted(f"{left}, {right}" for left, right in pairs))
        raise TypeError(f"{name} takes matrices of {known}, not {a.dtype}, {b.dtype}")
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"{name} takes a of [m, k] and b of [k, n]: {tuple(a.shape)} times {tuple(b.shape)}")
    if a.device != b.device or {a.layout, b.layout} != {torch.strided}:
        raise ValueError(
            f"{name} takes dense tensors of one device: {a.layout} on {a.device}, {b.layout} on {b.device}"
        )
    if max(*a.shape, *b.shape) > _LARGEST:
        raise ValueError(f"{name} takes sizes up to {_LARGEST}: {tuple(a.shape)} times {tuple(b.shape)}")


def _checked_scales(a, b, scale_a, scale_b):
    """The scales as the kernels read them: no dimensions for one number each, else [m, 1] and [1, n], contiguous."""
    if {scale_a.dtype, scale_b.dtype} != {torch.float32} or {scale_a.device, scale_b.device} != {a.device}:
        raise ValueError(
            f"scaled_mm takes fp32 scales on {a.device}: {scale_a.dtype} on {scale_a.device}, "
            f"{scale_b.dtype} on {scale_b.device}"
        )
    if scale_a.numel() == 1 == scale_b.numel():
        return scale_a.reshape(()), scale_b.reshape(())
    if scale_a.shape != (a.shape[0], 1) or scale_b.shape != (1, b.shape[1]):
        raise ValueError(
            f"scaled_mm takes scales of one element each, or of {(a.shape[0], 1)} and {(1, b.shape[1])}: "
            f"{tuple(scale_a.shape)} and {tuple(scale_b.shape)}"
        )
    return scale_a.contiguous(), scale_b.contiguous()


def _wants_gradient(tensor):
    return tensor is not None and tensor.requires_grad


_DTYPES = ("fp8e4m3", "fp8e5m2", "int8")
_NAMES = {torch_dtype(name): name for name in _DTYPES}
_FP8 = frozenset(_NAMES) - {torch.int8}
_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
_FP8_PAIRS = frozenset({(_E4M3, _E4M3), (_E5M2, _E4M3), (_E4M3, _E5M2)})
_OUT = frozenset({torch.bfloat16, torch.float16, torch.float32})
_LARGEST = 2**31 - 1025
"""Row, column and k offsets are 32-bit in the kernels and may pass the size by one tile."""


def _reference(a, b, scale_a, scale_b, bias, fast):
    product = a.double() @ b.double()
    if scale_a is None:
        return product.to(torch.int32)
    product = product * scale_a * scale_b
    return product if bias is None else product + bias


def _torch(a, b, scale_a, scale_b, bias, fast):
    """What torch offers for each: its product of 8 bits, and for int8 the scales as operations of their own."""
    if scale_a is None:
        return torch._int_mm(a, b)
    if a.dtype in _FP8 and a.device.type == "cuda":
        return torch._scaled_mm(a, b, scale_a, scale_b, bias, out_dtype=torch.bfloat16, use_fast_accum=fast)
    product = torch._int_mm(a, b) if a.dtype == torch.int8 else a.float() @ b.float()
    product = product * scale_a * scale_b
    return (product if bias is None else product + bias).to(torch.bfloat16)


def _call(function, a, b, scale_a, scale_b, bias, fast):
    """The public function on a pass's inputs; products without scales are int_mm's."""
    return int_mm(a, b) if scale_a is None else function(a, b, scale_a, scale_b, bias, use_fast_accum=fast)


def _inputs(problem: Case, device, generator):
    m, n, k, scales = problem["m"], problem["n"], problem["k"], problem["scales"]
    dtype, flags = torch_dtype(problem.dtype), dict(problem.sizes)

    def draw(rows, columns, dtype):
        if dtype == torch.int8:
            return torch.randint(-128, 128, (rows, columns), dtype=dtype, device=device, generator=generator)
        numbers = torch.rand if flags.get("positive") else torch.randn
        return numbers((rows, columns), device=device, generator=generator).to(dtype)

    def scale(*shape):  # such that C is of the order of sqrt(k), as the bias is of 1
        if scales == "none":
            return None
        return (0.5 + torch.rand(shape, device=device, generator=generator)) / (64 if dtype == torch.int8 else 1)

    return {
        "a": draw(m, k, dtype),
        "b": draw(n, k, torch.int8 if dtype == torch.int8 else _E4M3).t(),
        "scale_a": scale(m, 1) if scales == "row" else scale(),
        "scale_b": scale(1, n) if scales == "row" else scale(),
        "bias": draw(1, n, torch.bfloat16)[0] if flags.get("bias") else None,
        "fast": flags.get("fast", False),
    }


def _bytes(problem: Case) -> dict[str, float]:
    m, n, k = problem["m"], problem["n"], problem["k"]
    scales = {"none": 0, "tensor": 8, "row": 4 * (m + n)}[problem["scales"]]
    return {"a": m * k, "b": k * n, "scales": scales, "c": m * n * (4 if problem["scales"] == "none" else 2)}


def _cases(gpu: GPU) -> list[Case]:
    largest = gpu.memory_bytes // 8
    cases = [case("fp8e4m3", m=n, n=n, k=n, scales="tensor", fast=True) for n in (1024, 2048, 4096, 8192)]
    cases += [
        case("fp8e4m3", "partial sums in fp32", m=4096, n=4096, k=4096, scales="tensor", fast=False),
        case("fp8e4m3", "partial sums in fp32", m=8192, n=8192, k=8192, scales="tensor", fast=False),
        case("fp8e4m3", "feed-forward, up, of a model 4096 wide", m=4096, n=14336, k=4096, scales="row", fast=True),
        case("fp8e4m3", "the same, partial sums in fp32", m=4096, n=14336, k=4096, scales="row", fast=False),
        case("fp8e4m3", "feed-forward, down: the long sum", m=4096, n=4096, k=14336, scales="row", fast=True),
        case("fp8e4m3", "16 tokens at once: reads the weights", m=16, n=8192, k=8192, scales="row", fast=True),
        case("fp8e5m2", "gradients times weights", m=4096, n=4096, k=4096, scales="tensor", fast=True),
    ]
    cases += [case("int8", m=n, n=n, k=n, scales="none") for n in (1024, 4096, 8192)]
    cases.append(case("int8", "scaled in the epilogue, C in bf16", m=4096, n=14336, k=4096, scales="row"))
    return [c for c in cases if sum(_bytes(c).values()) <= largest]


_FORMS = (
    ("fp8e4m3", {"scales": "tensor", "fast": True}),
    ("fp8e4m3", {"scales": "row", "fast": False, "bias": True}),
    ("fp8e5m2", {"scales": "row", "fast": True}),
    ("int8", {"scales": "none"}),
    ("int8", {"scales": "row", "bias": True}),
)

_SHAPES = (
    ((1, 1, 1), "one element of each"),
    ((128, 128, 256), "whole tiles only; twice as many elements of k as are summed without promotion"),
    ((70, 144, 160), "tails in m, n and k in rows aligned to 16 bytes, as the copy engine takes them"),
    ((33, 65, 129), "tails everywhere, strides that allow no wide loads"),
    ((48, 40, 7), "k smaller than any block of it"),
    ((1, 96, 128), "a single row"),
    ((128, 1, 96), "a single column"),
    ((16, 528, 64), "more columns of tiles than rows: the last group is not full"),
    ((1100, 32, 16), "more rows of tiles than a group has"),
)
_LONG = {"m": 64, "n": 64, "k": 4096, "scales": "tensor", "fast": False, "positive": True}
_EDGE_CASES = (
    *(case(dtype, reason, m=m, n=n, k=k, **flags) for (m, n, k), reason in _SHAPES for dtype, flags in _FORMS),
    case("fp8e4m3", "a sum that only grows: of it the tensor cores by themselves lose several percent", **_LONG),
)

_HUGE_CASES = (
    case("fp8e4m3", "offsets into A beyond 2^31", m=2**18 + 1, n=16, k=8192, scales="row", fast=True),
    case("int8", "offsets into C beyond 2^31", m=2**18 + 1, n=8192, k=16, scales="none"),
)


def _handles(problem: Case, gpu: GPU) -> str:
    """Why no variant takes a case on a GPU: without such tensor cores ``tl.dot`` of these dtypes does not compile."""
    needed = Capability.INT8_DOT if problem.dtype == "int8" else Capability.FP8
    return "" if gpu.functional or needed in gpu.capabilities else f"{gpu.name} has no {needed}"


def _describes(problem: Case, gpu: GPU) -> str:
    """Why the variants with descriptors do not take a case."""
    row_bytes = problem["n"] * (4 if problem["scales"] == "none" else 2)
    aligned = problem["k"] % 16 == 0 and row_bytes % 16 == 0
    return _handles(problem, gpu) or ("" if aligned else "rows of A, B or C are not aligned to 16 bytes")


def _specializes(problem: Case, gpu: GPU) -> str:
    """Why the variant in Gluon does not take a case."""
    return "Gluon is not interpreted" if gpu.functional else _describes(problem, gpu)


def _alternates(problem: Case, gpu: GPU) -> str:
    """Why the variant whose groups have tiles of their own does not take a case."""
    return (
        "two sets of sums of such a tile are more than a group has registers for"
        if _promotes(problem)
        else (_specializes(problem, gpu))
    )


def _promotes(problem: Case) -> bool:
    """Whether the tensor cores' sums go to further registers on their way."""
    return problem.dtype != "int8" and not problem["fast"]


def _buffers(config: Config, gpu: GPU) -> int:
    """How many blocks of A and of B lie in shared memory at a time, as Triton 3.6 and 3.7 allocate them."""
    wgmma = Capability.WGMMA in gpu.capabilities
    return config["num_stages"] if wgmma else max(1, config["num_stages"] - 1)  # else the stage in work is in registers


def _shared_bytes(config: Config, problem: Case, gpu: GPU, persistent: bool) -> int:
    """Of the stages of A and B, and in a persistent kernel beside them a part of C."""
    stages = _buffers(config, gpu) * (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"]
    tile_bytes = config["BLOCK_M"] * config["BLOCK_N"] * (4 if problem["scales"] == "none" else 2)
    return stages + persistent * tile_bytes // _parts(tile_bytes)


def _tiles(config: Config, problem: Case) -> int:
    return triton.cdiv(problem["m"], config["BLOCK_M"]) * triton.cdiv(problem["n"], config["BLOCK_N"])


def _fits(config: Config, problem: Case, gpu: GPU, persistent: bool = False) -> str:
    """Why a config cannot launch, or cannot be the best for this problem; ``""`` for one worth a trial."""
    shared = _shared_bytes(config, problem, gpu, persistent)
    if shared > gpu.shared_bytes - 1024 * persistent:  # and some barriers
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    rows, columns, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    # Partial sums take as many registers as the sums, and on sm_80 operands take some (Triton 3.7.1).
    most = 64 if _promotes(problem) or Capability.WGMMA not in gpu.capabilities else 128
    accumulators = rows * columns // (32 * warps)
    if accumulators > most:
        return f"{accumulators} accumulators a thread in {warps} warps: registers spill"
    if warps > 4 and (rows < 128 or accumulators <= most // 2):
        return "too little work for 8 warps"
    return _fits_problem(config, problem, gpu) or _fits_depth(config, problem, gpu)


def _fits_problem(config: Config, problem: Case, gpu: GPU) -> str:
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    if rows >= max(128, 2 * problem["m"]) or columns >= max(128, 2 * problem["n"]):
        return "a tile twice as large as C"
    if max(rows, columns) > 2 * min(rows, columns):
        return "of two tiles of one area, the one nearer to square reads less"
    tiles = _tiles(config, problem)
    if rows * columns > 64 * 64 and 2 * tiles < gpu.sms:
        return f"{tiles} tiles leave half of {gpu.sms} SMs idle"
    full = _full(problem, gpu)
    if full and rows * columns < (64 * 128 if _promotes(problem) else 128 * 128):
        return "reads more from L2 than a larger tile, of which there are enough"
    if _promotes(problem) and rows > 64:
        return "partial sums want tiles that several programs of an SM have room for"
    if config["GROUP_M"] != 8 and not (full and (rows, columns) == (128, 256)):
        return "an order that matters to large products alone"
    return ""


def _fits_depth(config: Config, problem: Case, gpu: GPU) -> str:
    block_k, stages = config["BLOCK_K"], config["num_stages"]
    if _narrow(problem):
        fits = block_k == 32 and stages == 2 and config["BLOCK_M"] == config["BLOCK_N"] == 64
        return "" if fits else "elements that are read one by one take registers, and no stages"
    if Capability.WGMMA not in gpu.capabilities:
        fits = block_k in (64, 128) and 2 < stages < 5
        return "" if fits else "too few bytes under way to hide latency, or more than that needs"
    if block_k != (256 if _thin(problem) else 128):
        return "shared memory is swizzled in rows of 128 bytes; more than that is for thin products"
    if (config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]) == (128, 128, 4) and _full(problem, gpu):
        return "" if stages == 3 else "three stages leave room for a second program on the SM"
    least, most = (4, 6) if _thin(problem) else (3, 4)
    return "" if least <= stages <= most else "too few bytes under way to hide latency, or more than that needs"


def _thin(problem: Case) -> bool:
    """Whether a product reads B and little else."""
    return problem["m"] <= 64 and problem["k"] >= 1024


def _narrow(problem: Case) -> bool:
    """Whether operands are read element by element, through registers, and the loop is not pipelined."""
    return problem["k"] % 16 != 0


def _full(problem: Case, gpu: GPU) -> bool:
    """Whether C has two of the largest tiles for every SM."""
    return problem["m"] * problem["n"] >= 2 * gpu.sms * 128 * 256


_SPACE = {
    "BLOCK_M": (64, 128, 256),
    "BLOCK_N": (64, 128, 256),
    "BLOCK_K": (32, 64, 128, 256),
    "GROUP_M": (8, 16),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5, 6),
}
# (BLOCK_M, BLOCK_N, num_warps): the share of its best rate that an H200 reaches with such tiles on every SM.  Of the
# smaller ones two programs share an SM, and one multiplies while the other writes; a persistent program is alone.
_TILES = {(128, 128, 4): 1.0, (128, 128, 8): 0.95, (64, 128, 4): 0.75, (64, 64, 4): 0.6}
_PERSISTENT_TILES = {(128, 256, 8): 1.0, (128, 128, 4): 0.92, (128, 128, 8): 0.85, (64, 128, 4): 0.7, (64, 64, 4): 0.5}
_PROMOTING_TILES = {(64, 128, 4): 1.0, (64, 64, 4): 0.7}


def _default(problem: Case, gpu: GPU, persistent: bool = False) -> dict[str, int]:
    """Of a few tiles the one that ends first if all SMs take tiles in step."""
    shares = _PROMOTING_TILES if _promotes(problem) else _PERSISTENT_TILES if persistent else _TILES

    def config(rows, columns, warps):
        block_k = 32 if _narrow(problem) else 256 if _thin(problem) else 128
        tile = dict(zip(_SPACE, (rows, columns, block_k, 8, warps), strict=False))
        every = [tile | {"num_stages": stages} for stages in (5, 4, 3, 2)]
        return next((config for config in every if not _fits(config, problem, gpu, persistent)), every[-1])

    def seconds(tile):  # in units of one multiplication-addition on every SM
        waves = triton.cdiv(_tiles(config(*tile), problem), gpu.sms)
        return waves * tile[0] * tile[1] / shares[tile]

    fitting = [tile for tile in shares if not _fits(config(*tile), problem, gpu, persistent)]
    return config(*min(fitting or list(shares)[-1:], key=seconds))


_SPECIALIZED_SPACE = {
    "GROUPS": (2, 3),
    "BLOCK_N": (128, 256),
    "GROUP_M": (8, 16),
    "STAGES": (3, 4, 5, 6),
}
_ALTERNATING_SPACE = {"BLOCK": (128,), "GROUP_M": (8, 16), "STAGES": (5, 6)}


def _fits_specialized(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``specialized`` cannot launch, or cannot be the best for this problem."""
    import kernels.hopper.matmul_8bit as hopper

    groups, columns, stages = config["GROUPS"], config["BLOCK_N"], config["STAGES"]
    size = 4 if problem["scales"] == "none" else 2
    buffers, width = hopper.parts(groups, hopper.ROWS.value, columns, size)
    stage = (64 * groups + columns) * 128
    shared = stages * stage + groups * buffers * 64 * width * size + 1024
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    if columns > (128 if _promotes(problem) or groups == 3 else 256):
        return "registers spill"
    if groups == 3 and not _full(problem, gpu):
        return "large tiles for a small C"
    if shared + stage <= gpu.shared_bytes and stages < 6:
        return "leaves room for a further stage"
    if config["GROUP_M"] != 8 and not _full(problem, gpu):
        return "an order that matters to large products alone"
    return ""


def _fits_alternating(config: Config, problem: Case, gpu: GPU) -> str:
    """The same for ``alternating``."""
    import kernels.hopper.matmul_8bit as hopper

    size = 4 if problem["scales"] == "none" else 2
    rows = columns = config["BLOCK"]
    buffers, width = hopper.parts(2, rows, columns, size)
    stage = (rows + columns) * 128
    shared = config["STAGES"] * stage + 2 * buffers * rows * width * size + 1024
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    return "leaves room for a further stage" if shared + stage <= gpu.shared_bytes else ""


# (GROUPS, BLOCK_N): the share of its best rate that an H200 reaches with such tiles on every SM.  While two groups add
# partial sums a third one keeps the tensor cores at work.
_GROUPS = {(2, 256): 1.0, (3, 128): 1.0, (2, 128): 0.97}
_PROMOTING_GROUPS = {(3, 128): 1.0, (2, 128): 0.92}


def _default_specialized(problem: Case, gpu: GPU) -> dict[str, int]:
    """Of these tiles the one that ends first if all SMs take tiles in step, with as many stages as fit."""
    shares = _PROMOTING_GROUPS if _promotes(problem) else _GROUPS
    every = [
        dict(zip(_SPECIALIZED_SPACE, (*tile, 8, stages), strict=True))
        for tile in shares
        for stages in _SPECIALIZED_SPACE["STAGES"]
    ]

    def seconds(config):  # in units of one multiplication-addition on every SM
        area = 64 * config["GROUPS"] * config["BLOCK_N"]
        tiles = triton.cdiv(problem["m"], 64 * config["GROUPS"]) * triton.cdiv(problem["n"], config["BLOCK_N"])
        return triton.cdiv(tiles, gpu.sms) * area / shares[config["GROUPS"], config["BLOCK_N"]]

    return min((config for config in every if not _fits_specialized(config, problem, gpu)), key=seconds)


def _default_alternating(problem: Case, gpu: GPU) -> dict[str, int]:
    return dict(zip(_ALTERNATING_SPACE, (128, 16 if _full(problem, gpu) else 8, 6), strict=True))


def _programs(gpu, config, tiles):
    """As many programs as run at one time: what shared memory leaves room for."""
    used = config["num_stages"] * (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"]
    return min(tiles, gpu.sms * max(1, min(2, gpu.shared_bytes // (used + 32768))))


DECLARATION = Declaration(
    name="matmul_8bit",
    family="matmul",
    summary="C = A B of fp8 or int8, scaled",
    function=scaled_mm,
    call=lambda function, inputs: _call(function, **inputs),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("c",),
        variants=(
            Variant(
                name="specialized",
                summary="one warp loads; groups of warps multiply, and one adds or writes meanwhile",
                launch=_launch_specialized,
                space=_SPECIALIZED_SPACE,
                default=_default_specialized,
                fits=_fits_specialized,
                handles=_specializes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
                follows="persistent",
            ),
            Variant(
                name="alternating",
                summary="the groups have tiles of their own: one multiplies while the other writes",
                launch=_launch_specialized,
                space=_ALTERNATING_SPACE,
                default=_default_alternating,
                fits=_fits_alternating,
                handles=_alternates,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
                follows="specialized",
            ),
            Variant(
                name="persistent",
                summary="a program for each place on the GPU; reads for the next tile while it writes one, in parts",
                launch=functools.partial(_launch_described, _persistent_kernel, _programs),
                space=_SPACE,
                default=functools.partial(_default, persistent=True),
                fits=functools.partial(_fits, persistent=True),
                handles=_describes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
                follows="descriptor",
            ),
            Variant(
                name="descriptor",
                summary="the tiles of `tiled`, moved by the copy engine (TMA) through descriptors",
                launch=functools.partial(_launch_described, _descriptor_kernel, lambda gpu, config, tiles: tiles),
                space=_SPACE,
                default=_default,
                fits=_fits,
                handles=_describes,
                needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
                follows="tiled",
            ),
            Variant(
                name="tiled",
                summary="large pipelined tiles, ordered in groups that share rows and columns in L2",
                launch=_launch_tiled,
                space=_SPACE,
                default=_default,
                fits=_fits,
                handles=_handles,
            ),
        ),
        peers={"torch": eager(_torch), "torch.compile": compiled(_torch)},
        bytes=_bytes,
        flops=lambda c: {"a @ b": 2 * c["m"] * c["n"] * c["k"]},
        reduction=lambda c: c["k"],
        precision=lambda c: "bf16",
    ),
)
