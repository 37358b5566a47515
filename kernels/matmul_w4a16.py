"""Linear layer with 4-bit weights: y[m, n] = sum over k of x[m, k] (q[n, k] - z[n, k // g]) s[n, k // g].

x and y are bf16 or fp16; q is a 4-bit number, and each group of g = 32, 64 or 128 neighbours along k has a scale s, of
x's dtype, and a zero point z (symmetric weights: always 8).  Reads x (M K elements), the weights (N K / 2 bytes), their
scales and zero points (3 bytes a group, symmetric: 2), writes y (M N); 2 M N K operations.  With few rows (a token at a
time) all of the work is to read the weights, a quarter of the bytes that bf16 weights have.

*What is exact.*  The kernels multiply by the weights that the packed format stands for; the error of quantising, which
`pack_w4` makes once, is not theirs.  q - z is exact in 16 bits.  `fragments`, and `shared` up to 32 rows, multiply it
by x in tensor cores and scale the fp32 sum of each group; all others round (q - z) s to x's dtype first, as weights
that are kept in that dtype are.

*The packed format* is the order in which tensor cores take their operands, so that no thread ever hands a weight to
another.  Weights are cut into tiles of 16 rows (n) by 64 columns (k), stored one after the other along k.  A tile is
512 bytes: 16 for each of 32 lanes, of which lane 4 g + t has the rows g and g + 8 and, of each half tile of 32 columns,
the 8 neighbours from 8 t on.  Each of its four words has four of these columns, those of one `mma` instruction; nibble
h + 2 q + 4 p of a word is row g + 8 h, column 2 q + p.  So one 16-byte load is all of a lane's share of a tile, and the
columns of x that it meets are 16 bytes as well.  (word >> 4 i) & 0x000f000f, under the exponent of 128 (bf16; of 1024
for fp16) where a nibble's lowest bit counts 1, is a register of two operands: three instructions for two weights, with
the one that takes 128 + z off again.
"""

import functools

import torch
import triton
import triton.language as tl
from atlas.declaration import (
    Capability,
    Case,
    Declaration,
    Pass,
    Peer,
    Variant,
    case,
    choose,
    element_size,
    gpu_of,
    torch_dtype,
)
from atlas.operators import CustomOperator, Differentiable, autocast, autocasting, launch

from kernels._packed import (
    DTYPES,
    Packed,
    by_row_tiles,
    check_weight,
    of_row_tiles,
    quantise_w4,
    shuffle_w4,
    unshuffle_w4,
)
from kernels._packed_fragments import launch_fragments
from kernels._packed_spaces import (
    _DEQUANTISE,
    FEW_ROWS,
    FRAGMENTS_SPACE,
    SEPARATE_SPACE,
    SHARED_SPACE,
    SPECIALIZED_SPACE,
    TILES_SPACE,
    decodes,
    fits_fragments,
    fits_separate,
    fits_shared,
    fits_specialized,
    fits_tiles,
    fragments_default,
    shared_default,
    shares,
    specialises,
    specialized_default,
    tiles_default,
)
from kernels._shared_fragments import launch_shared

__all__ = ["dequantise_w4", "linear_w4a16", "pack_w4"]


# --- Plain Triton: tiles of weights in x's dtype --------------------------------------------------------------------


@triton.jit
def _scale_and_zero(scales_ptr, zeros_ptr, offs, mask):
    scales = tl.load(scales_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    if zeros_ptr is not None:
        zeros = tl.load(zeros_ptr + offs, mask=mask, other=0).to(tl.float32)
    else:
        zeros = tl.full(scales.shape, 8, tl.float32)
    return scales, zeros


@triton.jit
def _weight(words, scales, zeros, ROW: tl.constexpr, COLUMN: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr):
    """The weights of row g + 8 ROW in packed words, rounded to DTYPE; COLUMN is 2 q + p (8 bits: p)."""
    if BITS == 4:
        number = ((words >> (4 * (ROW + 2 * (COLUMN // 2) + 4 * (COLUMN % 2)))) & 15).to(tl.float32) - zeros
    else:
        SIGN: tl.constexpr = 8 * ((2 * COLUMN + ROW + 1) % 4) + 7  # in the next byte
        magnitude = ((words >> (8 * (2 * COLUMN + ROW))) & 127).to(tl.float32)
        number = tl.where(((words >> SIGN) & 1) != 0, -magnitude, magnitude)
    return (number * scales).to(DTYPE)


@triton.jit
def _both_rows(words, scales_0, zeros_0, scales_1, zeros_1, COLUMN: tl.constexpr, BITS: tl.constexpr,
               DTYPE: tl.constexpr):  # fmt: skip
    first = _weight(words, scales_0, zeros_0, 0, COLUMN, BITS, DTYPE)
    return tl.join(first, _weight(words, scales_1, zeros_1, 1, COLUMN, BITS, DTYPE))


@triton.jit
def _weights(
    words_ptr, scales_ptr, zeros_ptr, first_n, first_k, N, K, groups,
    GROUP: tl.constexpr, BITS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Weights BLOCK_N x BLOCK_K from (first_n, first_k) on, multiples of packed tiles, in DTYPE; 0 outside."""
    TILE_K: tl.constexpr = 256 // BITS
    TILES_N: tl.constexpr = BLOCK_N // 16
    TILES_K: tl.constexpr = BLOCK_K // TILE_K
    tile_n = first_n // 16 + tl.arange(0, TILES_N)[None, :, None, None, None]
    tile_k = first_k // TILE_K + tl.arange(0, TILES_K)[:, None, None, None, None]
    g = tl.arange(0, 8)[None, None, :, None, None]
    t = tl.arange(0, 4)[None, None, None, :, None]
    word = tl.arange(0, 4)[None, None, None, None, :]
    inside = (tile_n < tl.cdiv(N, 16)) & (tile_k < tl.cdiv(K, TILE_K))
    tile = tile_n.to(tl.int64) * tl.cdiv(K, TILE_K) + tile_k
    words = tl.load(words_ptr + tile * 128 + (g * 16 + t * 4 + word), mask=inside, other=0)
    group = tile_k * 0
    if GROUP > 0:
        k = tile_k * TILE_K
        if BITS == 4:
            k += word // 2 * 32
        inside = inside & (k < K)
        group = k // GROUP
    offs = (tile_n.to(tl.int64) * groups + group) * 16 + 2 * g
    scales_0, zeros_0 = _scale_and_zero(scales_ptr, zeros_ptr, offs, inside)
    scales_1, zeros_1 = _scale_and_zero(scales_ptr, zeros_ptr, offs + 1, inside)
    both = (scales_0, zeros_0, scales_1, zeros_1)
    even = _both_rows(words, *both, 0, BITS, DTYPE)
    odd = _both_rows(words, *both, 1, BITS, DTYPE)
    if BITS == 4:  # tile of k, tile of n, g, t, half tile, half word, h, q, p
        even = tl.join(even, _both_rows(words, *both, 2, BITS, DTYPE))
        odd = tl.join(odd, _both_rows(words, *both, 3, BITS, DTYPE))
        split = tl.join(even, odd).reshape(TILES_K, TILES_N, 8, 4, 2, 2, 2, 2, 2)
        ordered = split.permute(1, 6, 2, 0, 4, 3, 5, 7, 8)
    else:  # tile of k, tile of n, g, t, half word, q, h, p
        split = tl.join(even, odd).reshape(TILES_K, TILES_N, 8, 4, 2, 2, 2, 2)
        ordered = split.permute(1, 6, 2, 0, 3, 4, 5, 7)
    return ordered.reshape(BLOCK_N, BLOCK_K)


@triton.jit
def _tiles_kernel(
    x_ptr, words_ptr, scales_ptr, zeros_ptr, y_ptr, M, N, K, groups,
    GROUP: tl.constexpr, BITS: tl.constexpr, OPERAND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """One program owns a tile of y, BLOCK_M x BLOCK_N; it goes down GROUP_M rows of tiles before the next column.

    Weights are rounded to x's dtype, and multiplied in OPERAND.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_of_group = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = tl.program_id(0) // tiles_of_group * GROUP_M
    height = min(tiles_m - first_m, GROUP_M)
    within = tl.program_id(0) % tiles_of_group
    tile_m, tile_n = first_m + within % height, within // height
    # Rows past M wrap around to valid ones: the loop needs no mask for them, and they are not stored.
    offs_m = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + offs_m[:, None] * K + offs_k[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptrs) if EVEN_K else tl.load(x_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
        w = _weights(words_ptr, scales_ptr, zeros_ptr, tile_n * BLOCK_N, k, N, K, groups,
                     GROUP, BITS, BLOCK_N, BLOCK_K, x_ptr.dtype.element_ty)  # fmt: skip
        acc = tl.dot(x.to(OPERAND), w.to(OPERAND).T, acc, input_precision="ieee")
        x_ptrs += BLOCK_K
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    y_ptrs = y_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


@triton.jit
def _dequantise_kernel(
    words_ptr, scales_ptr, zeros_ptr, w_ptr, N, K, groups,
    GROUP: tl.constexpr, BITS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_N x BLOCK_K weights [n, k], written in the dtype of w."""
    first_n, first_k = tl.program_id(0) * BLOCK_N, tl.program_id(1) * BLOCK_K
    w = _weights(words_ptr, scales_ptr, zeros_ptr, first_n, first_k, N, K, groups,
                 GROUP, BITS, BLOCK_N, BLOCK_K, w_ptr.dtype.element_ty)  # fmt: skip
    offs_n, offs_k = first_n + tl.arange(0, BLOCK_N), first_k + tl.arange(0, BLOCK_K)
    w_ptrs = w_ptr + offs_n.to(tl.int64)[:, None] * K + offs_k[None, :]
    tl.store(w_ptrs, w, mask=(offs_n[:, None] < N) & (offs_k[None, :] < K))


def launch_tiles(bits, x, words, scales, zeros, n, group, *, config):
    """Launch ``_tiles_kernel`` for weights of so many bits; ``group`` 0: a scale for each row."""
    m, k = x.shape
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    # The interpreter's tl.dot multiplies the bit patterns of bf16 (triton#11584, closed as unsupported; so in 3.7.1).
    as_fp32 = x.device.type == "cpu" and x.dtype == torch.bfloat16
    sixteen = tl.bfloat16 if x.dtype == torch.bfloat16 else tl.float16
    launch(
        _tiles_kernel, (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),),
        x, words, scales, zeros, y, m, n, k, k // group if group else 1,
        GROUP=group, BITS=bits, OPERAND=tl.float32 if as_fp32 else sixteen, EVEN_K=k % config["BLOCK_K"] == 0, **config,
    )  # fmt: skip
    return y


def launch_dequantise(bits, words, scales, zeros, n, k, group, *, config):
    """The weights [n, k] that packed ones stand for, in the dtype of their scales."""
    w = torch.empty((n, k), dtype=scales.dtype, device=scales.device)
    grid = (triton.cdiv(n, config["BLOCK_N"]), triton.cdiv(k, config["BLOCK_K"]))
    launch(
        _dequantise_kernel, grid, words, scales, zeros, w, n, k, k // group if group else 1,
        GROUP=group, BITS=bits, **config,
    )  # fmt: skip
    return w


def launch_separate(bits, x, words, scales, zeros, n, group, *, config):
    """Write the weights in x's dtype, then leave the product to torch, which is cuBLAS."""
    w = launch_dequantise(bits, words, scales, zeros, n, x.shape[1], group, config=config)
    return torch.nn.functional.linear(x, w)


def launch_specialized(bits, x, words, scales, zeros, n, group, *, config):
    """Launch the kernel of Hopper's own file."""
    import kernels.hopper.matmul_w4a16 as hopper

    y = torch.empty((x.shape[0], n), dtype=x.dtype, device=x.device)
    programs = gpu_of(x.device).sms
    hopper.specialized(bits, x, words, scales, zeros, y, group, config=config, programs=programs)
    return y


# --- The operator and the public functions ---------------------------------------------------------------------------


def linear_operator(name, bits, declaration):
    """(linear, dequantise): the differentiable operator of x [m, k] with weights of so many bits, and their operator.

    ``declaration()`` is asked for variant and config.  x alone has a gradient, dy times the weights: they are written
    out in their dtype and the product is torch's.
    """

    def run_dequantise(words, scales, zeros, n, k, group):
        return launch_dequantise(bits, _aligned(words), scales, zeros, n, k, group, config=_DEQUANTISE)

    def run(x, words, scales, zeros, n, group):
        if not x.shape[0]:
            return x.new_empty((0, n))
        problem = case_of(x, zeros, n, group)
        variant, config = choose(declaration(), "forward", problem, x.device)
        scales, zeros = _aligned(scales), None if zeros is None else _aligned(zeros)
        return variant.launch(_aligned(x), _aligned(words), scales, zeros, n, group, config=config)

    def keep(ctx, inputs, output):
        x, words, scales, zeros, ctx.n, ctx.group = inputs
        ctx.save_for_backward(words, scales, zeros)
        ctx.k = x.shape[1]

    def pull_back(ctx, dy):
        return dy @ dequantise(*ctx.saved_tensors, ctx.n, ctx.k, ctx.group), None, None, None, None, None

    dequantise = CustomOperator(
        f"{name}_dequantise", "(Tensor words, Tensor scales, Tensor? zeros, int n, int k, int group) -> Tensor",
        run=run_dequantise, fake=lambda words, scales, zeros, n, k, group: scales.new_empty((n, k)),
    )  # fmt: skip
    linear = CustomOperator(
        name, "(Tensor x, Tensor words, Tensor scales, Tensor? zeros, int n, int group) -> Tensor",
        run=run, fake=lambda x, words, scales, zeros, n, group: x.new_empty((x.shape[0], n)),
    )  # fmt: skip
    return Differentiable(linear, setup_context=keep, backward=pull_back), dequantise


def _aligned(tensor):
    """The tensor, copied where it does not begin on 16 bytes."""
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def case_of(x, zeros, n, group):
    """The case of a call: ``group`` 0 for one scale a row."""
    return case(DTYPES[x.dtype], m=x.shape[0], n=n, k=x.shape[1], group=group, zeros=zeros is not None)


def call_linear(name, linear, input, packed):
    """``input`` [..., k] through a differentiable operator of ``linear_operator``, checked."""
    if autocasting():
        (input,) = autocast("linear", input)
    words, scales, zeros, n, k, group = packed
    if input.dtype != scales.dtype:
        raise TypeError(f"{name} takes an input of the dtype that was packed: {input.dtype}, {scales.dtype}")
    if not input.dim() or input.shape[-1] != k:
        raise ValueError(f"{name} takes an input of {k} features: {tuple(input.shape)}")
    if input.device != words.device:
        raise ValueError(f"{name} takes input and weights on one device: {input.device}, {words.device}")
    zeros = None if zeros is None else zeros.contiguous()
    rows = input.reshape(-1, k).contiguous()
    y = linear(rows, words.contiguous(), scales.contiguous(), zeros, n, group)
    return y.view(*input.shape[:-1], n)


def pack_w4(weight: torch.Tensor, group_size: int = 128, symmetric: bool = False) -> Packed:
    """Quantise the weights [n, k] of a linear layer, fp16 or bf16, to 4 bits and bring them into the kernels' order.

    Each row's groups of ``group_size`` (32, 64, 128) neighbours get a scale and, unless ``symmetric``, a zero point:
    16 levels from the least to the largest weight, zero among them.  Done once for a model; takes 3 bytes of scratch
    memory for a weight, and more for a short while.  Weights must be finite.

    Raises TypeError for other dtypes, ValueError for other shapes and group sizes and for k not a multiple of the
    group size.
    """
    check_weight("pack_w4", weight, group_size)
    q, scales, zeros = quantise_w4(weight.detach(), group_size, symmetric)
    zeros = None if zeros is None else by_row_tiles(zeros)
    return Packed(shuffle_w4(q), by_row_tiles(scales), zeros, *weight.shape, group_size)


_linear, _dequantise = linear_operator("matmul_w4a16", 4, lambda: DECLARATION)


def linear_w4a16(input: torch.Tensor, packed: Packed) -> torch.Tensor:
    """``torch.nn.functional.linear(input, weight)`` for weights that ``pack_w4`` has packed: [..., k] to [..., n].

    The input is of the dtype that the weights had, fp16 or bf16, in any strides; accumulates in fp32.  The input alone
    has a gradient: packed weights are frozen.

    Raises TypeError for an input of another dtype, ValueError for other sizes and devices.
    """
    return call_linear("linear_w4a16", _linear, input, packed)


def dequantise_w4(packed: Packed) -> torch.Tensor:
    """The weights [n, k] that packed ones stand for, (q - z) s, rounded to the dtype of their scales."""
    words, scales, zeros, n, k, group = packed
    return _dequantise(words, scales, zeros, n, k, group)


# --- Reference, inputs, peers ----------------------------------------------------------------------------------------


def dequantised(words, scales, zeros, rows, columns, group):
    """Plain torch, in the scales' dtype: exact in float64."""
    q = unshuffle_w4(words, rows, columns).to(scales.dtype).view(rows, columns // group, group)
    z = 8 if zeros is None else of_row_tiles(zeros, rows).to(scales.dtype)[..., None]
    return ((q - z) * of_row_tiles(scales, rows)[..., None]).view(rows, columns)


def _in_natural_order(words, scales, zeros, rows, columns):
    """(q [n, k], scales [n, groups], zeros [n, groups] in the scales' dtype)."""
    q, scales = unshuffle_w4(words, rows, columns), of_row_tiles(scales, rows).contiguous()
    zeros = torch.full_like(scales, 8) if zeros is None else of_row_tiles(zeros, rows).to(scales.dtype).contiguous()
    return q, scales, zeros


def _compiled(x, words, scales, zeros, n, group):
    """torch.compile of dequantisation and product, from numbers in their natural order, two in a byte."""

    def product(x, pairs, scales, zeros):
        q = torch.stack((pairs & 15, pairs >> 4), -1).view(n, scales.shape[1], -1)
        w = (q.to(x.dtype) - zeros[..., None]) * scales[..., None]
        return torch.nn.functional.linear(x, w.view(n, -1))

    q, scales, zeros = _in_natural_order(words, scales, zeros, n, x.shape[1])
    pairs = (q[:, ::2] | q[:, 1::2] << 4).contiguous()
    torch._dynamo.reset()
    fast = torch.compile(product, dynamic=False)
    fast(x, pairs, scales, zeros)
    return lambda: fast(x, pairs, scales, zeros)


def _torch_int4(x, words, scales, zeros, n, group):
    """torch's own kernel, (q - 8) s + c with c = (8 - z) s: bf16 alone, and not on every GPU."""
    if x.dtype != torch.bfloat16 or x.shape[1] % 128 or n % 64:
        raise NotImplementedError("torch's _weight_int4pack_mm is for bf16, k a multiple of 128 and n of 64")
    if x.shape[0] > 64:
        raise NotImplementedError("torch's _weight_int4pack_mm is written for few rows")
    q, scales, zeros = _in_natural_order(words, scales, zeros, n, x.shape[1])
    tiles = torch.ops.aten._convert_weight_to_int4pack((q[:, ::2] << 4 | q[:, 1::2]).contiguous(), 8)
    both = torch.stack((scales, (8 - zeros) * scales), -1).transpose(0, 1).contiguous()
    return lambda: torch.ops.aten._weight_int4pack_mm(x, tiles, group, both)


# --- Cases, declaration ----------------------------------------------------------------------------------------------


def sizes(problem: Case, bits: int) -> dict[str, float]:
    """Bytes of x, weights, scales, zero points and y."""
    m, n, k = problem["m"], problem["n"], problem["k"]
    size, groups = element_size(problem.dtype), k // problem["group"] if problem["group"] else 1
    found = {"x": m * k * size, "words": n * k * bits / 8, "scales": n * groups * size, "y": m * n * size}
    return found | ({"zeros": n * groups} if problem["zeros"] else {})


def common_cases(**given):
    """What weights of either width are timed at, with a group size and zero points as given."""
    return [
        *(case("bf16", m=m, n=8192, k=8192, **given) for m in (1, 4, 16, 32, 64, 512, 4096)),
        *(
            case("bf16", reason, m=m, n=n, k=k, **given)
            for m in (1, 16)
            for n, k, reason in (
                (14336, 4096, "feed-forward, up, of a model 4096 wide"),
                (4096, 14336, "feed-forward, down: few rows of weights, a long sum"),
                (28672, 8192, "feed-forward, up, of a model 8192 wide"),
            )
        ),
        case("bf16", "more rows, of x that every program reads, for fewer steps", m=32, n=14336, k=4096, **given),
    ]


_CASES = (
    *common_cases(group=128, zeros=True),
    case("fp16", "symmetric, in fp16", m=1, n=8192, k=8192, group=128, zeros=False),
    case("bf16", "small groups: more scales to read", m=1, n=8192, k=8192, group=32, zeros=True),
)

_EDGE_CASES = tuple(
    case(dtype, reason, m=m, n=n, k=k, group=group, zeros=zeros)
    for dtype in DTYPES.values()
    for (m, n, k, group, zeros), reason in (
        ((3, 48, 128, 64, True), "whole tiles of weights, two groups"),
        ((1, 16, 32, 32, True), "half a tile of weights, one row"),
        ((5, 40, 96, 32, True), "tails in m, n and k; two groups in a tile"),
        ((12, 40, 384, 128, True), "9 to 16 rows, tails in m and n; three groups of two tiles"),
        ((16, 40, 1152, 128, True), "k in parts of unequal length; nine groups of two tiles"),
        ((17, 33, 256, 128, False), "symmetric; 17 rows, a tail of one row of weights"),
        (
            (24, 72, 640, 128, True),
            "17 to 32 rows, tails in m and n; five groups in parts of unequal length",
        ),
        ((33, 72, 384, 128, True), "33 to 64 rows, of which the last 31 are one again; weights scaled in 16 bits"),
        ((64, 264, 576, 64, False), "64 rows; a tail in n for every block, half a step at the end; symmetric"),
        ((64, 512, 512, 128, True), "64 rows; whole blocks and steps, so that nothing is masked"),
        ((70, 70, 192, 64, True), "more rows than the kernel for few takes; three groups"),
        ((8, 1, 128, 128, True), "one row of weights"),
        ((40, 136, 64, 64, True), "more than 32 rows; rows of y of whole 16 bytes, as TMA writes them; a tail in n"),
        ((136, 24, 96, 32, False), "a third tile of 64 rows, tails in m, n and k for tiles of 128; three groups"),
        ((264, 8, 64, 64, True), "a second tile of 256 rows; fewer weights than a packed tile has"),
    )
)


def variants_of(bits):
    """The variants for weights of so many bits, the preferred one first."""
    return (
        Variant(
            name="fragments",
            summary="for few rows: packed words become operands of tensor cores where they were loaded; warps share k",
            launch=functools.partial(launch_fragments, bits),
            space=FRAGMENTS_SPACE,
            default=functools.partial(fragments_default, bits),
            fits=functools.partial(fits_fragments, bits),
            handles=decodes,
            needs=frozenset({Capability.TENSOR_CORES}),
        ),
        Variant(
            name="shared",
            summary="for few rows: the warps of a program share x and have columns of their own; programs share k",
            launch=functools.partial(launch_shared, bits),
            space=SHARED_SPACE,
            default=functools.partial(shared_default, bits),
            fits=functools.partial(fits_shared, bits),
            handles=functools.partial(shares, bits),
            needs=frozenset({Capability.TENSOR_CORES}),
        ),
        Variant(
            name="specialized",
            summary="for many rows: a warp loads x, two groups of four bring weights to 16 bits in wgmma's registers",
            launch=functools.partial(launch_specialized, bits),
            space=SPECIALIZED_SPACE,
            default=specialized_default,
            fits=fits_specialized,
            handles=specialises,
            needs=frozenset({Capability.WGMMA}),
        ),
        Variant(
            name="separate",
            summary="for many rows: the weights are written out in 16 bits, the product is cuBLAS's",
            launch=functools.partial(launch_separate, bits),
            space=SEPARATE_SPACE,
            default=lambda problem, gpu: dict(_DEQUANTISE),
            fits=fits_separate,
            handles=lambda problem, gpu: "" if problem["m"] > FEW_ROWS else f"no more than {FEW_ROWS} rows",
        ),
        Variant(
            name="tiles",
            summary="plain Triton: tiles of weights are brought to 16 bits between load and tl.dot",
            launch=functools.partial(launch_tiles, bits),
            space=TILES_SPACE,
            default=tiles_default,
            fits=fits_tiles,
        ),
    )


def declared(name, bits, summary, function, pack, dequantised, cases, edge_cases, peers):
    """The declaration of products with weights of so many bits.

    ``pack(weight, case)`` gives a case's weights, ``dequantised(words, scales, zeros, n, k, group)`` what they stand
    for in plain torch; ``peers`` are those beside torch's product with weights of 16 bits.
    """

    def inputs(problem: Case, device, generator):
        def draw(*shape):
            return torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)

        packed = pack(draw(problem["n"], problem["k"]), problem)
        x = draw(problem["m"], problem["k"])
        return {"x": x, "words": packed.words, "scales": packed.scales, "zeros": packed.zeros, "n": problem["n"],
                "group": problem["group"]}  # fmt: skip

    def reference(x, words, scales, zeros, n, group):
        return torch.nn.functional.linear(x, dequantised(words, scales, zeros, n, x.shape[1], group))

    def in_16_bits(x, words, scales, zeros, n, group):
        """What a user has without packed weights: torch's product with weights in x's dtype, dequantised before."""
        w = dequantised(words, scales.float(), zeros, n, x.shape[1], group).to(x.dtype)
        return lambda: torch.nn.functional.linear(x, w)

    def call(function, given):
        packed = (given[name] for name in ("words", "scales", "zeros", "n"))
        return function(given["x"], Packed(*packed, given["x"].shape[1], given["group"]))

    huge = dict(cases[0].sizes) | {"m": 2**18 + 1, "n": 64, "k": 8192}
    return Declaration(
        name=name,
        family="matmul",
        summary=summary,
        function=function,
        call=call,
        dtypes=tuple(DTYPES.values()),
        cases=lambda gpu: [c for c in cases if 4 * c["n"] * c["k"] <= gpu.memory_bytes // 8],
        edge_cases=edge_cases,
        huge_cases=(case("bf16", "offsets into x beyond 2^31", **huge),),
        differentiable=("x",),
        forward=Pass(
            inputs=inputs,
            reference=reference,
            outputs=("y",),
            variants=variants_of(bits),
            peers={"torch": Peer(in_16_bits)} | peers,
            bytes=lambda c: sizes(c, bits),
            flops=lambda c: {"x @ W^T": 2 * c["m"] * c["n"] * c["k"]},
            reduction=lambda c: c["k"],
        ),
    )


DECLARATION = declared(
    "matmul_w4a16",
    4,
    "y = x W^T, W of 4 bits with a scale and a zero point for each group",
    linear_w4a16,
    lambda weight, problem: pack_w4(weight, problem["group"], not problem["zeros"]),
    dequantised,
    _CASES,
    _EDGE_CASES,
    {"torch.compile": Peer(_compiled, compiles=True), "torch int4": Peer(_torch_int4)},
)
