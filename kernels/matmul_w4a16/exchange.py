"""PTX that brings packed words to the lanes of wgmma's first operand, and makes 16 bits of them.

A lane (g, t) has of a packed tile eight neighbours along k, from 8 t on; of an operand's 16 columns it has two, from
2 t on, and two from 8 + 2 t on.  What the four lanes of a row exchange for that is a 4 x 4 matrix turned over.
"""

from kernels.common.packed import sixteen


def exchange_asm(units, lane):
    """PTX: unit s of lane t of four becomes unit t of lane s; ``units`` are registers, ``lane`` one with t in it."""
    lines = [".reg .pred p, q; .reg .b32 s, r;"]
    lines += [f"and.b32 s, {lane}, 1; setp.ne.u32 p, s, 0; and.b32 s, {lane}, 2; setp.ne.u32 q, s, 0;"]
    for i, j, predicate, mask in ((0, 1, "p", 1), (2, 3, "p", 1), (0, 2, "q", 2), (1, 3, "q", 2)):
        a, b = units[i], units[j]
        lines += [f"selp.b32 s, {a}, {b}, {predicate};", f"shfl.sync.bfly.b32 r, s, {mask}, 0x1f, 0xffffffff;"]
        lines += [f"selp.b32 {a}, r, {a}, {predicate};", f"selp.b32 {b}, {b}, r, {predicate};"]
    return lines


def exchange_4_asm():
    """PTX: a lane's four words (4..7) to those of its eight columns of a fragment; (8) is the lane of four.

    Word s then has the numbers that lane s had: number h + 2 half + 4 p is row g + 8 h, column 32 half + 8 s + 2 t + p.
    """
    units = [f"${i}" for i in range(4)]
    lines = ["{"]
    for w in range(2):
        for q in range(2):
            lines.append(f"prmt.b32 ${2 * w + q}, ${4 + w}, ${6 + w}, {(0x6240, 0x7351)[q]};")
    return "\n".join([*lines, *exchange_asm(units, "$8"), "}"])


def exchange_8_asm():
    """PTX: the same of words of 8 bits, whose numbers are in place."""
    units = [f"${i}" for i in range(4)]
    lines = ["{", *(f"mov.b32 ${i}, ${4 + i};" for i in range(4))]
    return "\n".join([*lines, *exchange_asm(units, "$8"), "}"])


def half_4_asm(bf16, half):
    """PTX: of four exchanged words (8..11), minus zero points (12), the operands of a half's two products."""
    kind, magic, one = sixteen(bf16)
    minus = magic | 0x80008000
    lines = [f"{{ .reg .b32 t, one, z0, z1; mov.b32 one, {one};"]
    lines += [f"prmt.b32 z0, $12, {minus}, 0x5050; prmt.b32 z1, $12, {minus}, 0x5151;"]
    for s in range(4):
        for h in range(2):
            shift = 8 * half + 4 * h
            lines.append(f"shr.u32 t, ${8 + s}, {shift};" if shift else f"mov.b32 t, ${8 + s};")
            lines.append(f"lop3.b32 t, t, 0x000f000f, {magic}, 0xea;")
            lines.append(f"fma.rn.{kind}x2 ${2 * s + h}, t, one, z{h};")
    return "\n".join([*lines, "}"])
