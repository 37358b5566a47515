"""Vector addition: out = x + y, elementwise.

Reads x and y (N elements each), writes out (N): three streams, one addition per element.  Every GPU is bound by memory
here, so the kernel's task is to keep enough bytes in flight.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    GPU,
    Case,
    Declaration,
    Pass,
    Variant,
    case,
    compiled,
    cuda,
    eager,
    element_size,
    torch_dtype,
)
from atlas.operators import Differentiable, Operator, launch


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


_DTYPES = ("fp32", "fp16", "bf16")


def _reference(x, y):
    return x + y


def _inputs(problem: Case, device, generator):
    def draw():
        return torch.randn(problem["n"], dtype=torch_dtype(problem.dtype), device=device, generator=generator)

    return {"x": draw(), "y": draw()}


def _cases(gpu: GPU) -> list[Case]:
    largest = gpu.memory_bytes // 8 // 3  # three vectors in an eighth of the memory
    sizes = (2**12, 2**16, 2**20, 2**24, 2**26, 2**28)
    return [case(d, n=n) for d in _DTYPES for n in sizes if n * element_size(d) <= largest]


_EDGE_CASES = tuple(
    case(dtype, reason, n=n)
    for dtype in _DTYPES
    for n, reason in (
        (7, "7 elements: less than one block, not a multiple of any vector width"),
        (60_000, "60 000 elements in blocks of 8192: seven full blocks and a tail"),
        (1, "one element"),
        (4096, "whole blocks only: no tail"),
    )
)

_HUGE_CASES = (case("bf16", "offsets beyond 2^31, and a tail", n=2**31 + 7),)

DECLARATION = Declaration(
    name="vector_add",
    family="elementwise",
    summary="out = x + y",
    call=lambda function, inputs: function(inputs["x"], inputs["y"]),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("x", "y"),
    forward=Pass(
        inputs=_inputs,
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
        peers={"torch": eager(_reference), "torch.compile": compiled(_reference), "cuda": cuda("vectors")},
        bytes=lambda c: {name: c["n"] * element_size(c.dtype) for name in ("x", "y", "out")},
        flops=lambda c: {"add": c["n"]},
    ),
)


_operator = Operator(
    DECLARATION,
    "forward",
    "(Tensor x, Tensor y) -> Tensor",
    case_of=lambda x, y: case(DECLARATION.dtype_of(x), n=x.numel()),
    fake=lambda x, y: torch.empty_like(x),
)
_vector_add = Differentiable(
    _operator, setup_context=lambda ctx, inputs, output: None, backward=lambda ctx, dout: (dout, dout)
)


@DECLARATION.public
def vector_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``torch.add(x, y)`` for two tensors of one shape, dtype (fp32, fp16, bf16) and device.

    Raises TypeError and ValueError for anything else: shapes are not broadcast and dtypes not promoted.  Inputs that
    are not contiguous are copied first.
    """
    if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)):
        raise TypeError(f"vector_add takes two tensors, and no numbers: {type(x).__name__}, {type(y).__name__}")
    DECLARATION.dtype_of(x, y)
    if x.shape != y.shape or x.device != y.device:
        raise ValueError(f"vector_add takes one shape and device: {x.shape} on {x.device}, {y.shape} on {y.device}")
    if not x.numel():
        return x + y  # nothing to launch for
    return _vector_add(x.contiguous(), y.contiguous())
