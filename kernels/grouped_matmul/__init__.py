"""Grouped matrix multiplication, as in a mixture of experts: each group of rows has a matrix of its own.

Rows a[m, k] are sorted by group; group g has those from offs[g - 1] (0 for the first) to offs[g], and b[g] of
b[groups, k, n]:

    c[i] = a[i] @ b[g]    for offs[g - 1] <= i < offs[g],    c[i] = 0 from the last end on

Groups may be empty and of any length.  Backward is one more product of this kind and one whose sums are ragged:

    da[i] = dc[i] @ b[g]^T,    db[g] = sum of a[i]^T dc[i] over the rows i of g

The ends lie on the device and are never read by the host: programs find the group of a tile by counting the tiles of
the groups before it, so one launch serves any distribution, and a CUDA graph may hold it.  Reads a and those matrices
of b that have rows, writes c; 2 M N K operations.

Variants: `tiled` reads through pointers; `descriptor` lets the copy engine (TMA) move blocks.  A block of a may reach
into the rows of the next group: those are multiplied too and not stored.
"""

import torch
from atlas.declaration import case, torch_dtype
from atlas.declaration.products import fp32_precision, precision_of
from atlas.operators import Differentiable, Operator

from kernels.common.products import check_sizes

from .declaration import DECLARATION
from .sums import launch_sums

__all__ = ["grouped_mm"]

_MOST_GROUPS = 1024
"""A program holds the tiles of all groups in registers."""


def _case_of(a, tokens, groups, n, k):
    check_sizes("grouped_mm", tokens, n, k)
    dtype = DECLARATION.dtype_of(a, tf32=fp32_precision() == "tf32")
    return case(dtype, spread="even", groups=groups, m=tokens, n=n, k=k)


def _case_of_rows(a, b, offs, out):
    (m, k), (groups, _, n) = a.shape, b.shape
    return _case_of(a, m, groups, n, k)


def _case_of_sums(a, b, offs, out):
    (m, tokens), n = a.shape, b.shape[1]
    return _case_of(a, tokens, offs.shape[0], n, m)


def _run_rows(launch, a, b, offs, out):
    return launch(a, b, offs, torch_dtype(out))


def _run_sums(launch, a, b, offs, out):
    """The half of the chosen launcher whose sums are ragged."""
    return launch_sums(a, b, offs, torch_dtype(out), **launch.keywords)


def _fake_rows(a, b, offs, out):
    return a.new_empty((a.shape[0], b.shape[2]), dtype=torch_dtype(out))


def _fake_sums(a, b, offs, out):
    return a.new_empty((offs.shape[0], a.shape[0], b.shape[1]), dtype=torch_dtype(out))


def _setup(ctx, inputs, output):
    a, b, offs, _ = inputs
    ctx.save_for_backward(a, b, offs)


def _pull_rows(ctx, dc):
    """Both are operators with gradients of their own, so second derivatives need nothing else."""
    a, b, offs = ctx.saved_tensors
    name, dc = DECLARATION.dtype_of(a), dc.to(a.dtype)
    da = _rows(dc, b.transpose(1, 2), offs, name) if ctx.needs_input_grad[0] else None
    db = _sums(a.t(), dc, offs, name) if ctx.needs_input_grad[1] else None
    return da, db, None, None


def _pull_sums(ctx, dc):
    a, b, offs = ctx.saved_tensors
    name, dc = DECLARATION.dtype_of(a), dc.to(a.dtype)
    da = _rows(b, dc.transpose(1, 2), offs, name).t() if ctx.needs_input_grad[0] else None
    db = _rows(a.t(), dc, offs, name) if ctx.needs_input_grad[1] else None
    return da, db, None, None


_SCHEMA = "(Tensor a, Tensor b, Tensor offs, str out) -> Tensor"

_rows = Differentiable(
    Operator(
        DECLARATION,
        "forward",
        _SCHEMA,
        name="grouped_rows",
        case_of=_case_of_rows,
        run=_run_rows,
        fake=_fake_rows,
        state=precision_of,
    ),
    _setup,
    _pull_rows,
)
_sums = Differentiable(
    Operator(
        DECLARATION,
        "backward",
        _SCHEMA,
        name="grouped_sums",
        case_of=_case_of_sums,
        run=_run_sums,
        fake=_fake_sums,
        state=precision_of,
    ),
    _setup,
    _pull_sums,
)


@DECLARATION.public
def grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    *,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """``torch.nn.functional.grouped_mm`` for a 2D ``mat_a``, in fp32, fp16 or bf16 and any strides.

    With a 3D ``mat_b`` [groups, k, n], rows of ``mat_a`` [m, k] from ``offs[g - 1]`` to ``offs[g]`` are multiplied with
    ``mat_b[g]``; the result is [m, n], 0 in rows from ``offs[-1]`` on (which torch leaves as they are).  With a 2D
    ``mat_b`` [k, n] the groups are of the k columns of ``mat_a`` [m, k], and the result is [groups, m, n].  ``offs`` is
    int32 [groups], on the tensors' device, ascending, and at most the length that it divides; its values are not
    checked, since that would wait for the device.

    Differentiable, any number of times.  The result has ``out_dtype``, else that of the matrices.  Raises
    NotImplementedError for a bias and a 3D ``mat_a``, TypeError for dtypes, ValueError for shapes and devices.
    """
    if bias is not None:
        raise NotImplementedError("grouped_mm has no bias, as torch's kernels have none: add it to the result")
    DECLARATION.dtype_of(mat_a, mat_b)
    out = DECLARATION.dtype_names.get(out_dtype or mat_a.dtype)
    if out is None:
        raise TypeError(f"grouped_mm takes an out_dtype out of {', '.join(DECLARATION.dtypes)}: {out_dtype}")
    if mat_a.dim() != 2 or mat_b.dim() not in (2, 3):
        raise NotImplementedError(
            f"grouped_mm takes a 2D mat_a, and a mat_b of two or three dimensions, not {mat_a.dim()}D and "
            f"{mat_b.dim()}D: use torch.bmm for groups of one size"
        )
    if mat_a.shape[1] != mat_b.shape[-2]:
        raise ValueError(f"grouped_mm takes a mat_b whose rows are as many as mat_a has columns: "
                         f"{tuple(mat_a.shape)} times {tuple(mat_b.shape)}")  # fmt: skip
    if offs is None or offs.dtype != torch.int32 or offs.dim() != 1:
        given = "None" if offs is None else f"{offs.dtype} of shape {tuple(offs.shape)}"
        raise ValueError(f"grouped_mm takes offs as int32 of shape [groups]: {given}")
    if mat_b.dim() == 3 and offs.shape[0] != mat_b.shape[0]:
        raise ValueError(f"grouped_mm takes as many ends as matrices: {offs.shape[0]}, {mat_b.shape[0]}")
    if not mat_a.device == mat_b.device == offs.device:
        raise ValueError(f"grouped_mm takes tensors of one device: {mat_a.device}, {mat_b.device}, {offs.device}")
    check_sizes("grouped_mm", *mat_a.shape, *mat_b.shape)
    if offs.shape[0] >= _MOST_GROUPS:
        raise ValueError(f"grouped_mm takes fewer than {_MOST_GROUPS} groups: {offs.shape[0]}")
    if not (mat_a.numel() and mat_b.numel() and offs.numel()):
        # Nothing to launch for; a product over nothing, which has gradients.
        zeros = (mat_a[:, :0] @ mat_b.flatten(0, -2)[:0]).to(torch_dtype(out))
        return zeros if mat_b.dim() == 3 else zeros.repeat(offs.shape[0], 1, 1)
    return (_rows if mat_b.dim() == 3 else _sums)(mat_a, mat_b, offs.contiguous(), out)
