"""The gradient by `direct` turned over: every lane's weights and their columns, sums put in order, parts, the choice.

As in test_direct_weights the kernel's own Gluon functions run as plain Python; then faults are planted.
"""

import contextlib

import numpy as np
import pytest
import torch
from gluon_by_lane import Moved, Shared, Slots, as_python, number, rounded
from test_direct_parts import stored
from test_direct_weights import DTYPES, FORMATS, K, N, Rows, box, edited, fragment, matrix
from triton.experimental.gluon import language as gl

from kernels.matmul_w4a16 import direct_parts, direct_products, direct_pull_weights
from kernels.matmul_w4a16.pull_space import (
    best_direct_pull,
    best_few_pull,
    best_light_pull,
    pulls_directly,
    pulls_lightly,
)

STAGES = N // 64
MODULES = [direct_pull_weights, direct_products, direct_parts]


class Sums:
    """Sums with what ``in_order`` asks of Gluon's."""

    def __init__(self, numbers):
        self.numbers, self.shape = numbers, list(numbers.shape)

    def reshape(self, shape):
        return Sums(self.numbers.reshape(shape))

    def permute(self, *order):
        return Sums(self.numbers.permute(order))


def in_order(numbers):
    """Numbers [64, ...] of a group's sums by ``in_order``."""
    return as_python(MODULES)["in_order"](Sums(numbers)).numbers


def shared_memory(of, bits, group, has_zeros, first, w_groups):
    """Words, scales and zero points of all stages, of columns from ``first`` on, as `_produce` has them brought."""
    lines, width = 2 * bits, 16 if group == 32 else 8
    places = [(4 * stage, first + 64 * part) for stage in range(STAGES) for part in range(w_groups)]
    numbers = [(row, column // group * 8 if group else 0) for row, column in places]
    words = [Shared(box(of.packed, row, column // 64 * lines, (4, lines, 16)), 32) for row, column in places]
    scales = [Shared(box(of.packed_scales, *at, (4, width)), 32) for at in numbers]
    zeros = [Shared(box(of.packed_zeros, *at, (4, 16)), 16) for at in numbers] if has_zeros else []
    return Slots(words), Slots(scales), Slots(zeros)


def products(bits, group, has_zeros, kind, first, part, w_groups, replaced=None, edits=()):
    """(first column of dy, weights by lane) of each product that a group of warps begins."""
    begun, k_groups = [], 2 // w_groups

    def multiply(weights, dy, acc, is_async):
        assert is_async
        begun.append((64 * dy.stage + dy.first, weights))
        return acc

    class Bars:
        wait, arrive = staticmethod(lambda *_: None), staticmethod(lambda *_, count: None)

    instead = {"warpgroup_mma": multiply, "warpgroup_mma_wait": lambda _, deps: tuple(deps), "mbarrier": Bars,
               "pin": lambda *_: None}  # fmt: skip
    code = as_python(MODULES, instead | (replaced or {}), edits)
    layout = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]), 2)
    four = gl.BlockedLayout([1, 1, 1, 4], [1, 8, 4, 1], [4, 1, 1, 1], [3, 2, 1, 0])
    packed = shared_memory(matrix(bits, group, has_zeros, kind), bits, group, has_zeros, first, w_groups)
    smems = Slots([Rows(stage, DTYPES[kind][1]) for stage in range(STAGES)]), *packed
    bars = (Slots(range(STAGES)),) * 2
    ptx = direct_pull_weights.ptx_of(bits, kind == "bf16")
    making = code["packed_of_stage"], code["weights_of_half"]
    for step in range(min(k_groups, STAGES // 2)):  # whole turns alone
        weights = code["weights_of_stage"](smems, step, 0, *making, part, w_groups, bits, group, has_zeros, ptx, four)
        code["two_steps"](
            None, weights, smems, bars, step, step + k_groups, 0, 1, *making, part, w_groups, k_groups, STAGES, bits,
            group, has_zeros, ptx, four, layout,
        )  # fmt: skip
    return begun


def count_of_wrong(bits, group, has_zeros, kind, first, part, w_groups, **faults):
    """Weights, of all products and lanes, that are not the matrix's where sums are written."""
    of, wrong = matrix(bits, group, has_zeros, kind), 0
    rows, at = fragment()  # of wgmma's first operand: a row is a column of dx, a column one of dy
    columns = torch.empty(64, dtype=torch.int64)
    columns[in_order(torch.arange(64)[:, None].expand(64, 8))[:, 0]] = torch.arange(64)
    columns = first + 64 * part + columns.numpy()[rows]
    begun = products(bits, group, has_zeros, kind, first, part, w_groups, **faults)
    assert begun
    for begin, weights in begun:
        n = begin + at
        wanted = of.q[n, columns] - of.zeros[n, columns // (group or K)].astype(np.float64)
        wanted = number(rounded(wanted * of.scales[n, columns // (group or K)], kind), kind)
        wrong += (number(weights.bits, kind) != wanted).sum()
    return wrong


@pytest.mark.parametrize(("first", "part", "w_groups"), [(64, 0, 1), (0, 0, 2), (128, 1, 2)])
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize(("bits", "group", "zeros"), FORMATS)
def test_every_lane_multiplies_weights_of_the_columns_that_its_sums_are_written_to(
    bits, group, zeros, kind, first, part, w_groups
):
    assert count_of_wrong(bits, group, zeros, kind, first, part, w_groups) == 0


FAULTS = [
    (4, 128, edited("_words", "permute(3, 1, 2, 0)", "permute(0, 1, 2, 3)"), "row tiles for warps"),
    (4, 32, edited("packed_of_stage", "2 if GROUP == 32 else 1, GROUP", "2, 64"), "scales of the lower half"),
    (4, 32, edited("packed_of_stage", "at), 2, GROUP", "at), 2, 64"), "zero points of the lower half"),
    (4, 64, edited("packed_of_stage", "slot * W_GROUPS + W_GROUP", "slot * W_GROUPS"), "the other group's columns"),
    (8, 0, edited("_words", "return low, high", "return high, low"), "halves of a stage's rows"),
    (8, 0, edited("weights_of_half", "PTX[HALF], _HALF_8_OPERANDS", "PTX[0], _HALF_8_OPERANDS"), "scales of two tiles"),
    (8, 0, edited("_go_on", "multiply_sixteen(acc, c, x, 32", "multiply_sixteen(acc, d, x, 32"), "a product"),
]


@pytest.mark.parametrize(("bits", "group", "fault"), [pytest.param(*case, id=what) for *case, what in FAULTS])
def test_that_a_weight_is_another_s_is_noticed(bits, group, fault):
    with contextlib.suppress(Moved):  # a lane lacks what it needs
        assert count_of_wrong(bits, group, bits == 4, "bf16", 128, 1, 2, **fault) > 0


@pytest.mark.parametrize(("m", "k", "rows", "groups", "parts"), [
    (300, 400, 256, 2, 3), (70, 136, 64, 1, 2), (1100, 72, 128, 1, 2),
])  # fmt: skip
def test_parts_are_added_in_their_order_and_written_as_tiles_are(m, k, rows, groups, parts):
    columns, whole, band = 64 * groups, 1, 8
    tiles_m, tiles_k = -(-m // rows), -(-k // columns)
    cut = tiles_m * tiles_k - whole
    draw = torch.Generator().manual_seed(0)
    sums = torch.randint(-9, 10, (parts, cut, groups, 64, rows), generator=draw).float()
    memory = torch.stack([stored(one) for one in sums.flatten(0, 2)]).view(parts, cut, groups, -1)
    expected = torch.full((m, k), torch.nan, dtype=torch.float16)
    for tile in range(whole, tiles_m * tiles_k):
        first = tile // (band * tiles_k) * band
        height, within = min(tiles_m - first, band), tile % (band * tiles_k)
        at_m, at_k = (first + within % height) * rows, within // height * columns
        block = torch.cat([in_order(one) for one in sums.sum(0)[tile - whole]]).t()
        expected[at_m : at_m + rows, at_k : at_k + columns] = block[: m - at_m, : k - at_k]
    dx = torch.full((m, k), torch.nan, dtype=torch.float16)
    direct_parts.sum_tiles_kernel[(cut * groups * (rows // 32),)](
        memory, dx, m, k, whole, cut, PARTS=parts, BLOCK_M=rows, BLOCK_N=columns, GROUP_M=band, ROWS_AT_ONCE=32,
        TURNED=True, EARLY=False,
    )  # fmt: skip
    assert torch.equal(dx.nan_to_num(99), expected.nan_to_num(99))


@pytest.mark.parametrize(("sizes", "directly"), [
    ((64, 4096, 4096), True), ((256, 6144, 5376), True), ((1024, 4096, 4096), True),  # large weights
    ((66, 1536, 1536), False), ((509, 1024, 1536), False), ((700, 5120, 3072), False),  # small ones, or many rows
    ((128, 2048, 1536), True), ((512, 4096, 4096), False),  # in clusters; those would be of large tiles
    ((40, 1032, 96), True), ((33, 2080, 160), True),  # little
])  # fmt: skip
def test_large_weights_are_multiplied_as_they_are_and_small_ones_written_out(sizes, directly):
    assert pulls_directly(*sizes, 132) == directly


@pytest.mark.parametrize("m", [33, 64, 65, 129, 257, 5000])
@pytest.mark.parametrize(("n", "k"), [(8, 64), (1024, 28672), (28672, 1024), (64, 64)])
def test_every_product_has_a_config_no_more_parts_than_turns(m, n, k):
    config = best_direct_pull(m, n, k, 132)[1]
    assert config["W_GROUPS"] * config["K_GROUPS"] == 2
    assert config["SPLITS"] <= max(1, -(-n // (128 * config["K_GROUPS"])))


@pytest.mark.parametrize(("sizes", "rows", "programs"), [
    ((8, 13824, 1024), 16, 216), ((3, 3072, 1536), 16, 96), ((20, 2048, 3072), 32, 132), ((16, 4096, 4096), 16, 256),
])  # fmt: skip
def test_parts_of_few_rows_fill_multiprocessors_once_or_twice(sizes, rows, programs):
    config = best_few_pull(*sizes, 132)[1]
    assert (config["BLOCK_M"], config["SPLITS"] * -(-sizes[2] // 256)) == (rows, programs)


@pytest.mark.parametrize(("sizes", "config"), [  # us of what there was else and of `light` turned over on an H200
    ((4, 2048, 2048), (16, 128, 6)),  # 4 bits: 6.9, 4.7
    ((16, 2048, 1536), (16, 128, 8)),  # 4 bits: 6.6, 4.2
    ((27, 1152, 3584), (32, 128, 4)),  # 4 bits: 8.1, 5.3
    ((32, 2560, 2560), (32, 128, 5)),  # 4 bits: 9.0, 6.4
    ((55, 1024, 1536), (64, 64, 4)),  # 8 bits: 6.4, 4.1
    ((40, 3072, 3072), (64, 128, 4)),  # 8 bits: 10.9, 9.0
    ((64, 1408, 4608), (64, 128, 3)),  # 8 bits: 9.6, 7.6
    ((101, 1536, 2816), (128, 128, 5)),  # 4 bits: 9.9, 7.8
    ((128, 2048, 1536), (128, 64, 4)),  # 8 bits: 8.3, 6.6
    ((96, 1280, 5120), None),  # 8 bits: 9.9, 9.2
    ((129, 1024, 1536), None), ((64, 4096, 4096), None), ((16, 4096, 4096), None),  # not timed
    ((20, 72, 17408), None), ((1, 8, 2**26), None), ((32, 2**27, 64), None),
])  # fmt: skip
def test_gradients_of_few_rows_and_little_weight_go_to_whom_measurements_say(sizes, config):
    assert pulls_lightly(*sizes, 132) == (config is not None)
    assert config is None or tuple(best_light_pull(*sizes, 132)[1].values()) == config


@pytest.mark.parametrize("m", [1, 16, 17, 33, 65, 128])
@pytest.mark.parametrize("n", [8, 64, 520, 4096])
@pytest.mark.parametrize("k", [32, 160, 2080, 16896])
def test_no_program_of_a_gradient_is_without_a_step_and_all_run_at_once(m, n, k):
    us, config = best_light_pull(m, n, k, 132)
    assert us > 0 and config["CLUSTER"] <= -(-n // 64) and m <= config["BLOCK_M"]
    assert -(-k // config["COLUMNS"]) * config["CLUSTER"] <= 132
