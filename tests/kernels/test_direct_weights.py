"""Packed words to wgmma's first operand in `direct`: its own Gluon functions, and what every lane has in the end.

A stage's words, scales and zero points lie in shared memory as TMA brings them, the four products of each stage are
begun by the kernel's code, and each lane's weights are compared with those that PTX's manual gives it for the columns
of x that it multiplies.  Then faults are planted.
"""

import functools
import types

import numpy as np
import pytest
import torch
from gluon_by_lane import Moved, Shared, Slots, Tensor, as_python, held, number, rounded, run_ptx
from triton.experimental.gluon import language as gl

from kernels.common.packed import by_row_tiles
from kernels.matmul_w4a16 import direct_products, direct_weights
from kernels.matmul_w4a16.packing import shuffle_w4
from kernels.matmul_w8a16 import shuffle_w8

N, K = 192, 256
STAGES = K // 64
DTYPES = {"bf16": (torch.bfloat16, gl.bfloat16), "f16": (torch.float16, gl.float16)}

FORMATS = [(4, group, zeros) for group in (32, 64, 128) for zeros in (True, False)]
FORMATS += [(8, group, False) for group in (0, 32, 64, 128)]
"""Bits, weights of a scale (0: a row), zero points."""

GROUPS = [(0, 1, 2), (1, 2, 1), (2, 3, 1)]
"""Which 64 rows of a tile, of how many, and how many groups of warps take its stages in turns."""


def box(matrix, row, column, shape):
    """What TMA brings of a matrix: zeros where it has ended."""
    out, part = np.zeros(shape, np.int64), matrix[row : row + shape[0], column : column + shape[1]]
    out[: part.shape[0], : part.shape[1]] = part
    return out


@functools.lru_cache
def matrix(bits, group, has_zeros, kind):
    """Numbers, zero points and scales of a matrix of weights, and how all lie in memory."""
    random, groups = np.random.default_rng(bits + group), K // (group or K)
    q = torch.tensor(random.integers(0, 16, (N, K)) if bits == 4 else random.integers(-127, 128, (N, K)))
    zeros = torch.full((N, groups), 8 if bits == 4 else 0)
    if has_zeros:
        zeros = torch.tensor(random.integers(0, 16, (N, groups)))
    scales = torch.tensor(random.uniform(0.01, 2, (N, groups))).to(DTYPES[kind][0])
    words = shuffle_w4(q.to(torch.uint8)) if bits == 4 else shuffle_w8(q.to(torch.int8))
    return types.SimpleNamespace(
        q=q.numpy(),
        zeros=zeros.numpy(),
        scales=scales.double().numpy(),
        packed=words.view(N // 16, -1, 16).numpy(),
        packed_scales=by_row_tiles(scales).view(torch.int32).view(N // 16, -1).numpy(),
        packed_zeros=by_row_tiles(zeros.to(torch.uint8)).view(torch.int16).view(N // 16, -1).numpy(),
    )


def shared_memory(of, bits, group, has_zeros, w_groups):
    """Words, scales and zero points of all stages, as `_produce` has them brought."""
    pairs, lines, width = (w_groups + 1) // 2, 2 * bits, 16 if group == 32 else 8
    words = [
        Shared(of.packed[4 * part : 4 * part + 4, stage * lines : (stage + 1) * lines], 32)
        for stage in range(STAGES) for part in range(w_groups)
    ]  # fmt: skip
    at = [(8 * pair, stage * 64 // (group or K) * 8) for stage in range(STAGES) for pair in range(pairs)]
    scales = [Shared(box(of.packed_scales, *place, (8, width)), 32) for place in at] if group else []
    zeros = [Shared(box(of.packed_zeros, *place, (8, 16)), 16) for place in at] if has_zeros else []
    return Slots(words), Slots(scales), Slots(zeros)


class Rows:
    """Columns of x in a stage."""

    def __init__(self, stage, dtype, first=None):
        self.stage, self.dtype, self.first = stage, dtype, first

    def slice(self, first, count, dim):
        assert (count, dim) == (16, 1)
        return Rows(self.stage, self.dtype, first)

    def permute(self, order):
        assert order == (1, 0)
        return self


def products(bits, group, has_zeros, kind, part, w_groups, k_groups, replaced=None, edits=()):
    """(first column of x, weights by lane) of each product that a group of warps begins, of all that share its rows."""
    begun, dtype = [], DTYPES[kind][1]

    def multiply(weights, x, acc, is_async):
        assert is_async
        begun.append((64 * x.stage + x.first, weights))
        return acc

    nothing = types.SimpleNamespace(wait=lambda *_: None, arrive=lambda *_, count: None)
    instead = {"warpgroup_mma": multiply, "warpgroup_mma_wait": lambda _, deps: tuple(deps), "mbarrier": nothing,
               "pin": lambda *_: None}  # fmt: skip
    code = as_python([direct_weights, direct_products], instead | (replaced or {}), edits)
    layout = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]), 2)
    four = gl.BlockedLayout([1, 1, 1, 4], [1, 8, 4, 1], [4, 1, 1, 1], [3, 2, 1, 0])
    lane = Tensor([1, 1, 4, 1], held(four, (1, 1, 4, 1)), held(four, (1, 1, 4, 1)))
    packed = shared_memory(matrix(bits, group, has_zeros, kind), bits, group, has_zeros, w_groups)
    smems = Slots([Rows(stage, dtype) for stage in range(STAGES)]), *packed
    bars = (Slots(range(STAGES)),) * 2
    ptx = direct_weights.ptx_of(bits, group, kind == "bf16")
    making = code["packed_of_stage"], code["weights_of_half"]
    for step in range(k_groups):  # as in ``consume``
        weights = code["weights_of_stage"](
            smems, step, lane, *making, part, w_groups, bits, group, has_zeros, ptx, four
        )
        for at in range(step, STAGES, 2 * k_groups):
            following = at + k_groups + (k_groups if at + 2 * k_groups < STAGES else 0)
            _, weights = code["two_steps"](
                None, weights, smems, bars, at, following, lane, 1, *making, part, w_groups, k_groups, STAGES, bits,
                group, has_zeros, ptx, four, layout,
            )  # fmt: skip
    return begun


def fragment():
    """wgmma's A [64, 16] of 16 bits in registers, [warp, lane, register]: PTX ISA, "wgmma.mma_async.m64k16"."""
    warp, lane, i = np.ogrid[:4, :32, :8]
    return 16 * warp + lane // 4 + 8 * (i // 2 % 2), lane % 4 * 2 + i % 2 + 8 * (i // 4)


def count_of_wrong(bits, group, has_zeros, kind, part, w_groups, k_groups, **faults):
    """Weights, of all products and lanes, that are not the matrix's at the rows and the columns they are taken for."""
    of = matrix(bits, group, has_zeros, kind)
    factor = 1.0 if group else direct_weights.parts_of_one(bits, DTYPES[kind][1])  # of the sums, beside the row's scale
    rows, columns = fragment()
    rows, wrong = rows + 64 * part, 0
    begun = products(bits, group, has_zeros, kind, part, w_groups, k_groups, **faults)
    assert sorted(first for first, _ in begun) == list(range(0, K, 16)), "each product once"
    for first, weights in begun:
        at = columns + first
        wanted = of.q[rows, at] - of.zeros[rows, at // (group or K)].astype(np.float64)
        if group:
            wanted = number(rounded(wanted * of.scales[rows, at // group], kind), kind)
        wrong += (number(weights.bits, kind) * factor != wanted).sum()
    return wrong


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize(("bits", "group", "zeros"), FORMATS)
def test_every_lane_multiplies_its_own_weights_by_their_columns(bits, group, zeros, kind, groups):
    assert count_of_wrong(bits, group, zeros, kind, *groups) == 0


def test_the_operand_s_layout_is_that_of_the_manual():
    layout = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]), 2)
    assert np.array_equal(held(layout, (64, 16)), np.ravel_multi_index(fragment(), (64, 16)))


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("group", [0, 64])
def test_every_number_of_8_bits_becomes_itself_wherever_in_a_word_it_is(group, kind):
    numbers = np.arange(-127, 128)
    factor = 1.0 if group else direct_weights.parts_of_one(8, DTYPES[kind][1])
    for row, column in ((0, 0), (8, 0), (0, 1), (8, 1)):  # of the two rows and two columns of a word
        q = torch.zeros(16, 32 * len(numbers), dtype=torch.int8)
        q[row, column::32] = torch.tensor(numbers)
        words = shuffle_w8(q).view(len(numbers), -1)[:, 0].numpy()
        registers = {f"${8 + i}": words for i in range(4)}
        run_ptx(direct_weights.ptx_of(8, group, kind == "bf16")[0], registers)
        found = number(registers[f"${row // 8}"] >> 16 * column & 0xFFFF, kind)
        assert np.array_equal(found * factor, numbers)


# --- Faults ----------------------------------------------------------------------------------------------------------


def exchanged(name, one, other):
    """A layout of direct_weights, two of whose bases change places: (0 of registers, 1 of lanes; which)."""

    def layout(*arguments):
        made = getattr(direct_weights, name)(*arguments)
        bases = [list(made.reg_bases), list(made.lane_bases)]
        (i, j), (k, m) = one, other
        bases[i][j], bases[k][m] = bases[k][m], bases[i][j]
        return gl.DistributedLinearLayout(*bases, made.warp_bases, [], made.shape)

    return {"replaced": {name: layout}}


def edited(*edit):
    return {"edits": [edit]}


MOVED = [
    (4, 128, exchanged("_words_layout", (1, 1), (0, 0)), "words of two lanes for words of t / 2"),
    (4, 128, exchanged("_words_layout", (1, 0), (1, 1)), "t % 2 for t / 2"),
    (4, 128, exchanged("_words_layout", (1, 2), (1, 3)), "rows"),
    (4, 128, exchanged("_numbers_layout", (0, 0), (1, 2)), "the scales of row tiles in lanes"),
    (4, 128, edited("_words", "permute(0, 1, 4, 2, 3)", "permute(0, 1, 3, 2, 4)"), "a split between lanes"),
    (8, 0, exchanged("_words_layout", (1, 0), (1, 1)), "words of t"),
    (8, 0, exchanged("_words_layout", (0, 0), (1, 0)), "a lane's words among lanes"),
    (8, 0, exchanged("_words_layout", (1, 3), (1, 4)), "rows"),
    (8, 0, edited("_words", "permute(0, 2, 4, 3, 1)", "permute(0, 2, 3, 4, 1)"), "words for lanes"),
    (8, 0, edited("multiply_sixteen", "permute(0, 4, 1, 3, 2, 5)", "permute(0, 4, 1, 2, 3, 5)"), "columns"),
]

WRONG = [
    (4, 128, edited("_words", "* 0x1111 + 0x6240", "* -0x1111 + 0x7351"), "the bytes of t % 2 the other way round"),
    (4, 128, edited("_words", "[first, second, even_or_odd]", "[second, first, even_or_odd]"), "halves of a word"),
    (4, 128, edited("_words", "high = low\n", "high = second\n"), "words that are not permuted"),
    (4, 32, edited("weights_of_half", "PTX[HALF]", "PTX[0]"), "the lower half of the columns twice"),
    (4, 32, edited("_numbers", "if GROUP == 32 else first", "if GROUP == 0 else first"), "scales of the lower half"),
    (4, 32, edited("packed_of_stage", "W_GROUP, 2, GROUP", "W_GROUP, 2, 64"), "zero points of the lower half"),
    (4, 64, edited("_numbers", "W_GROUP % 2 == 0", "W_GROUP % 2 == 1"), "scales of other row tiles"),
    (8, 128, edited("packed_of_stage", "slot * PAIRS + W_GROUP // 2", "slot * PAIRS"), "scales of the first pair"),
    (8, 0, edited("_words", "return low, high", "return high, low"), "halves of the columns"),
    (8, 0, edited("multiply_sixteen", "gl.join(low, high)", "gl.join(high, low)"), "neighbours"),
    (8, 0, edited("multiply_sixteen", "permute(0, 4, 1, 3, 2, 5)", "permute(0, 3, 1, 4, 2, 5)"), "rows 8 apart"),
    (8, 0, edited("_go_on", "sixteen(acc, c, x, 32", "sixteen(acc, d, x, 32"), "a product"),
    (8, 0, edited("two_steps", "others, x, smems, bars, following", "others, x, smems, bars, step"), "an old stage"),
]


@pytest.mark.parametrize(("bits", "group", "fault"), [pytest.param(*case, id=what) for *case, what in MOVED])
def test_that_a_lane_lacks_what_it_needs_is_noticed(bits, group, fault):
    with pytest.raises(Moved):
        count_of_wrong(bits, group, bits == 4, "bf16", 2, 3, 1, **fault)


@pytest.mark.parametrize(("bits", "group", "fault"), [pytest.param(*case, id=what) for *case, what in WRONG])
def test_that_a_weight_is_another_s_is_noticed(bits, group, fault):
    assert count_of_wrong(bits, group, bits == 4, "bf16", 2, 3, 1, **fault) > 0
