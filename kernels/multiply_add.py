"""Multiply-add: out = input + value * tensor1 * tensor2, elementwise, on tensors of one shape.

Forward reads three tensors and writes one, 4 N elements; backward, of dout,

    dinput = dout,  dtensor1 = value * dout * tensor2,  dtensor2 = value * dout * tensor1

reads three and writes two, 5 N (dinput is dout itself and costs nothing).  A handful of operations an element, so
memory bounds both.  Arithmetic is fp32 whatever the dtype, rounded once.

Variants: `blocks` for tensors without gaps; `rows` for rows with gaps between them, such as the halves of a wide
matrix, which need not be copied first.
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
    choose,
    compiled,
    compiled_gradients,
    eager,
    element_size,
    gradients,
    torch_dtype,
)
from atlas.operators import CustomOperator, Differentiable, autocast, autocasting, launch


@triton.jit
def _multiply_add(input_ptrs, tensor1_ptrs, tensor2_ptrs, out_ptrs, mask, value):
    """One tile, from load to store."""
    x = tl.load(input_ptrs, mask=mask).to(tl.float32)
    a = tl.load(tensor1_ptrs, mask=mask).to(tl.float32)
    b = tl.load(tensor2_ptrs, mask=mask).to(tl.float32)
    tl.store(out_ptrs, x + value * a * b, mask=mask)


@triton.jit
def _multiply_add_backward(dout_ptrs, tensor1_ptrs, tensor2_ptrs, dtensor1_ptrs, dtensor2_ptrs, mask, value):
    """One tile of both gradients."""
    dout = value * tl.load(dout_ptrs, mask=mask).to(tl.float32)
    a = tl.load(tensor1_ptrs, mask=mask).to(tl.float32)
    b = tl.load(tensor2_ptrs, mask=mask).to(tl.float32)
    tl.store(dtensor1_ptrs, dout * b, mask=mask)
    tl.store(dtensor2_ptrs, dout * a, mask=mask)


@triton.jit
def _blocks_kernel(input_ptr, tensor1_ptr, tensor2_ptr, out_ptr, value, n_elements, BLOCK: tl.constexpr):
    """One program owns BLOCK consecutive elements; all programs but the last mask nothing."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offs = first + tl.arange(0, BLOCK)
    if first + BLOCK <= n_elements:
        _multiply_add(input_ptr + offs, tensor1_ptr + offs, tensor2_ptr + offs, out_ptr + offs, None, value)
    else:
        mask = offs < n_elements
        _multiply_add(input_ptr + offs, tensor1_ptr + offs, tensor2_ptr + offs, out_ptr + offs, mask, value)


@triton.jit
def _blocks_backward_kernel(
    dout_ptr, tensor1_ptr, tensor2_ptr, dtensor1_ptr, dtensor2_ptr, value, n_elements, BLOCK: tl.constexpr
):
    """One program owns BLOCK consecutive elements; all programs but the last mask nothing."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offs = first + tl.arange(0, BLOCK)
    if first + BLOCK <= n_elements:
        _multiply_add_backward(
            dout_ptr + offs, tensor1_ptr + offs, tensor2_ptr + offs, dtensor1_ptr + offs, dtensor2_ptr + offs, None,
            value,
        )  # fmt: skip
    else:
        mask = offs < n_elements
        _multiply_add_backward(
            dout_ptr + offs, tensor1_ptr + offs, tensor2_ptr + offs, dtensor1_ptr + offs, dtensor2_ptr + offs, mask,
            value,
        )  # fmt: skip


@triton.jit
def _tile(m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(rows [BLOCK_M, 1] as int64, columns [1, BLOCK_N], whether all of the tile lies in the matrix) of a program."""
    across = tl.cdiv(n, BLOCK_N)
    first_m = tl.program_id(0) // across * BLOCK_M
    first_n = tl.program_id(0) % across * BLOCK_N
    offs_m = (first_m + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    offs_n = (first_n + tl.arange(0, BLOCK_N))[None, :]
    return offs_m, offs_n, (first_m + BLOCK_M <= m) & (first_n + BLOCK_N <= n)


@triton.jit
def _rows_kernel(
    input_ptr, tensor1_ptr, tensor2_ptr, out_ptr, value, m, n, stride_xm, stride_am, stride_bm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of BLOCK_M rows and BLOCK_N columns; the rows of out, [m, n], have no gaps."""
    offs_m, offs_n, full = _tile(m, n, BLOCK_M, BLOCK_N)
    input_ptrs = input_ptr + offs_m * stride_xm + offs_n
    tensor1_ptrs = tensor1_ptr + offs_m * stride_am + offs_n
    tensor2_ptrs = tensor2_ptr + offs_m * stride_bm + offs_n
    out_ptrs = out_ptr + offs_m * n + offs_n
    if full:
        _multiply_add(input_ptrs, tensor1_ptrs, tensor2_ptrs, out_ptrs, None, value)
    else:
        mask = (offs_m < m) & (offs_n < n)
        _multiply_add(input_ptrs, tensor1_ptrs, tensor2_ptrs, out_ptrs, mask, value)


@triton.jit
def _rows_backward_kernel(
    dout_ptr, tensor1_ptr, tensor2_ptr, dtensor1_ptr, dtensor2_ptr, value, m, n, stride_am, stride_bm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of BLOCK_M rows and BLOCK_N columns; the rows of the gradients have no gaps."""
    offs_m, offs_n, full = _tile(m, n, BLOCK_M, BLOCK_N)
    offs = offs_m * n + offs_n
    tensor1_ptrs = tensor1_ptr + offs_m * stride_am + offs_n
    tensor2_ptrs = tensor2_ptr + offs_m * stride_bm + offs_n
    if full:
        _multiply_add_backward(
            dout_ptr + offs, tensor1_ptrs, tensor2_ptrs, dtensor1_ptr + offs, dtensor2_ptr + offs, None, value
        )
    else:
        mask = (offs_m < m) & (offs_n < n)
        _multiply_add_backward(
            dout_ptr + offs, tensor1_ptrs, tensor2_ptrs, dtensor1_ptr + offs, dtensor2_ptr + offs, mask, value
        )


def _launch_blocks(input, tensor1, tensor2, value, *, config):
    out = torch.empty_like(input)
    launch(
        _blocks_kernel, (triton.cdiv(input.numel(), config["BLOCK"]),),
        input, tensor1, tensor2, out, value, input.numel(), BLOCK=config["BLOCK"], num_warps=config["num_warps"],
    )  # fmt: skip
    return out


def _launch_blocks_backward(dout, tensor1, tensor2, value, *, config):
    dtensor1, dtensor2 = torch.empty_like(dout), torch.empty_like(dout)
    launch(
        _blocks_backward_kernel, (triton.cdiv(dout.numel(), config["BLOCK"]),),
        dout, tensor1, tensor2, dtensor1, dtensor2, value, dout.numel(),
        BLOCK=config["BLOCK"], num_warps=config["num_warps"],
    )  # fmt: skip
    return dtensor1, dtensor2


def _launch_rows(input, tensor1, tensor2, value, *, config):
    out = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    x, a, b = (tensor.view(-1, tensor.shape[-1]) for tensor in (input, tensor1, tensor2))
    grid, tile = _tiles(x, config)
    launch(
        _rows_kernel, grid, x, a, b, out, value, *x.shape, x.stride(0), a.stride(0), b.stride(0), **tile,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return out


def _launch_rows_backward(dout, tensor1, tensor2, value, *, config):
    dtensor1, dtensor2 = torch.empty_like(dout), torch.empty_like(dout)
    a, b = (tensor.view(-1, tensor.shape[-1]) for tensor in (tensor1, tensor2))
    grid, tile = _tiles(a, config)
    launch(
        _rows_backward_kernel, grid, dout, a, b, dtensor1, dtensor2, value, *a.shape, a.stride(0), b.stride(0), **tile,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return dtensor1, dtensor2


def _tiles(x, config):
    """Grid and shape of tiles of BLOCK elements over [m, n].

    As wide as the power of two in n (11008 = 43 x 256), so that columns end with a tile; or, where that is narrow, as
    the rows.
    """
    m, n = x.shape
    whole = n & -n
    block_n = min(config["BLOCK"], whole if whole >= _NARROWEST else triton.next_power_of_2(n))
    block_m = config["BLOCK"] // block_n
    return (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),), {"BLOCK_M": block_m, "BLOCK_N": block_n}


def _run_forward(input, tensor1, tensor2, value):
    variant, config = choose(DECLARATION, "forward", _case_of(input, tensor1, tensor2), input.device)
    return variant.launch(input, tensor1, tensor2, value, config=config)


def _run_backward(dout, tensor1, tensor2, value):
    variant, config = choose(DECLARATION, "backward", _case_of(dout, tensor1, tensor2), dout.device)
    return variant.launch(dout, tensor1, tensor2, value, config=config)


def _setup(ctx, inputs, output):
    _, tensor1, tensor2, ctx.value = inputs
    ctx.save_for_backward(tensor1, tensor2)


def _pull_back(ctx, dout):
    if dout is None or not (ctx.needs_input_grad[1] or ctx.needs_input_grad[2]):
        return dout, None, None, None
    tensor1, tensor2 = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return dout, ctx.value * dout * tensor2, ctx.value * dout * tensor1, None
    return dout, *_backward(dout.contiguous(), tensor1, tensor2, ctx.value), None


def _contiguous_like(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


_forward = CustomOperator(
    "multiply_add_forward",
    "(Tensor input, Tensor tensor1, Tensor tensor2, float value) -> Tensor",
    run=_run_forward,
    fake=lambda input, tensor1, tensor2, value: _contiguous_like(input),
)
_backward = CustomOperator(
    "multiply_add_backward",
    "(Tensor dout, Tensor tensor1, Tensor tensor2, float value) -> (Tensor, Tensor)",
    run=_run_backward,
    fake=lambda dout, tensor1, tensor2, value: (_contiguous_like(dout), _contiguous_like(dout)),
)
_operator = Differentiable(_forward, setup_context=_setup, backward=_pull_back)


def _case_of(*tensors):
    first = tensors[0]
    n = first.shape[-1] if first.dim() else 1
    gaps = not all(tensor.is_contiguous() for tensor in tensors)
    return case(_NAMES[first.dtype], m=first.numel() // n, n=n, gaps=gaps)


def multiply_add(
    input: torch.Tensor, tensor1: torch.Tensor, tensor2: torch.Tensor, *, value: float = 1
) -> torch.Tensor:
    """``torch.addcmul(input, tensor1, tensor2, value=value)`` for tensors of one shape, dtype and device.

    fp32, fp16 or bf16.  Tensors that all lie in memory in one other order of dimensions (transposed, channels last) are
    taken as they lie, and so are rows with gaps between them; the result is contiguous, or in that other order.  Other
    layouts are copied first.  Second derivatives go through torch's operations.  Raises TypeError for other or mixed
    dtypes, ValueError for shapes or devices that differ: nothing is broadcast.
    """
    if autocasting():
        input, tensor1, tensor2 = autocast("addcmul", input, tensor1, tensor2)
    dtype, shape, device = input.dtype, input.shape, input.device
    if dtype not in _NAMES or tensor1.dtype is not dtype or tensor2.dtype is not dtype:
        found = f"{dtype}, {tensor1.dtype}, {tensor2.dtype}"
        raise TypeError(f"multiply_add takes three tensors of one dtype out of {', '.join(_DTYPES)}: {found}")
    if tensor1.shape != shape or tensor2.shape != shape or tensor1.device != device or tensor2.device != device:
        found = "; ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in (input, tensor1, tensor2))
        raise ValueError(f"multiply_add takes tensors of one shape on one device, without broadcasting: {found}")
    if not input.numel():
        return torch.addcmul(input, tensor1, tensor2, value=value)  # nothing to launch for
    if input.is_contiguous() and tensor1.is_contiguous() and tensor2.is_contiguous():
        return _operator(input, tensor1, tensor2, float(value))
    return _in_other_layout(input, tensor1, tensor2, float(value))


def _in_other_layout(input, tensor1, tensor2, value):
    order = sorted(range(input.dim()), key=lambda dimension: -input.stride(dimension))
    moved = [tensor.permute(order) for tensor in (input, tensor1, tensor2)]
    if all(tensor.is_contiguous() for tensor in moved):
        back = sorted(range(input.dim()), key=order.__getitem__)
        return _operator(*moved, value).permute(back)
    rows = (tensor if _has_rows(tensor) else tensor.contiguous() for tensor in (input, tensor1, tensor2))
    return _operator(*rows, value)


def _has_rows(tensor):
    """Whether a row's elements are neighbours and rows follow each other at one distance."""
    if tensor.dim() < 2 or tensor.stride(-1) != 1:
        return False
    shape, strides = tensor.shape, tensor.stride()
    return all(strides[d] == strides[d + 1] * shape[d + 1] for d in range(tensor.dim() - 2))


_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}


def _reference(input, tensor1, tensor2, value):
    return torch.addcmul(input, tensor1, tensor2, value=value)


def _backward_reference(dout, tensor1, tensor2, value):
    return value * dout * tensor2, value * dout * tensor1


def _torch_forward(tensor1, tensor2, value):
    return torch.addcmul(torch.zeros_like(tensor1), tensor1, tensor2, value=value)


_VALUE = 0.7
"""In all cases: it costs the same whatever it is, and left out it shows."""


def _inputs(problem: Case, device, generator):
    m, n = problem["m"], problem["n"]

    def draw(*shape):
        return torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)

    input = draw(m, n)
    tensor1, tensor2 = draw(m, 2 * n).chunk(2, dim=-1) if problem["gaps"] else (draw(m, n), draw(m, n))
    return {"input": input, "tensor1": tensor1, "tensor2": tensor2, "value": _VALUE}


def _backward_inputs(problem: Case, device, generator):
    forward = _inputs(problem, device, generator)
    return {"dout": forward.pop("input")} | forward


def _cases(gpu: GPU) -> list[Case]:
    shapes = {
        "bf16": (
            (128, 1024, False),  # the launch is the cost
            (4096, 1024, False),
            (8192, 2048, False),
            (4096, 5120, False),  # hidden sizes of language models
            (8192, 4096, False),
            (4096, 11008, True),  # the halves of one wide matrix, as gated layers have them
            (8192, 8192, False),
            (16384, 16384, False),  # 2 GiB of traffic
            (1021, 50257, False),  # an odd number of elements
        ),
        "fp16": ((4096, 1024, False), (4096, 5120, True), (8192, 8192, False)),
        "fp32": ((4096, 1024, False), (4096, 5120, True), (8192, 8192, False)),
    }
    largest = gpu.memory_bytes // 8 // 5  # the five tensors of the backward pass in an eighth of the memory
    return [
        case(d, m=m, n=n, gaps=gaps)
        for d, problems in shapes.items()
        for m, n, gaps in problems
        if m * n * element_size(d) <= largest
    ]


_EDGE_CASES = tuple(
    case(dtype, reason, m=m, n=n, gaps=gaps)
    for dtype in _DTYPES
    for m, n, gaps, reason in (
        (1, 1, False, "one element"),
        (3, 5, False, "fewer elements than an access of 16 bytes holds, times two"),
        (4, 2048, False, "whole blocks only: no tail"),
        (7, 2341, False, "several blocks and a tail of an odd number of elements"),
        (3, 5, True, "several short rows a tile; the second half begins off 16 bytes"),
        (37, 64, True, "tiles of whole rows, the last of them not full"),
        (2, 4097, True, "rows one element longer than a tile"),
        (5, 2048, True, "whole tiles only: no masks"),
        (21, 384, True, "tiles a third of a row wide, the last of them not full"),
    )
)

_HUGE_CASES = (
    case("bf16", "offsets beyond 2^31, and a tail", m=1, n=2**31 + 7, gaps=False),
    case("bf16", "row offsets beyond 2^31, of the wide rows already at half of the matrix", m=2**18 + 1, n=8192,
         gaps=True),
)  # fmt: skip

_VECTOR_BYTES = 16
"""The widest access of one thread."""

_NARROWEST = 128
"""Columns of a tile: 256 bytes of a 16-bit row, two cache lines."""

_SPACE = {"BLOCK": (512, 1024, 2048, 4096, 8192), "num_warps": (2, 4, 8)}


def _fits(config, problem: Case, gpu: GPU) -> str:
    vectors = config["BLOCK"] * element_size(problem.dtype) / (32 * config["num_warps"] * _VECTOR_BYTES)
    if not 0.5 <= vectors <= 2:
        return f"{vectors:g} 16-byte vectors of each tensor a thread; three tensors keep memory busy with up to two"
    return ""


def _default(problem: Case, gpu: GPU) -> dict:
    """Four warps, one 16-byte vector of each tensor a thread."""
    return {"BLOCK": 4 * 32 * _VECTOR_BYTES // element_size(problem.dtype), "num_warps": 4}


def _variants(blocks, rows) -> tuple[Variant, ...]:
    return (
        Variant(
            name="blocks",
            summary="one block of consecutive elements a program",
            launch=blocks,
            space=_SPACE,
            default=_default,
            fits=_fits,
            handles=lambda problem, gpu: "the rows have gaps between them" if problem["gaps"] else "",
        ),
        Variant(
            name="rows",
            summary="a tile of rows a program, each tensor with a row stride of its own",
            launch=rows,
            space=_SPACE,
            default=_default,
            fits=_fits,
            handles=lambda problem, gpu: "" if problem["gaps"] else "without gaps `blocks` does the same with less",
        ),
    )


def _bytes(*tensors: str):
    return lambda c: {name: c["m"] * c["n"] * element_size(c.dtype) for name in tensors}


DECLARATION = Declaration(
    name="multiply_add",
    family="elementwise",
    summary="out = input + value * tensor1 * tensor2",
    function=multiply_add,
    call=lambda function, inputs: function(
        inputs["input"], inputs["tensor1"], inputs["tensor2"], value=inputs["value"]
    ),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("input", "tensor1", "tensor2"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out",),
        variants=_variants(_launch_blocks, _launch_rows),
        peers={"torch": eager(_reference), "torch.compile": compiled(_reference)},
        bytes=_bytes("input", "tensor1", "tensor2", "out"),
        flops=lambda c: {"multiply": 2 * c["m"] * c["n"], "add": c["m"] * c["n"]},
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dtensor1", "dtensor2"),
        variants=_variants(_launch_blocks_backward, _launch_rows_backward),
        peers={
            "torch": gradients(_torch_forward, ("tensor1", "tensor2"), "dout"),
            "torch.compile": compiled_gradients(_torch_forward, ("tensor1", "tensor2"), "dout"),
        },
        bytes=_bytes("dout", "tensor1", "tensor2", "dtensor1", "dtensor2"),
        flops=lambda c: {"multiply": 3 * c["m"] * c["n"]},
    ),
)
