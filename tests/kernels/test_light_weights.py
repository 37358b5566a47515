"""Packed words to blocks of 16 bits in `light`: its own Gluon functions, and what every lane writes in the end.

Words, scales and zero points of a step lie in shared memory as TMA brings them; then faults are planted.  As in
test_direct_weights the kernel's Gluon functions run as plain Python.
"""

import numpy as np
import pytest
from gluon_by_lane import Moved, Shared, as_python, number, rounded
from test_direct_weights import DTYPES, FORMATS, K, N, box, edited, matrix
from triton.experimental.gluon import language as gl

from kernels.matmul_w4a16 import light_weights
from kernels.matmul_w4a16.direct_weights import parts_of_one


def count_of_wrong(bits, group, has_zeros, kind, turns, gradient=False, **faults):
    """Weights of all steps that are not the matrix's at the row and the column they are written to.

    A ``gradient`` has them scaled, also by rows' scales, as of a group that no step leaves.
    """
    code = as_python([light_weights], faults.get("replaced"), faults.get("edits", ()))
    of, dtype, wrong = matrix(bits, group, has_zeros, kind), DTYPES[kind][1], 0
    scaled = bool(group) or gradient
    factor = 1.0 if scaled else parts_of_one(bits, dtype)  # of the sums, beside the row's scale
    of_weights, of_step = group or 128 * gradient, max(1, 64 * turns // (group or K))
    asm = light_weights.asm_of(bits, of_weights, kind == "bf16")
    for row in range(0, N, 64):
        for column in range(0, K, 64 * turns):
            line, at = column // 64 * 2 * bits, (row // 16, column // (group or K) * 8)
            words = Shared(of.packed[row // 16 : row // 16 + 4, line : line + 2 * bits * turns], 32)
            scales = Shared(box(of.packed_scales, *at, (8, 8 * of_step)), 32)
            zeros = Shared(box(of.packed_zeros, *at, (8, max(16, 8 * of_step))), 16)
            made = code["weights_of"](words, scales, zeros, turns, bits, of_weights, has_zeros, asm, dtype)
            assert sorted(made.elements.reshape(-1)) == list(range(64 * 64 * turns)), "each weight once"
            n, k = row + made.elements // (64 * turns), column + made.elements % (64 * turns)
            wanted = of.q[n, k] - of.zeros[n, k // (group or K)].astype(np.float64)
            if scaled:
                wanted = number(rounded(wanted * of.scales[n, k // (group or K)], kind), kind)
            wrong += (number(made.bits, kind) * factor != wanted).sum()
    return wrong


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize(("bits", "group", "zeros"), FORMATS)
def test_every_weight_is_written_to_its_row_and_column(bits, group, zeros, kind, turns):
    assert count_of_wrong(bits, group, zeros, kind, turns) == 0
    assert group or count_of_wrong(bits, group, zeros, kind, turns, gradient=True) == 0


def test_a_lane_writes_eight_neighbours_of_a_row():
    """Which are 16 bytes of a line of shared memory."""
    of = matrix(8, 64, False, "bf16")
    words, scales = Shared(of.packed[:4, :16], 32), Shared(box(of.packed_scales, 0, 0, (8, 8)), 32)
    asm = light_weights.asm_of(8, 64, True)
    made = as_python([light_weights])["weights_of"](words, scales, None, 1, 8, 64, False, asm, gl.bfloat16)
    neighbours = np.sort(made.elements, -1).reshape(4, 32, -1, 8)
    assert (np.diff(neighbours, axis=-1) == 1).all() and not (neighbours[..., 0] % 8).any()


ORDER = "permute(0, 5, 2, 1, 6, 3, 7, 4, 8)"

WRONG = [
    (4, 128, edited("weights_of", ORDER, "permute(0, 5, 2, 1, 7, 3, 6, 4, 8)"), "halves"),
    (4, 128, edited("weights_of", "gl.join(first, second)", "gl.join(second, first)"), "neighbours"),
    (4, 32, edited("weights_of", "_unpacked_4(words, zeros_high, UNPACK)", "_unpacked_4(words, zeros, UNPACK)"),
     "zero points of the lower half"),
    (4, 64, edited("_numbers", "every, _ = every.reshape([2, 4,", "_, every = every.reshape([2, 4,"),
     "other row tiles"),
    (8, 32, edited("weights_of", "_scaled(c, high, SCALE)", "_scaled(c, low, SCALE)"), "scales of the lower half"),
    (8, 0, edited("weights_of", "low, high = words", "high, low = words"), "tiles of a turn"),
    (8, 0, edited("weights_of", ORDER, "permute(0, 4, 2, 1, 6, 3, 7, 5, 8)"), "rows 8 apart"),
]  # fmt: skip


@pytest.mark.parametrize(("bits", "group", "fault"), [pytest.param(*case, id=what) for *case, what in WRONG])
def test_that_a_weight_is_another_s_is_noticed(bits, group, fault):
    assert count_of_wrong(bits, group, bits == 4, "bf16", 1 if group == 64 else 2, **fault) > 0


def test_that_a_lane_lacks_a_word_is_noticed():
    def layout(bits, turns):
        made = light_weights._words_layout(bits, turns)
        lanes = [made.lane_bases[i] for i in (1, 0, 2, 3, 4)]
        return gl.DistributedLinearLayout(made.reg_bases, lanes, made.warp_bases, [], made.shape)

    with pytest.raises(Moved):
        count_of_wrong(8, 0, False, "bf16", 2, replaced={"_words_layout": layout})
