"""Softmax over rows: y[i, j] = exp(x[i, j] - m_i) / l_i, with m_i = max_j x[i, j] and l_i = sum_j exp(x[i, j] - m_i).

Forward reads x and writes y, MN elements each.  Backward is dx = y * (dy - sum_j y * dy): it reads y and dy and writes
dx, 3 MN.  Both do a handful of operations an element, so memory bounds them: a row should be read once and enough
bytes kept in flight.  Arithmetic is fp32 whatever the dtype.

Variants: `one_pass` holds whole rows in registers; `online` and backward's `stream` read a row of any length twice, the
second time from cache as far as it reaches, forward with the running maximum and sum of Milakov and Gimelshein
(arXiv:1805.02867).
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
    eager,
    element_size,
    torch_dtype,
)

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The least finite fp32.  A running maximum starts here and not at -inf: exp(-inf - LOWEST) is 0, while
exp(-inf - -inf) would be NaN and spoil rows that merely begin with -inf."""


@triton.jit
def _one_pass_kernel(
    x_ptr, y_ptr, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr
):
    """One program owns BLOCK_M rows; BLOCK_N >= n, so they stay in registers from load to store.

    A row that holds NaN or +inf, or -inf alone, comes out as NaN, as in torch: the exponentials make it so.  EVEN says
    that the tiles cover the rows exactly; without a mask 8192 x 8192 bf16 is 1 % faster (H200, Triton 3.6).
    """
    n = n // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask = (offs_m < m) & (offs_n < n) | EVEN
    # -inf is the identity of max and becomes 0, the identity of the sum.
    x = tl.load(x_ptr + offs_m * n + offs_n, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=1)[:, None])
    scale = 1.0 / tl.sum(e, axis=1)
    tl.store(y_ptr + offs_m * n + offs_n, e * scale[:, None], mask=mask)


@triton.jit
def _one_pass_backward_kernel(
    y_ptr, dy_ptr, dx_ptr, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr
):
    """One program owns BLOCK_M rows; BLOCK_N >= n, so they stay in registers from load to store."""
    n = n // WIDTH * WIDTH  # as in the forward pass
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    offs_n = tl.arange(0, BLOCK_N)[None, :]
    mask = (offs_m < m) & (offs_n < n)
    # 0 is the identity of the sum.
    y = tl.load(y_ptr + offs_m * n + offs_n, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + offs_m * n + offs_n, mask=mask, other=0.0).to(tl.float32)
    inner = tl.sum(y * dy, axis=1)
    tl.store(dx_ptr + offs_m * n + offs_n, y * (dy - inner[:, None]), mask=mask)


@triton.jit
def _load_lanes(ptr, first, begin, end, other, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, POLICY: tl.constexpr):
    """WIDTH elements for each lane's ``first``, in fp32; ``other`` for those outside the row, [begin, end).

    A lane is loaded whole or not at all, so each is one wide access; where rows are not ALIGNED to lanes, what the
    row's first and last lane hold of its neighbours is dropped.
    """
    offs = first + tl.arange(0, WIDTH)[None, :]
    x = tl.load(ptr + offs, mask=first < end, other=other, eviction_policy=POLICY).to(tl.float32)
    if not ALIGNED:
        x = tl.where((offs >= begin) & (offs < end), x, other)
    return x


@triton.jit
def _store_lanes(ptr, first, begin, end, value, WIDTH: tl.constexpr, ALIGNED: tl.constexpr):
    """Store the lanes that lie in the row, [begin, end); of lanes across its ends only the elements that do.

    Marked as streaming, so that what is stored does not displace what is read again (3 % on an H200, Triton 3.6).
    """
    offs = first + tl.arange(0, WIDTH)[None, :]
    whole = (first >= begin) & (first + WIDTH <= end)
    tl.store(ptr + offs, value, mask=whole, cache_modifier=".cs")
    if not ALIGNED:
        tl.store(ptr + offs, value, mask=(offs >= begin) & (offs < end) & (whole == 0), cache_modifier=".cs")


@triton.jit
def _online_kernel(x_ptr, y_ptr, n, LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr):
    """One program owns one row of any length, in blocks of LANES x WIDTH elements.

    Each lane, WIDTH neighbours that one thread loads at once, has its own running maximum m_i and sum l_i, so the
    first sweep needs no exchange between threads.  The second sweep goes backwards: what was read last is in cache.
    """
    row = tl.program_id(0).to(tl.int64) * n
    base = row // WIDTH * WIDTH  # where the lane begins in which the row does
    begin = (row - base).to(tl.int32)
    end = begin + n
    x_ptr += base
    y_ptr += base
    first = tl.arange(0, LANES)[:, None] * WIDTH
    m_i = tl.full([LANES], LOWEST, tl.float32)
    l_i = tl.zeros([LANES], tl.float32)
    for start in tl.range(0, end, LANES * WIDTH):
        # -inf is the identity of max and becomes 0, the identity of the sum.
        x = _load_lanes(x_ptr, start + first, begin, end, -float("inf"), WIDTH, ALIGNED, "evict_last")
        m_new = tl.maximum(m_i, tl.max(x, axis=1))
        l_i = l_i * tl.exp(m_i - m_new) + tl.sum(tl.exp(x - m_new[:, None]), axis=1)
        m_i = m_new
    row_max = tl.max(m_i, axis=0)
    scale = 1.0 / tl.sum(l_i * tl.exp(m_i - row_max), axis=0)
    last = (end - 1) // (LANES * WIDTH) * (LANES * WIDTH)
    for done in tl.range(0, end, LANES * WIDTH):
        start = last - done
        x = _load_lanes(x_ptr, start + first, begin, end, -float("inf"), WIDTH, ALIGNED, "evict_first")
        _store_lanes(y_ptr, start + first, begin, end, tl.exp(x - row_max) * scale, WIDTH, ALIGNED)


@triton.jit
def _stream_backward_kernel(y_ptr, dy_ptr, dx_ptr, n, LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr):
    """One program owns one row of any length: a sweep for sum(y * dy), then one backwards for dx."""
    row = tl.program_id(0).to(tl.int64) * n
    base = row // WIDTH * WIDTH
    begin = (row - base).to(tl.int32)
    end = begin + n
    y_ptr += base
    dy_ptr += base
    dx_ptr += base
    first = tl.arange(0, LANES)[:, None] * WIDTH
    inner_i = tl.zeros([LANES], tl.float32)
    for start in tl.range(0, end, LANES * WIDTH):
        # 0 is the identity of the sum.
        y = _load_lanes(y_ptr, start + first, begin, end, 0.0, WIDTH, ALIGNED, "evict_last")
        dy = _load_lanes(dy_ptr, start + first, begin, end, 0.0, WIDTH, ALIGNED, "evict_last")
        inner_i += tl.sum(y * dy, axis=1)
    inner = tl.sum(inner_i, axis=0)
    last = (end - 1) // (LANES * WIDTH) * (LANES * WIDTH)
    for done in tl.range(0, end, LANES * WIDTH):
        start = last - done
        y = _load_lanes(y_ptr, start + first, begin, end, 0.0, WIDTH, ALIGNED, "evict_first")
        dy = _load_lanes(dy_ptr, start + first, begin, end, 0.0, WIDTH, ALIGNED, "evict_first")
        _store_lanes(dx_ptr, start + first, begin, end, y * (dy - inner), WIDTH, ALIGNED)


def _launch_rows(kernel, *inputs, config, **flags):
    out = torch.empty_like(inputs[0])
    m, n = out.shape
    width = _VECTOR_BYTES // out.element_size()
    block_m, block_n = config["BLOCK_M"], triton.next_power_of_2(n)
    kernel[(triton.cdiv(m, block_m),)](
        *inputs,
        out,
        m,
        n,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        WIDTH=1 if n % width else width,
        num_warps=config["num_warps"],
        **flags,
    )
    return out


def _launch_streams(kernel, *inputs, config):
    out = torch.empty_like(inputs[0])
    m, n = out.shape
    width = _VECTOR_BYTES // out.element_size()
    if out.numel() % width:
        width = 1  # the last lane would reach past the end of the tensors
    kernel[(m,)](
        *inputs,
        out,
        n,
        LANES=config["BLOCK_N"] // width,
        WIDTH=width,
        ALIGNED=n % width == 0,
        num_warps=config["num_warps"],
    )
    return out


def _launch_one_pass(x, *, config):
    m, n = x.shape
    even = m % config["BLOCK_M"] == 0 and n == triton.next_power_of_2(n)
    return _launch_rows(_one_pass_kernel, x, config=config, EVEN=even)


def _launch_online(x, *, config):
    return _launch_streams(_online_kernel, x, config=config)


def _launch_one_pass_backward(y, dy, *, config):
    return _launch_rows(_one_pass_backward_kernel, y, dy, config=config)


def _launch_stream_backward(y, dy, *, config):
    return _launch_streams(_stream_backward_kernel, y, dy, config=config)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        variant, config = choose(DECLARATION, "forward", _case_of(x), x.device)
        y = variant.launch(x, config=config)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: what is returned must be differentiable itself
            return _backward_reference(y.float(), dy.float()).to(dy.dtype)
        variant, config = choose(DECLARATION, "backward", _case_of(y), y.device)
        return variant.launch(y, dy.contiguous(), config=config)


def _case_of(x):
    return case(_NAMES[x.dtype], m=x.shape[0], n=x.shape[1])


def softmax(input: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.nn.functional.softmax(input, dim, dtype=dtype)`` in fp32, fp16 or bf16, for any ``dim`` and shape.

    With ``dtype`` the input is cast first.  The result is contiguous; an input whose rows along ``dim`` do not lie one
    after the other is copied first.  Second derivatives go through torch's operations.  Raises TypeError for another
    dtype and IndexError for a ``dim`` that the input does not have.
    """
    x = input if dtype is None else input.to(dtype)
    if x.dtype not in _NAMES:
        raise TypeError(f"softmax takes {', '.join(_DTYPES)}: {x.dtype}; name one of them as dtype= to cast the input")
    rank = max(x.dim(), 1)  # a scalar is a row of one, as in torch
    if not -rank <= dim < rank:
        raise IndexError(f"softmax: dim {dim} is outside [{-rank}, {rank - 1}] of an input of shape {tuple(x.shape)}")
    if not x.numel():
        return x.clone()
    rows = x.reshape(x.shape or (1,)).movedim(dim, -1)
    y = _Softmax.apply(rows.reshape(-1, rows.shape[-1]).contiguous())
    return y.view(rows.shape).movedim(-1, dim).contiguous().view(x.shape)


_DTYPES = ("fp32", "fp16", "bf16")
_NAMES = {torch_dtype(name): name for name in _DTYPES}


def _reference(x):
    return torch.softmax(x, dim=-1)


def _backward_reference(y, dy):
    return y * (dy - (y * dy).sum(dim=-1, keepdim=True))


def _torch_backward(y, dy):
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


def _liger(x):
    from liger_kernel.transformers.functional import liger_softmax

    return liger_softmax(x)


def _liger_backward(y, dy):
    from liger_kernel.ops.softmax import _softmax_backward
    from liger_kernel.ops.utils import calculate_settings

    return _softmax_backward(dy, y, *calculate_settings(y.shape[-1]), False)


def _inputs(problem: Case, device, generator):
    shape = (problem["m"], problem["n"])
    return {"x": torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)}


def _backward_inputs(problem: Case, device, generator):
    x = _inputs(problem, device, generator)["x"]
    dy = torch.randn(x.shape, dtype=x.dtype, device=device, generator=generator)
    return {"y": torch.softmax(x, dim=-1), "dy": dy}


def _cases(gpu: GPU) -> list[Case]:
    shapes = {
        "bf16": (
            (128, 1024),  # the launch is the cost
            (4096, 1024),
            (8192, 2048),
            (4096, 5120),  # a hidden size, no power of two
            (8192, 8192),
            (4096, 32768),
            (4096, 50257),  # a vocabulary of odd length: no row but each eighth starts on 16 bytes
            (1024, 262144),  # longer than the registers of one SM hold
        ),
        "fp16": ((4096, 1024), (8192, 8192), (4096, 32768)),
        "fp32": ((4096, 1024), (8192, 8192), (4096, 32768)),
    }
    largest = gpu.memory_bytes // 8 // 3  # the three matrices of the backward pass in an eighth of the memory
    return [case(d, m=m, n=n) for d, pairs in shapes.items() for m, n in pairs if m * n * element_size(d) <= largest]


_EDGE_CASES = tuple(
    case(dtype, reason, m=m, n=n)
    for dtype in _DTYPES
    for m, n, reason in (
        (1, 1, "one element: softmax is 1 whatever it is"),
        (7, 1, "rows of one element"),
        (1, 1000, "one row, not a power of two"),
        (37, 129, "odd rows, one element past a power of two: no row but the first starts on 16 bytes"),
        (33, 64, "one row more than whole tiles of rows"),
        (3, 4097, "rows one element longer than a block of the streaming variants: a tail of one"),
        (8, 2049, "eight odd rows: each begins elsewhere in a lane of 16 bytes"),
        (2, 20_000, "several blocks and a tail"),
    )
)

# Of the shapes with as many elements one that every variant takes: n = 8192 is the longest row of backward's registers.
_HUGE_CASES = (case("bf16", "row offsets beyond 2^31: one row more than 2^31 elements hold", m=2**18 + 1, n=8192),)


_VECTOR_BYTES = 16
"""The widest access of one thread; narrower ones spend more instructions on the same bytes."""

_REGISTERS = 65_536
"""32-bit registers of one SM, on every GPU from sm_75 to sm_100: what all its programs share."""

_THREAD_REGISTERS = 255
"""The most that one thread can have."""

_OTHER_REGISTERS = 24
"""What a thread needs besides its elements: addresses, masks, counters (ptxas of Triton 3.7, sm_75 to sm_90)."""


def _block_n(problem: Case) -> int:
    return triton.next_power_of_2(problem["n"])


def _registers(config: dict, problem: Case, live: int) -> float:
    """Registers a thread needs to hold ``live`` fp32 values of each element of its tile."""
    return config["BLOCK_M"] * _block_n(problem) * live / (32 * config["num_warps"]) + _OTHER_REGISTERS


def _fits_rows(live: int):
    """``fits`` for ``live`` registers an element."""
    return lambda config, problem, gpu: _rows_obstacle(config, problem, live)


def _rows_obstacle(config: dict, problem: Case, live: int) -> str:
    threads = 32 * config["num_warps"]
    needed, available = _registers(config, problem, live), min(_THREAD_REGISTERS, _REGISTERS // threads)
    if needed > available:
        return f"{needed:.0f} registers a thread, of {available}: rows would spill"
    tile = config["BLOCK_M"] * _block_n(problem)
    if config["num_warps"] > 1 and tile * element_size(problem.dtype) < threads * _VECTOR_BYTES:
        return "less than one 16-byte vector a thread"
    if config["BLOCK_M"] > 1 and config["BLOCK_M"] >= 2 * problem["m"]:
        return "a tile with room for twice the rows there are"
    return ""


def _fits_stream(config: dict, problem: Case, gpu: GPU) -> str:
    threads = 32 * config["num_warps"]
    vectors = config["BLOCK_N"] * element_size(problem.dtype) / (threads * _VECTOR_BYTES)
    if not 1 <= vectors <= 4:
        return f"{vectors:g} 16-byte vectors a thread; 1 to 4 keep memory busy without spills"
    if config["BLOCK_N"] > max(_block_n(problem), _STREAM_BLOCKS[0]):
        return "a block longer than the row"
    return ""


def _handles_rows(live: int):
    """``handles`` for ``live`` registers an element: rows that fill at most half of an SM's registers.

    A program that fills more runs alone, and memory idles while it exchanges its maximum and sum: on an H200 rows of
    2^15 bf16 in registers reach 2.9 TB/s and streamed twice 3.8 TB/s (Triton 3.6).
    """
    longest = _REGISTERS // 4 // live

    def handles(problem: Case, gpu: GPU) -> str:
        return f"rows of {problem['n']} elements, over {longest}" if problem["n"] > longest else ""

    return handles


def _one_pass_default(problem: Case, gpu: GPU) -> dict:
    """Two 16-byte vectors a thread; short rows share the four warps that an SM's schedulers take at once."""
    size, two_vectors = element_size(problem.dtype), 2 * 32 * _VECTOR_BYTES
    fitting = 4 * two_vectors // (_block_n(problem) * size)
    block_m = max(1, min(fitting, triton.next_power_of_2(problem["m"]), _ROWS_SPACE["BLOCK_M"][-1]))
    warps = block_m * problem["n"] * size // two_vectors
    return {"BLOCK_M": block_m, "num_warps": 1 << max(1, min(32, warps)).bit_length() - 1}


def _stream_default(streams: int):
    """``default`` of a kernel that streams rows of ``streams`` inputs."""

    def default(problem: Case, gpu: GPU) -> dict:
        """As many warps a row as leave the rows under way at once half of the L2, two 16-byte vectors a thread."""
        size, two_vectors = element_size(problem.dtype), 2 * 32 * _VECTOR_BYTES
        under_way = gpu.sms * gpu.warps_per_sm * streams * problem["n"] * size  # with rows of one warp
        warps = min(32, max(4, 2 * under_way // gpu.l2_bytes))
        longest = max(_block_n(problem), _STREAM_BLOCKS[0])
        block_n = min((1 << warps.bit_length() - 1) * two_vectors // size, longest, _STREAM_BLOCKS[-1])
        return {"BLOCK_N": block_n, "num_warps": max(4, block_n * size // two_vectors)}

    return default


_STREAM_BLOCKS = (1024, 2048, 4096, 8192, 16384)
_ROWS_SPACE = {"BLOCK_M": (1, 2, 4, 8, 16), "num_warps": (1, 2, 4, 8, 16, 32)}
_STREAM_SPACE = {"BLOCK_N": _STREAM_BLOCKS, "num_warps": (4, 8, 16, 32)}

DECLARATION = Declaration(
    name="softmax",
    family="rows",
    summary="y = exp(x - max) / sum over rows",
    function=softmax,
    call=lambda function, inputs: function(inputs["x"]),
    dtypes=_DTYPES,
    cases=_cases,
    edge_cases=_EDGE_CASES,
    huge_cases=_HUGE_CASES,
    differentiable=("x",),
    forward=Pass(
        inputs=_inputs,
        reference=_reference,
        outputs=("y",),
        variants=(
            Variant(
                name="one_pass",
                summary="rows in registers, one block of rows a program",
                launch=_launch_one_pass,
                space=_ROWS_SPACE,
                default=_one_pass_default,
                fits=_fits_rows(live=1),
                handles=_handles_rows(live=1),
            ),
            Variant(
                name="online",
                summary="rows of any length streamed twice, with running maximum and sum",
                launch=_launch_online,
                space=_STREAM_SPACE,
                default=_stream_default(streams=1),
                fits=_fits_stream,
            ),
        ),
        peers={
            "torch": eager(_reference),
            "torch.compile": compiled(_reference),
            "liger": eager(_liger, requires="liger_kernel"),
        },
        bytes=lambda c: {name: c["m"] * c["n"] * element_size(c.dtype) for name in ("x", "y")},
        flops=lambda c: {
            "max": c["m"] * c["n"],
            "exp(x - max)": 2 * c["m"] * c["n"],
            "sum": c["m"] * c["n"],
            "scale": c["m"] * c["n"],
        },
        reduction=lambda c: c["n"],
    ),
    backward=Pass(
        inputs=_backward_inputs,
        reference=_backward_reference,
        outputs=("dx",),
        variants=(
            Variant(
                name="one_pass",
                summary="rows in registers, one block of rows a program",
                launch=_launch_one_pass_backward,
                space=_ROWS_SPACE,
                default=_one_pass_default,
                fits=_fits_rows(live=2),
                handles=_handles_rows(live=2),
            ),
            Variant(
                name="stream",
                summary="rows of any length streamed twice: sum of y * dy, then dx",
                launch=_launch_stream_backward,
                space=_STREAM_SPACE,
                default=_stream_default(streams=2),
                fits=_fits_stream,
            ),
        ),
        peers={
            "torch": eager(_torch_backward),
            "torch.compile": compiled(_backward_reference),
            "liger": eager(_liger_backward, requires="liger_kernel"),
        },
        bytes=lambda c: {name: c["m"] * c["n"] * element_size(c.dtype) for name in ("y", "dy", "dx")},
        flops=lambda c: {"y * dy": c["m"] * c["n"], "sum": c["m"] * c["n"], "y * (dy - sum)": 2 * c["m"] * c["n"]},
        reduction=lambda c: c["n"],
    ),
)
