"""The second half of products whose programs share k: the sum of what each left in scratch memory."""

import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.operators import launch
from triton.language.extra.cuda import gdc_wait


@triton.jit
def _add_parts_kernel(
    parts_ptr, y_ptr, size, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """y = the sum over parts[PARTS, size], in their order: each program BLOCK elements.

    EARLY: it is launched while the kernel that writes the parts still runs, and waits for its end here.  PACKED: in
    parts each 32 neighbours, (t, w, q, p), are in the order (w, q, t, p) of packed tiles.
    """
    if EARLY:
        gdc_wait()
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for _ in tl.static_range(PARTS):
        acc += tl.load(parts_ptr + offs, mask=offs < size, other=0.0)
        parts_ptr += size
    if PACKED:
        acc = acc.reshape(BLOCK // 32, 4, 4, 2).permute(0, 2, 1, 3).reshape(BLOCK)
    tl.store(y_ptr + offs, acc.to(y_ptr.dtype.element_ty), mask=offs < size)


def add_parts(parts, y, packed=False):
    """Write the sum of fp32 parts [number, *y's shape], of which each is contiguous, to y, in their order.

    ``packed``: columns of parts are in the order of packed tiles.
    """
    gpu = gpu_of(y.device)
    early = gpu.backend == "cuda" and int(gpu.arch) >= 90
    launch(
        _add_parts_kernel, (triton.cdiv(y.numel(), 512),), parts, y, y.numel(),
        PARTS=parts.shape[0], BLOCK=512, EARLY=early, PACKED=packed, num_warps=4,
        **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
