"""Few rows of x times packed weights: what `fragments` and `shared` have in common.

Tensor cores are fed from a ring of asynchronous copies, in inline assembly: a packed word becomes an operand where it
was loaded.  The format is told in `matmul_w4a16`, of 8 bits in `matmul_w8a16`.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common.packed import sixteen, unpack_4, unpack_8

_LOADED = ("w0", "w1", "w2", "w3")


def _loaded(address, unpack):
    """PTX: what unpacks four words, put after their load from an address."""
    return f"{{ .reg .b32 w<4>; ld.shared.v4.b32 {{{', '.join(_LOADED)}}}, [{address}];\n{unpack}}}"


def unpack_4_asm(bf16):
    """PTX: four words at an address (16), less the zero points of two rows (20, 22), as the operands of four mma."""
    return _loaded("$16", unpack_4(bf16, _LOADED, ("$20", "$22")))


def unpack_8_asm(bf16):
    """PTX: four words of signs and magnitudes at an address (8) to operands of two mma (0..7)."""
    return _loaded("$8", unpack_8(bf16, _LOADED))


def scales_asm(bf16):
    """PTX: the scales of rows g and g + 8 at an address (4), in fp32, each twice (0..3); an infinite one is NaN.

    That is what an infinite weight would give: some of a group's numbers are 0.
    """
    lines = ["{ .reg .b32 t, u; .reg .f32 f, h; .reg .b16 a, b;", "ld.shared.b32 t, [$4];"]
    if bf16:
        lines.append("shl.b32 u, t, 16; mov.b32 f, u; and.b32 u, t, 0xffff0000; mov.b32 h, u;")
    else:
        lines.append("mov.b32 {a, b}, t; cvt.f32.f16 f, a; cvt.f32.f16 h, b;")
    lines.append("fma.rn.f32 $0, f, 0f00000000, f; mov.f32 $1, $0; fma.rn.f32 $2, h, 0f00000000, h; mov.f32 $3, $2; }")
    return "\n".join(lines)


def zeros_asm(bf16):
    """PTX: -(128 + z), for fp16 -(1024 + z), twice in 32 bits, of rows g and g + 8 at an address (4), each twice."""
    minus = sixteen(bf16)[1] | 0x80008000
    return (
        "{ .reg .b32 t; ld.shared.u16 t, [$4];\n"
        f"prmt.b32 $0, t, {minus}, 0x5050; mov.b32 $1, $0; prmt.b32 $2, t, {minus}, 0x5151; mov.b32 $3, $2; }}"
    )


def mma_asm(bf16, half):
    """PTX: 16 x 16 weights (4..7) times 16 of k of eight rows of x (words 2 half, 2 half + 1 of 8..11), plus 12..15."""
    kind, _, _ = sixteen(bf16)
    return (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
        f"{{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, {{${8 + 2 * half}, ${9 + 2 * half}}}, {{$12, $13, $14, $15}};"
    )


def _copy_asm(size):
    """PTX: begin to copy so many bytes of weights from 2 to 1, 0 where 3 is 0.  Nothing is to leave L2 for them."""
    return (
        "{ .reg .b64 once; createpolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
        f"cp.async.{'cg' if size == 16 else 'ca'}.shared.global.L2::cache_hint [$1], [$2], {size}, $3, once;\n"
        "mov.b32 $0, 0; }"
    )


def ring_asm(size, scales):
    """PTX: this thread's first word in a ring of so many bytes (0), and from a word of its to its scale (1).

    A ring of 0 bytes is where Triton's own shared memory begins.  Addresses are kept for each thread, none as a sum
    with a part that is the same for all threads: of such sums and a policy ptxas 12.8 makes instructions that are
    illegal.
    """
    declared, ring = (f".shared .align 16 .b8 ring[{size}];", "ring") if size else ("", "global_smem")
    return (
        f"{{ .reg .b32 t, r; {declared} mov.u32 r, {ring}; mov.u32 t, %tid.x;\n"
        f"mad.lo.u32 $0, t, 16, r; mad.lo.s32 $1, t, -12, {scales}; }}"
    )


def operands(kind, outputs, inputs):
    """Constraints of inline assembly, outputs in registers of their own."""
    return gl.constexpr(",".join([f"=&{kind}"] * outputs + ["r"] * inputs))


_MMA_OPERANDS = gl.constexpr(",".join(["=f"] * 4 + ["r"] * 8 + ["f"] * 4))
_UNPACK_4_OPERANDS = operands("r", 16, 8)
UNPACK_8_OPERANDS = operands("r", 8, 4)
_SCALES_OPERANDS = operands("f", 4, 4)
ZEROS_OPERANDS = operands("r", 4, 4)
READ_X_OPERANDS = operands("r", 4, 4)
COPY_4, COPY_16 = gl.constexpr(_copy_asm(4)), gl.constexpr(_copy_asm(16))
COPY_X = gl.constexpr("cp.async.cg.shared.global [$1], [$2], 16, $3; mov.b32 $0, 0;")
READ_X = gl.constexpr("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];")
COMMIT = gl.constexpr("cp.async.commit_group; mov.b32 $0, $1;")
WAIT_FOR_ALL = gl.constexpr("cp.async.wait_all; bar.sync 0; mov.b32 $0, $1;")
ORDER = gl.constexpr([5, 4, 3, 2, 1, 0])

OWN = 48 * 1024
"""Bytes of ring and last sum up to which inline assembly declares the ring: ptxas then knows how many programs run
beside each other, and leaves loads where they are.  A larger ring is Triton's, which asks the driver for so much."""


@gluon.jit
def copy(addresses, ptrs, inside, BYTES: gl.constexpr, ASM: gl.constexpr):
    """Begin to copy BYTES from each pointer to each address; zeros where not inside."""
    sizes = gl.where(inside, BYTES, 0)
    gl.inline_asm_elementwise(ASM, "=r,r,l,r", [addresses, ptrs, sizes], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def after(address, ASM: gl.constexpr):
    """The address, known only after an instruction: what is read there is read after it."""
    return gl.inline_asm_elementwise(ASM, "=r,r", [address], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def multiply(operand, x, acc, ASM: gl.constexpr):
    """acc + weights @ x^T of one mma instruction in each warp; the registers of a lane are the last dimension."""
    return gl.inline_asm_elementwise(ASM, _MMA_OPERANDS, [operand, x, acc],
                                     dtype=gl.float32, is_pure=True, pack=4)  # fmt: skip


@gluon.jit
def unpacked_4(addresses, minus, ASM: gl.constexpr):
    """Four packed words of a lane as the weights' operands of four mma instructions, zero points off."""
    return gl.inline_asm_elementwise(ASM, _UNPACK_4_OPERANDS, [addresses, minus],
                                     dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip


@gluon.jit
def load_scales(addresses, ASM: gl.constexpr):
    """Scales in fp32, for each accumulator of a lane."""
    return gl.inline_asm_elementwise(ASM, _SCALES_OPERANDS, [addresses], dtype=gl.float32, is_pure=True, pack=4)


@gluon.jit
def load_minus_zeros(addresses, HAS_ZEROS: gl.constexpr, BF16: gl.constexpr, ASM: gl.constexpr, layout: gl.constexpr):
    """-(128 + z), for fp16 -(1024 + z), twice in 32 bits, for each accumulator's row."""
    if HAS_ZEROS:
        minus = gl.inline_asm_elementwise(ASM, ZEROS_OPERANDS, [addresses], dtype=gl.int32, is_pure=True, pack=4)
    else:
        MINUS_8: gl.constexpr = 0xC308C308 - 2**32 if BF16 else 0xE408E408 - 2**32
        minus = gl.full([1, 1, 1, 1, 1, 4], MINUS_8, gl.int32, layout)
    return minus


@gluon.jit
def places(ROW_TILES: gl.constexpr, DEPTH: gl.constexpr, WARPS: gl.constexpr, layout: gl.constexpr):
    """(packed tile along n, along k of a warp's, warp, lane): indices along the dimensions 1 to 4."""
    row_tile = gl.set_auto_layout(gl.arange(0, ROW_TILES)[None, :, None, None, None, None], layout)
    depth = gl.set_auto_layout(gl.arange(0, DEPTH)[None, None, :, None, None, None], layout)
    warp = gl.set_auto_layout(gl.arange(0, WARPS)[None, None, None, :, None, None], layout)
    lane = gl.set_auto_layout(gl.arange(0, 32)[None, None, None, None, :, None], layout)
    return row_tile, depth, warp, lane


def m_tiles_of(m):
    return triton.next_power_of_2(triton.cdiv(m, 8))
