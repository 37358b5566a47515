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

import torch
from atlas.declaration import case
from atlas.operators import Operator

from kernels.common.products import check_sizes

from .cases import E4M3, E5M2
from .declaration import DECLARATION
from .tiled import kind_of_scales

__all__ = ["int_mm", "quantise", "scaled_mm"]
_FP8_PAIRS = frozenset({(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)})
_OUT = frozenset({torch.bfloat16, torch.float16, torch.float32})


def _case_of(a, b, scale_a, scale_b, bias, out_dtype, fast):
    check_sizes("scaled_mm", *a.shape, b.shape[1])
    flags = {"scales": kind_of_scales(scale_a)}
    if a.dtype != torch.int8:
        flags["fast"] = fast
    dtype = DECLARATION.dtype_of(b if a.dtype == E4M3 else a)  # one of the operands is e4m3 always
    return case(dtype, m=a.shape[0], n=b.shape[1], k=a.shape[1], **flags)


def _run(launch, a, b, scale_a, scale_b, bias, out_dtype, fast):
    return launch(a, b, scale_a, scale_b, bias, fast, out_dtype)


def _fake(a, b, scale_a, scale_b, bias, out_dtype, fast):
    return a.new_empty((a.shape[0], b.shape[1]), dtype=torch.int32 if scale_a is None else out_dtype)


_product = Operator(
    DECLARATION,
    "forward",
    "(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? bias, ScalarType out_dtype, bool fast) -> Tensor",
    name="matmul_8bit",
    case_of=_case_of,
    run=_run,
    fake=_fake,
)


@DECLARATION.public
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
    dtypes = DECLARATION.dtype_names
    if dtype not in dtypes or not x.is_floating_point():
        raise TypeError(f"quantise takes floating numbers to {', '.join(map(str, dtypes))}: {x.dtype} to {dtype}")
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
    check_sizes(name, *a.shape, *b.shape)


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
