"""Vector addition: out = x + y, elementwise.

Reads x and y (N elements each), writes out (N): three streams, one addition per element.  Every GPU is bound by memory
here, so the kernel's task is to keep enough bytes in flight.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import Declaration, Pass, Variant, cases, elementwise, peers
from atlas.operators import Differentiable, Operator, launch

from kernels.broadcast import broadcast


@triton.jit
def _add(x_ptr, y_ptr, out_ptr, offs, mask):
    # In fp32, then rounded once, as GPUs add 16-bit numbers; the interpreter has no bf16 arithmetic (Triton 3.7.1).
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    y = tl.load(y_ptr + offs, mask=mask).to(tl.float32)
    tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def _add_kernel(x_ptr, y_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    """One program owns BLOCK consecutive elements.

    All programs but the last mask nothing, so accesses are of 16 bytes also where n_elements is odd.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offs = first + tl.arange(0, BLOCK)
    if first + BLOCK <= n_elements:
        _add(x_ptr, y_ptr, out_ptr, offs, None)
    else:
        mask = offs < n_elements
        _add(x_ptr, y_ptr, out_ptr, offs, mask)


def _launch(x, y, *, config):
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), config["BLOCK"]),)
    launch(_add_kernel, grid, x, y, out, x.numel(), BLOCK=config["BLOCK"], num_warps=config["num_warps"])
    return out


def _reference(x, y):
    return x + y


DECLARATION = Declaration(
    name="vector_add",
    family="elementwise",
    summary="out = x + y",
    cases=elementwise.cases(tensors=3),
    edge_cases=elementwise.EDGE_CASES,
    huge_cases=elementwise.HUGE_CASES,
    differentiable=("x", "y"),
    forward=Pass(
        inputs=elementwise.inputs("x", "y"),
        reference=_reference,
        outputs=("out",),
        variants=(
            Variant(
                name="blocks",
                summary="one block of consecutive elements a program",
                launch=_launch,
                space={"BLOCK": (512, 1024, 2048, 4096, 8192), "num_warps": (2, 4, 8, 16)},
                # Two 16-byte loads of each operand a thread keep enough in flight.
                default=lambda problem, gpu: {"BLOCK": 1024, "num_warps": 4},
                fits=lambda config, problem, gpu: (
                    "" if config["BLOCK"] >= 32 * config["num_warps"] else "fewer elements than threads"
                ),
            ),
        ),
        peers={
            "torch": peers.eager(_reference),
            "torch.compile": peers.compiled(_reference),
            "cuda": peers.cuda("vectors"),
        },
        bytes=cases.traffic("x", "y", "out"),
        flops=lambda c: {"add": c["n"]},
    ),
)

_forward = Operator(DECLARATION, "forward", "(Tensor x, Tensor y) -> Tensor", case_of=elementwise.case_of)
_vector_add = Differentiable(_forward, lambda ctx, inputs, output: None, lambda ctx, dout: (dout, dout))


@DECLARATION.public
def vector_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``torch.add(x, y)`` for tensors of one dtype (fp32, fp16, bf16) and device, whose shapes are broadcast.

    The result lies in memory as torch's does.  A tensor without axes may have another of these dtypes.  Raises
    TypeError for other dtypes, which are not promoted, and ValueError for shapes and devices that do not fit.
    """
    if (found := _vector_add.again(x, y)) is not None:
        return found
    if not _alike(x, y):
        return broadcast(x, y, None, "add", function="vector_add")
    elementwise.check(DECLARATION, x, y)
    if not x.numel():
        return x + y  # nothing to launch for
    return _vector_add(x, y)


def _alike(x, y):
    """Whether both are of one shape and contiguous."""
    tensors = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
    return tensors and x.shape == y.shape and x.is_contiguous() and y.is_contiguous()
