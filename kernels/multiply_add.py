"""Multiply-add: out = input + value * tensor1 * tensor2, elementwise, on tensors of one shape.

Forward reads three tensors and writes one, 4 N elements; backward, of dout,

    dinput = dout,  dtensor1 = value * dout * tensor2,  dtensor2 = value * dout * tensor1

reads three and writes two, 5 N (dinput is dout itself and costs nothing).  A handful of operations an element, so
memory bounds both.  Arithmetic is fp32 whatever the dtype, rounded once.

Variants: `blocks` for tensors without gaps; for rows with gaps between them, such as the halves of a wide matrix, which
need not be copied first, `rows` where tiles end with them, else `flat`.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import Declaration, Pass, Variant, cases, elementwise, peers
from atlas.declaration.rows import VECTOR_BYTES
from atlas.operators import Differentiable, Operator, as_laid_out, autocast, autocasting, contiguous, launch

from kernels.broadcast import broadcast, is_alike


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


@triton.jit
def _lanes(n, LANES: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr):
    """(rows as int64, columns, places in [m, n]) of a program's LANES x WIDTH neighbours, each [LANES, WIDTH].

    One division for the WIDTH <= n elements of a lane, of which WHOLE says that they lie in one row.
    """
    lane = tl.program_id(0) * (LANES * WIDTH) + tl.arange(0, LANES)[:, None] * WIDTH
    within = tl.arange(0, WIDTH)[None, :]
    row = lane // n
    column = lane - row * n + within
    if not WHOLE:
        beyond = column >= n
        row += beyond.to(tl.int32)
        column = tl.where(beyond, column - n, column)
    return row.to(tl.int64), column, lane + within


@triton.jit
def _read(ptrs, mask):
    """In fp32, and evicted first, since nothing is read twice."""
    return tl.load(ptrs, mask=mask, eviction_policy="evict_first").to(tl.float32)


@triton.jit
def _flat(input_ptrs, tensor1_ptrs, tensor2_ptrs, out_ptrs, mask, value):
    """The lanes of a program, from load to store."""
    x, a, b = _read(input_ptrs, mask), _read(tensor1_ptrs, mask), _read(tensor2_ptrs, mask)
    tl.store(out_ptrs, x + value * a * b, mask=mask)


@triton.jit
def _flat_backward(dout_ptrs, tensor1_ptrs, tensor2_ptrs, dtensor1_ptrs, dtensor2_ptrs, mask, value):
    """The lanes of a program in both gradients."""
    dout, a, b = value * _read(dout_ptrs, mask), _read(tensor1_ptrs, mask), _read(tensor2_ptrs, mask)
    tl.store(dtensor1_ptrs, dout * b, mask=mask)
    tl.store(dtensor2_ptrs, dout * a, mask=mask)


@triton.jit
def _flat_kernel(
    input_ptr, tensor1_ptr, tensor2_ptr, out_ptr, value, n_elements, n, stride_xm, stride_am, stride_bm,
    LANES: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr, PLAIN: tl.constexpr,
):  # fmt: skip
    """One program owns LANES x WIDTH neighbours in out, wherever rows end; PLAIN: input has no gaps.

    WHOLE: n and the strides are multiples of WIDTH.
    """
    if WHOLE:  # so said, the compiler accesses WIDTH elements at once
        n, stride_xm = n // WIDTH * WIDTH, stride_xm // WIDTH * WIDTH
        stride_am, stride_bm = stride_am // WIDTH * WIDTH, stride_bm // WIDTH * WIDTH
    offs_m, offs_n, offs = _lanes(n, LANES, WIDTH, WHOLE)
    input_ptrs = input_ptr + (offs if PLAIN else offs_m * stride_xm + offs_n)
    tensor1_ptrs, tensor2_ptrs = tensor1_ptr + offs_m * stride_am + offs_n, tensor2_ptr + offs_m * stride_bm + offs_n
    if (tl.program_id(0) + 1) * (LANES * WIDTH) <= n_elements:
        _flat(input_ptrs, tensor1_ptrs, tensor2_ptrs, out_ptr + offs, None, value)
    else:
        _flat(input_ptrs, tensor1_ptrs, tensor2_ptrs, out_ptr + offs, offs < n_elements, value)


@triton.jit
def _flat_backward_kernel(
    dout_ptr, tensor1_ptr, tensor2_ptr, dtensor1_ptr, dtensor2_ptr, value, n_elements, n, stride_am, stride_bm,
    LANES: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """One program owns LANES x WIDTH neighbours in the gradients, as in _flat_kernel."""
    if WHOLE:
        n, stride_am, stride_bm = n // WIDTH * WIDTH, stride_am // WIDTH * WIDTH, stride_bm // WIDTH * WIDTH
    offs_m, offs_n, offs = _lanes(n, LANES, WIDTH, WHOLE)
    tensor1_ptrs, tensor2_ptrs = tensor1_ptr + offs_m * stride_am + offs_n, tensor2_ptr + offs_m * stride_bm + offs_n
    dout_ptrs, dtensor1_ptrs, dtensor2_ptrs = dout_ptr + offs, dtensor1_ptr + offs, dtensor2_ptr + offs
    if (tl.program_id(0) + 1) * (LANES * WIDTH) <= n_elements:
        _flat_backward(dout_ptrs, tensor1_ptrs, tensor2_ptrs, dtensor1_ptrs, dtensor2_ptrs, None, value)
    else:
        mask = offs < n_elements
        _flat_backward(dout_ptrs, tensor1_ptrs, tensor2_ptrs, dtensor1_ptrs, dtensor2_ptrs, mask, value)


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
    grid, tile = elementwise.tiles(*x.shape, config["BLOCK"], narrowest=_LINE)
    launch(
        _rows_kernel, grid, x, a, b, out, value, *x.shape, x.stride(0), a.stride(0), b.stride(0), **tile,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return out


def _launch_rows_backward(dout, tensor1, tensor2, value, *, config):
    dtensor1, dtensor2 = torch.empty_like(dout), torch.empty_like(dout)
    a, b = (tensor.view(-1, tensor.shape[-1]) for tensor in (tensor1, tensor2))
    grid, tile = elementwise.tiles(*a.shape, config["BLOCK"], narrowest=_LINE)
    launch(
        _rows_backward_kernel, grid, dout, a, b, dtensor1, dtensor2, value, *a.shape, a.stride(0), b.stride(0), **tile,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return dtensor1, dtensor2


def _lanes_of(x, strides, config):
    """Grid and meta-parameters of lanes over [m, n] like ``x``, of which other tensors have these row strides."""
    width = VECTOR_BYTES // x.element_size()
    lanes = {
        "LANES": config["BLOCK"] // width,
        "WIDTH": width,
        "WHOLE": not any(length % width for length in (x.shape[1], *strides)),
    }
    return (triton.cdiv(x.numel(), config["BLOCK"]),), lanes


def _launch_flat(input, tensor1, tensor2, value, *, config):
    out = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    x, a, b = (tensor.view(-1, tensor.shape[-1]) for tensor in (input, tensor1, tensor2))
    n, strides = x.shape[1], (x.stride(0), a.stride(0), b.stride(0))
    grid, lanes = _lanes_of(x, strides, config)
    launch(
        _flat_kernel, grid, x, a, b, out, value, x.numel(), n, *strides, **lanes, PLAIN=x.stride(0) == n,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return out


def _launch_flat_backward(dout, tensor1, tensor2, value, *, config):
    dtensor1, dtensor2 = torch.empty_like(dout), torch.empty_like(dout)
    a, b = (tensor.view(-1, tensor.shape[-1]) for tensor in (tensor1, tensor2))
    strides = a.stride(0), b.stride(0)
    grid, lanes = _lanes_of(a, strides, config)
    launch(
        _flat_backward_kernel, grid, dout, a, b, dtensor1, dtensor2, value, a.numel(), a.shape[1], *strides, **lanes,
        num_warps=config["num_warps"],
    )  # fmt: skip
    return dtensor1, dtensor2


_LINE = 128
"""Columns of the narrowest tiles of rows."""


def _handles_flat(problem, gpu):
    if not problem["gaps"]:
        return "without gaps `blocks` does the same with less"
    if problem["n"] % _LINE == 0:
        return "tiles of rows end where these do"
    if problem["n"] < VECTOR_BYTES // cases.element_size(problem.dtype):
        return "rows shorter than a vector"
    most = 2**31 - elementwise.SPACE["BLOCK"][-1]
    return "" if problem["m"] * problem["n"] <= most else "more elements than 32 bits count"


def _rows_default(problem, gpu):
    """Four elements a thread: rows of 16 bits off a vector are read one by one (400 x 3101: 9.1 us, of eight 9.8)."""
    return {"BLOCK": 512, "num_warps": 4}


def _variants(blocks, flat, rows):
    return (
        Variant(
            name="blocks",
            summary="one block of consecutive elements a program",
            launch=blocks,
            space=elementwise.SPACE,
            default=elementwise.default(vectors=1),
            fits=elementwise.fits(0.5, 2),
            handles=lambda problem, gpu: "the rows have gaps between them" if problem["gaps"] else "",
        ),
        Variant(
            name="flat",
            summary="a block of the result's consecutive elements a program, wherever rows end",
            launch=flat,
            space=elementwise.SPACE,
            default=elementwise.default(vectors=1),
            fits=elementwise.fits(1, 2),
            handles=_handles_flat,
        ),
        Variant(
            name="rows",
            summary="a tile of rows a program, each tensor with a row stride of its own",
            launch=rows,
            space=elementwise.SPACE,
            default=_rows_default,
            fits=elementwise.fits(0.5, 2),
            handles=lambda problem, gpu: "" if problem["gaps"] else "without gaps `blocks` does the same with less",
        ),
    )


def _reference(input, tensor1, tensor2, value):
    return torch.addcmul(input, tensor1, tensor2, value=value)


def _backward_reference(dout, tensor1, tensor2, value):
    return value * dout * tensor2, value * dout * tensor1


def _torch_forward(tensor1, tensor2, value):
    return torch.addcmul(torch.zeros_like(tensor1), tensor1, tensor2, value=value)


_VALUE = 0.7
"""In all cases: it costs the same whatever it is, and left out it shows."""


def _inputs(problem, device, generator):
    m, n = problem["m"], problem["n"]
    draw = cases.normal(problem, device, generator)
    input = draw(m, n)
    tensor1, tensor2 = draw(m, 2 * n).chunk(2, dim=-1) if problem["gaps"] else (draw(m, n), draw(m, n))
    return {"input": input, "tensor1": tensor1, "tensor2": tensor2, "value": _VALUE}


def _backward_inputs(problem, device, generator):
    forward = _inputs(problem, device, generator)
    return {"dout": forward.pop("input")} | forward


DECLARATION = Declaration(
    name="multiply_add",
    family="elementwise",
    summary="out = input + value * tensor1 * tensor2",
    cases=cases.sweep(
        "m n gaps",
        {
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
        },
        tensors=5,
    ),
    edge_cases=cases.edge_cases(
        "m n gaps",
        (
            (1, 1, False, "one element"),
            (3, 5, False, "fewer elements than an access of 16 bytes holds, times two"),
            (4, 2048, False, "whole blocks only: no tail"),
            (7, 2341, False, "several blocks and a tail of an odd number of elements"),
            (3, 5, True, "several short rows a tile; the second half begins off 16 bytes"),
            (37, 64, True, "tiles of whole rows, the last of them not full"),
            (2, 4097, True, "rows one element longer than a tile"),
            (5, 2048, True, "whole tiles only: no masks"),
            (21, 384, True, "tiles a third of a row wide, the last of them not full"),
            (13, 331, True, "rows that end inside vectors and blocks, the last of them not full"),
        ),
    ),
    huge_cases=(
        cases.case("bf16", "offsets beyond 2^31, and a tail", m=1, n=2**31 + 7, gaps=False),
        cases.case("bf16", "row offsets beyond 2^31, of wide rows from the middle on", m=2**18 + 1, n=8192, gaps=True),
    ),
    call=lambda function, inputs: function(
        inputs["input"], inputs["tensor1"], inputs["tensor2"], value=inputs["value"]
    ),
    differentiable=("input", "tensor1", "tensor2"),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("out",),
        variants=_variants(_launch_blocks, _launch_flat, _launch_rows),
        peers={"torch": peers.eager(_reference), "torch.compile": peers.compiled(_reference)},
        bytes=cases.traffic("input", "tensor1", "tensor2", "out"),
        flops=lambda c: {"multiply": 2 * c["m"] * c["n"], "add": c["m"] * c["n"]},
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dtensor1", "dtensor2"),
        variants=_variants(_launch_blocks_backward, _launch_flat_backward, _launch_rows_backward),
        peers={
            "torch": peers.gradients(_torch_forward, ("tensor1", "tensor2"), "dout"),
            "torch.compile": peers.compiled_gradients(_torch_forward, ("tensor1", "tensor2"), "dout"),
        },
        bytes=cases.traffic("dout", "tensor1", "tensor2", "dtensor1", "dtensor2"),
        flops=lambda c: {"multiply": 3 * c["m"] * c["n"]},
    ),
)


def _case_of(*arguments):
    *tensors, _ = arguments
    n = tensors[0].shape[-1] if tensors[0].dim() else 1
    gaps = not all(tensor.is_contiguous() for tensor in tensors)
    return cases.case(DECLARATION.dtype_of(tensors[0]), m=tensors[0].numel() // n, n=n, gaps=gaps)


def _contiguous_like(tensor):
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


_forward = Operator(
    DECLARATION,
    "forward",
    "(Tensor input, Tensor tensor1, Tensor tensor2, float value) -> Tensor",
    case_of=_case_of,
    fake=lambda input, tensor1, tensor2, value: _contiguous_like(input),
)
_backward = Operator(
    DECLARATION,
    "backward",
    "(Tensor dout, Tensor tensor1, Tensor tensor2, float value) -> (Tensor, Tensor)",
    case_of=_case_of,
    fake=lambda dout, tensor1, tensor2, value: (_contiguous_like(dout), _contiguous_like(dout)),
)


def _setup(ctx, inputs, output):
    _, tensor1, tensor2, ctx.value = inputs
    ctx.save_for_backward(tensor1, tensor2)


def _pull_back(ctx, dout):
    if dout is None or not (ctx.needs_input_grad[1] or ctx.needs_input_grad[2]):
        return dout, None, None, None
    tensor1, tensor2 = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
        return dout, ctx.value * dout * tensor2, ctx.value * dout * tensor1, None
    return dout, *_backward(contiguous(dout), tensor1, tensor2, ctx.value), None


_differentiable = Differentiable(_forward, setup_context=_setup, backward=_pull_back)


@DECLARATION.public
def multiply_add(
    input: torch.Tensor, tensor1: torch.Tensor, tensor2: torch.Tensor, *, value: float = 1
) -> torch.Tensor:
    """``torch.addcmul(input, tensor1, tensor2, value=value)`` in fp32, fp16 or bf16, of one dtype and device.

    Shapes are broadcast.  Tensors of one shape that all lie in memory in one other order of dimensions (transposed,
    channels last) are taken as they lie, and so are rows with gaps between them; the result is contiguous, or in that
    other order.  Their other layouts are copied first.  A tensor without axes may have another of the dtypes.  Second
    derivatives go through torch's operations.  Raises TypeError for other or mixed dtypes, ValueError for shapes or
    devices that do not fit.
    """
    if autocasting():
        input, tensor1, tensor2 = autocast("addcmul", input, tensor1, tensor2)
    elif (found := _differentiable.again(input, tensor1, tensor2, float(value))) is not None:
        return found
    if not is_alike(input, tensor1, tensor2):
        return broadcast(input, tensor1, tensor2, "multiply_add", value, "multiply_add")
    elementwise.check(DECLARATION, input, tensor1, tensor2)
    if not input.numel():
        return torch.addcmul(input, tensor1, tensor2, value=value)  # nothing to launch for
    return as_laid_out(lambda *tensors: _differentiable(*tensors, float(value)), input, tensor1, tensor2)
