"""Numbers of fp32 as sums of bf16, made in registers on their way to shared memory, and their products (Hopper, Gluon).

Three terms hold all 24 bits of a number, two hold 16; each is cut off but for the last, so that all have the number's
sign, and none is infinite where the number is finite.  What is left of an infinity is NaN.  `bf16_terms` makes them in
memory instead; of six products and what tensor cores cut off see kernels/matmul/hopper_bf16x6.py.  Two terms make three
products, which leave out 2^-14 of a product at most; rounding to tf32 changes one by up to 2^-10.

The conversions are PTX: Triton's own of a single element, cut off, runs at a quarter of the rate (Triton 3.6).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma


@gluon.jit
def _three_terms(x):
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 c0, c1, l0, l1;
        cvt.rz.bf16x2.f32 $0, $4, $3;
        and.b32 c0, $3, 0xffff0000;
        and.b32 c1, $4, 0xffff0000;
        sub.f32 l0, $3, c0;
        sub.f32 l1, $4, c1;
        prmt.b32 $1, l0, l1, 0x7632;
        and.b32 c0, l0, 0xffff0000;
        and.b32 c1, l1, 0xffff0000;
        sub.f32 l0, l0, c0;
        sub.f32 l1, l1, c1;
        cvt.rn.bf16x2.f32 $2, l1, l0;
        }""",
        "=&r,=&r,=&r,r,r", [x], dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16), is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def _two_terms(x):
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 c0, c1, l0, l1;
        cvt.rz.bf16x2.f32 $0, $3, $2;
        and.b32 c0, $2, 0xffff0000;
        and.b32 c1, $3, 0xffff0000;
        sub.f32 l0, $2, c0;
        sub.f32 l1, $3, c1;
        cvt.rn.bf16x2.f32 $1, l1, l0;
        }""",
        "=&r,=&r,r,r", [x], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def _first_term(x):
    return gl.inline_asm_elementwise(
        "cvt.rz.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def allocate_terms(SLOTS: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr, TERMS: gl.constexpr):
    """Shared memory of SLOTS blocks of each of 2 or 3 terms, as wgmma reads it.

    One allocation for all terms would cost a barrier for each store.
    """
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLUMNS], gl.bfloat16)
    first = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, ROWS, COLUMNS], layout)
    second = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, ROWS, COLUMNS], layout)
    third = second
    if TERMS == 3:
        third = gl.allocate_shared_memory(gl.bfloat16, [SLOTS, ROWS, COLUMNS], layout)
    return first, second, third


@gluon.jit
def write_terms(smem, slot, x, TERMS: gl.constexpr):
    """Write the first TERMS terms of x to ``slot``: of a single one the others are not made."""
    if TERMS == 1:
        smem[0].index(slot).store(_first_term(x))
    elif TERMS == 2:
        first, second = _two_terms(x)
        smem[0].index(slot).store(first)
        smem[1].index(slot).store(second)
    else:
        first, second, third = _three_terms(x)
        smem[0].index(slot).store(first)
        smem[1].index(slot).store(second)
        smem[2].index(slot).store(third)


@gluon.jit
def _block(smem, slot, TURN: gl.constexpr):
    block = smem.index(slot)
    return block.permute((1, 0)) if TURN else block


@gluon.jit
def multiply_terms(sums, a_smem, b_smem, slot, add, TERMS: gl.constexpr, A_TURN: gl.constexpr, B_TURN: gl.constexpr):
    """Start ``sums`` (if ``add``) + A B by terms, small products first; a block's transpose was written if TURN."""
    a0 = _block(a_smem[0], slot, A_TURN)
    b0 = _block(b_smem[0], slot, B_TURN)
    if TERMS == 1:
        return warpgroup_mma(a0, b0, sums, use_acc=add, is_async=True)
    a1 = _block(a_smem[1], slot, A_TURN)
    b1 = _block(b_smem[1], slot, B_TURN)
    if TERMS == 3:
        a2 = _block(a_smem[2], slot, A_TURN)
        b2 = _block(b_smem[2], slot, B_TURN)
        sums = warpgroup_mma(a0, b2, sums, use_acc=add, is_async=True)
        sums = warpgroup_mma(a2, b0, sums, is_async=True)
        sums = warpgroup_mma(a1, b1, sums, is_async=True)
        sums = warpgroup_mma(a0, b1, sums, is_async=True)
    else:
        sums = warpgroup_mma(a0, b1, sums, use_acc=add, is_async=True)
    sums = warpgroup_mma(a1, b0, sums, is_async=True)
    return warpgroup_mma(a0, b0, sums, is_async=True)
