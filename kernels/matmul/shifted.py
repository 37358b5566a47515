"""The variant `shifted` of 16-bit products: few rows times a large matrix with an odd number of columns, as it lies.

Rows of such a matrix begin anywhere within 16 bytes, so neither the copy engine nor asynchronous copies read them, and
a copy would read and write it once more than the product does.  But rows that are equal modulo 8 begin at one place
in 16 bytes.  A program multiplies these classes of rows one after the other, by aligned copies of 16 bytes that begin
up to seven elements early, and shifts the sums of each class when they are complete.
"""

import math

import triton
import triton.language as tl
from atlas.declaration import GPU, Capability, Case, Config, Variant, element_size
from atlas.declaration.products import as_interpreted
from atlas.operators import launch

from kernels.common.parts import empty_parts, sum_parts
from kernels.common.products import layout_of

from .split_described import launch_split_descriptor
from .split_spaces import SPLIT_DESCRIPTOR_SPACE
from .tiled import empty_product

SHIFTED_SPACE = {"BLOCK_N": (128, 256), "SPLITS": (1, 2, 3, 4, 6, 8), "num_warps": (4,)}
"""BLOCK_N: columns that a program reads, of which it writes all but those of 16 bytes."""

_BLOCK_K = 32
_STAGES = {128: 5, 256: 4}
_AT_ONCE = {128: 5, 256: 3}
"""By BLOCK_N: blocks on their way, and programs for which an SM has shared memory and registers."""

_MOST_ROWS = 16
_LEAST_BYTES, _LEAST_K = 2**26, 1024
"""Of the matrix, and of K in each part: shorter ones were not timed.

5 x 50257 x 2048 TN takes 70 us for 175, 16 x 50257 x 1024 49 for 90, 8 x 32001 x 4096 88 in three parts and 100 in one
for 208; two parts of 203 tiles, which do not run at once, take 14 to 17 us longer than one (H200).
"""


@triton.jit
def _block_of_a(
    a_ptr, M, first, end, i, stride_am, stride_ak,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """Columns of A, CLASSES apart: the i-th BLOCK_K of them from ``first`` on."""
    offs_m = tl.arange(0, BLOCK_M)
    k = first + (i * BLOCK_K + tl.arange(0, BLOCK_K)) * CLASSES
    a_ptrs = a_ptr + offs_m.to(tl.int64)[:, None] * stride_am + k.to(tl.int64)[None, :] * stride_ak
    return tl.load(a_ptrs, mask=(offs_m[:, None] < M) & (k[None, :] < end), other=0.0)


@triton.jit
def _shifted_kernel(
    a_ptr, b_ptr, out_ptr, M, N, K, K_PART, stride_am, stride_ak, stride_bk, stride_om, stride_on, stride_op,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CLASSES: tl.constexpr, WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Program (tile, part) sums BLOCK_N - WIDTH columns of C over K_PART elements of K, a multiple of CLASSES.

    WIDTH: the elements of 16 bytes, at which B begins; CLASSES * stride_bk is a multiple of it.  A row is read to the
    end of its last 16 bytes, so that masks are of whole vectors; what lies beyond it is in columns that no one stores.
    """
    OWN: tl.constexpr = BLOCK_N - WIDTH
    column = tl.program_id(0) * OWN
    begin = tl.program_id(1) * K_PART
    end = tl.minimum(begin + K_PART, K)
    steps = tl.cdiv(tl.cdiv(end - begin, CLASSES), BLOCK_K)
    row0 = begin.to(tl.int64) * stride_bk
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    a = _block_of_a(a_ptr, M, begin, end, 0, stride_am, stride_ak, BLOCK_M, BLOCK_K, CLASSES)
    offs_n = tl.arange(0, BLOCK_N)
    for step in tl.range(0, CLASSES * steps, num_stages=STAGES):
        of_class, i = step // steps, step % steps
        row = row0 + of_class * stride_bk.to(tl.int64)
        shift = (row % WIDTH).to(tl.int32)
        place = row // WIDTH * WIDTH
        bound = (N + shift + WIDTH - 1) // WIDTH * WIDTH
        first = begin + of_class
        n = column + tl.arange(0, BLOCK_N)
        t = i * BLOCK_K + tl.arange(0, BLOCK_K)
        apart = stride_bk.to(tl.int64) * CLASSES // WIDTH * WIDTH
        b_ptrs = b_ptr + place + t.to(tl.int64)[:, None] * apart + n[None, :]
        inside = (first + t[:, None] * CLASSES < end) & (n[None, :] < bound)
        b = tl.load(b_ptrs, mask=inside, other=0.0)
        after = begin + (step + 1) // steps
        a_next = _block_of_a(a_ptr, M, after, end, (step + 1) % steps, stride_am, stride_ak, BLOCK_M, BLOCK_K, CLASSES)
        acc = tl.dot(a, b, acc)
        a = a_next
        if i == steps - 1:
            at = tl.minimum(offs_n + shift, BLOCK_N - 1)
            total += tl.gather(acc, tl.broadcast_to(at[None, :], (BLOCK_M, BLOCK_N)), 1)
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    offs_m = tl.arange(0, BLOCK_M)
    n = column + offs_n
    out_ptrs = out_ptr + tl.program_id(1).to(tl.int64) * stride_op
    out_ptrs += offs_m.to(tl.int64)[:, None] * stride_om + n.to(tl.int64)[None, :] * stride_on
    mask = (offs_m[:, None] < M) & (n[None, :] < N) & (offs_n[None, :] < OWN)
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=mask)


def launch_shifted(a, b, tf32=False, *, config):
    """Launch the kernel, and the sum where there are several parts; what begins off 16 bytes goes to another."""
    c, k = empty_product(a, b), a.shape[1]
    if not k:
        return c.zero_()
    if not c.numel():
        return c
    turned = a.shape[0] > b.shape[1]
    x, w = (b.t(), a.t()) if turned else (a, b)
    if x.shape[0] > _MOST_ROWS or x.element_size() != 2 or w.stride(1) != 1 or w.data_ptr() % 16:
        values = (16, 128, 128, 8, 1, 4, 5)
        return launch_split_descriptor(a, b, tf32, config=dict(zip(SPLIT_DESCRIPTOR_SPACE, values, strict=True)))
    x, w = as_interpreted(x), as_interpreted(w)
    width = 16 // w.element_size()
    classes = width // math.gcd(w.stride(0), width)
    part = triton.cdiv(triton.cdiv(k, config["SPLITS"]), classes) * classes
    count = triton.cdiv(k, part)
    parts = c[None] if count == 1 else empty_parts(c, count)
    out = parts.mT if turned else parts
    block_n = config["BLOCK_N"]
    launch(
        _shifted_kernel, (triton.cdiv(w.shape[1], block_n - width), count), x, w, out, x.shape[0], w.shape[1], k, part,
        *x.stride(), w.stride(0), out.stride(1), out.stride(2), out.stride(0), BLOCK_M=_MOST_ROWS, BLOCK_N=block_n,
        BLOCK_K=_BLOCK_K, CLASSES=classes, WIDTH=width, STAGES=_STAGES[block_n], num_warps=config["num_warps"],
    )  # fmt: skip
    return c if count == 1 else sum_parts(parts, c)


def shifted(launch) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]."""
    return Variant(
        name="shifted",
        summary="few rows times a matrix of odd rows, read at whole 16 bytes: sums are shifted after",
        launch=launch,
        space=SHIFTED_SPACE,
        default=_default,
        fits=_fits,
        handles=_handles,
        needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
        follows="odd_rows",
    )


def _handles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if element_size(problem.dtype) != 2:
        return "for tensor cores' 16 bits"
    m, n, (of_a, of_b) = problem["m"], problem["n"], layout_of(problem)
    if not 1 < min(m, n) <= _MOST_ROWS:
        return f"2 to {_MOST_ROWS} rows or columns are few, and one is a vector"
    if (of_b if m <= n else of_a) != ("N" if m <= n else "T"):
        return "rows along K would be shifted before they are summed"
    if max(m, n) % 2 == 0:
        return "even rows are read as they lie"
    large = max(m, n) * problem["k"] * element_size(problem.dtype) >= _LEAST_BYTES and problem["k"] >= _LEAST_K
    return "" if large or gpu.functional else "a small matrix, or a short sum: not timed"


def _programs(config: Config, problem: Case) -> int:
    own = config["BLOCK_N"] - 16 // element_size(problem.dtype)
    return triton.cdiv(max(problem["m"], problem["n"]), own) * config["SPLITS"]


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best."""
    splits = config["SPLITS"]
    if splits > 1 and problem["k"] < splits * _LEAST_K:
        return "parts too short to have been timed"
    if splits > 1 and _programs(config, problem) > _AT_ONCE[config["BLOCK_N"]] * gpu.sms:
        return "parts make more programs than run at once"
    return ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    configs = ({"BLOCK_N": 256, "SPLITS": splits, "num_warps": 4} for splits in reversed(SHIFTED_SPACE["SPLITS"]))
    return next(config for config in configs if not _fits(config, problem, gpu))
