"""Sums through a cluster's shared memory: the module's Gluon functions, Triton's layouts, each program's memory.

Time is not modelled: what barriers order is a GPU's to show (``tests/gpu/test_gluon_products.py``).
"""

import itertools
import types
from collections import Counter

import numpy as np
import pytest
import torch
from gluon_by_lane import as_python, held, rounded, run_ptx, shape_of
from triton.experimental.gluon import language

from kernels.common import clusters
from kernels.matmul.clustered import CLUSTERED_SPACE, multiplies_in_clusters
from kernels.matmul.hopper_clustered import ring_and_room
from kernels.matmul_w4a16 import direct_parts

in_order = as_python([direct_parts])["in_order"]
BUFFERS = 4096  # where they begin: any address will do


class Sums(np.ndarray):
    """A program's sums [P, Q], of which Gluon's layout can be asked."""

    @property
    def type(self):
        return types.SimpleNamespace(layout=self.layout)


class Loaded(np.ndarray):
    """Sums that were sent."""

    def to(self, dtype, bitcast):
        assert bitcast and dtype is language.float32
        return self


class Numbers(np.ndarray):
    """Integers, with Gluon's way to widen them."""

    def to(self, dtype):
        assert dtype.is_int()
        return self.astype(np.int64)


class Written:
    """y [M, N] of 16 bits, which begins at 0: ``add`` counts numbers, as pointers do."""

    def __init__(self, M, N, kind):
        self.numbers, self.kind = np.full((M, N), -1), kind
        self.dtype = types.SimpleNamespace(element_ty=language.bfloat16 if kind == "bf16" else language.float16)

    def __add__(self, offsets):
        return offsets


class Cluster:
    """C programs with groups of W warps: what is sent to whom, what its barriers await and have counted."""

    def __init__(self, layout, size, edits=()):
        self.layout, self.memory = layout, [np.full(2**17, np.nan) for _ in range(size)]
        self.awaited, self.counted = [Counter() for _ in range(size)], [Counter() for _ in range(size)]
        self.functions = as_python([clusters], {"BARRIERS": clusters.BARRIERS.value}, edits)
        self.functions["send"].__globals__["gl"] = self

    def __getattr__(self, name):
        return getattr(language, name)

    def arange(self, begin, end, layout):
        self.flat = layout
        return np.arange(begin, end).view(Numbers)

    zeros_like, static_range, to_tensor = staticmethod(np.zeros_like), range, int
    where, minimum = staticmethod(lambda *of: np.where(*of).view(Numbers)), staticmethod(min)

    def inline_asm_elementwise(self, asm, constraints, args, dtype, is_pure, pack):
        if constraints is clusters._OF_WRITE:
            return self._write(asm, *args)
        if asm in (clusters._SEND, clusters._LOAD):
            given = np.broadcast_arrays(*args)
            lanes = held(self.layout if asm is clusters._SEND else self.flat, given[0].shape)
            registers = [one.reshape(-1)[lanes].reshape(-1, pack) for one in given]
            assert all((one == one[:, :1]).all() for one in registers[asm is clusters._SEND :])
            return self._send(*registers) if asm is clusters._SEND else self._load(given[0].shape, lanes, *registers)
        if asm is clusters._EXPECT:
            barrier, count = args
            self.awaited[self.rank][int(barrier)] += int(count)
            return None
        return BUFFERS if asm is clusters._DYNAMIC else 0

    def _send(self, sums, places, owners, barriers):
        for four, place, owner, barrier in zip(sums, places[:, 0], owners[:, 0], barriers[:, 0], strict=True):
            assert place % 16 == 0
            where = slice(place // 4, place // 4 + 4)
            assert np.isnan(self.memory[owner][where]).all(), "sent to where something lies"
            self.memory[owner][where] = four
            self.counted[owner][int(barrier)] += 16 * (owner != self.rank)  # its own are stored

    def _load(self, shape, lanes, places):
        found = np.empty(np.prod(shape))
        found[lanes.reshape(-1)] = self.memory[self.rank][places[:, :1] // 4 + np.arange(4)].reshape(-1)
        return found.reshape(shape).view(Loaded)

    def _write(self, asm, sums, places, there):
        lanes = held(self.flat, sums.shape)
        of_lane = [np.broadcast_to(one, sums.shape).reshape(-1)[lanes] for one in (sums, places, there)]
        words = np.nan_to_num(of_lane[0], nan=12345).astype(np.float32).view(np.uint32).astype(np.int64)
        registers = {f"${4 + i}": words[..., i : i + 1] for i in range(4)} | {"$12": of_lane[2][..., :1]}
        run_ptx(asm.partition("@there st.global.v2")[0] + "mov.b32 $0, low; mov.b32 $1, high", registers)
        for i, at in enumerate(of_lane[1][..., 0].reshape(-1)):
            if registers["$12"].reshape(-1)[i]:
                four = [registers[f"${word}"].reshape(-1)[i] >> by & 0xFFFF for word in (0, 1) for by in (0, 16)]
                assert at % 4 == 0 and 0 <= at < self.y.numbers.size
                assert (self.y.numbers.reshape(-1)[at : at + 4] == -1).all()
                self.y.numbers.reshape(-1)[at : at + 4] = four

    def call(self, name, rank, *args):
        self.rank = rank
        return self.functions[name](*args)


def sent(P, Q, W, C, groups, edits=()):
    """(cluster, rooms, sums [groups, C, P, Q]) once all have sent theirs, which is what all barriers await."""
    layout = language.NVMMADistributedLayout([3, 0], [W, 1], [16, Q, 16])
    cluster, random = Cluster(layout, C, edits), np.random.default_rng(0)
    sums = random.integers(-99, 100, (groups, C, P, Q)).astype(float)
    static = clusters.static_bytes(groups * clusters.buffer_bytes(P, Q, W, C))
    rooms = [cluster.call("room_of", rank, rank, groups, P, Q, W, C, static) for rank in range(C)]
    for group, rank in itertools.product(range(groups), range(C)):
        acc = sums[group, rank].view(Sums)
        acc.layout = layout
        cluster.call("send", rank, acc, rooms[rank], rank, group, W, C)
    assert cluster.awaited == cluster.counted
    return cluster, rooms, sums


def check(P, Q, W, C, groups, edits=()):
    """That all that C programs leave of sums [P, Q] is their sum, each element once."""
    cluster, rooms, sums = sent(P, Q, W, C, groups, edits)
    ends = rooms[0][1] + groups * clusters.buffer_bytes(P, Q, W, C)
    assert all(np.isnan(memory[ends // 4 :]).all() for memory in cluster.memory)
    for group in range(groups):
        result = np.full((P, Q), np.nan)
        for rank, number in itertools.product(range(C), range(clusters.own_blocks(P, Q, W, C))):
            total, p, q, inside = cluster.call("added", rank, rooms[rank], rank, number, group, P, Q, W, C)
            if inside:
                assert np.isnan(result[p, q]).all()
                result[p, q] = total
        assert np.array_equal(result, sums[group].sum(0))


def check_written(Q, C, tile, size, kind, fours, edits=()):
    """That y [m, n] has the sums of two groups, from ``tile`` on, each number once and none beside them."""
    cluster, rooms, sums = sent(64, Q, 4, C, 2, edits)
    (m, n), (M, N) = tile, size
    cluster.y = y = Written(M, N, kind)
    height = np.array(N).view(Numbers)
    for group, rank in itertools.product(range(2), range(C)):
        at = n + 64 * group
        cluster.call("write_added", rank, y, rooms[rank], rank, at, m, height, M, group, Q, C, fours)
    added = sums.sum(1)
    if fours:
        added = np.stack([in_order(torch.from_numpy(group)).numpy() for group in added])
    wanted = np.full((M + Q, N + 128), np.nan)
    wanted[m : m + Q, n : n + 128] = added.reshape(128, Q).T
    found, wanted = y.numbers, wanted[:M, :N]
    assert np.array_equal(found >= 0, ~np.isnan(wanted))
    assert np.array_equal(found[found >= 0], rounded(wanted[found >= 0], kind))


@pytest.mark.parametrize(("P", "Q", "W"), [(64, 32, 4), (64, 128, 4), (64, 256, 4), (128, 64, 8), (128, 16, 4)])
@pytest.mark.parametrize("C", [2, 3, 5, 8])
def test_every_sum_is_sent_to_one_program_which_adds_it(P, Q, W, C):
    check(P, Q, W, C, groups=2)


SENT = [(P, Q, 4) for P, Q in itertools.product((64, 128), (16, 32, 64, 128, 256))] + [(128, 16, 8), (128, 64, 8)]


@pytest.mark.parametrize(("P", "Q", "W"), SENT)
def test_barriers_await_what_is_sent_whatever_the_tile_and_the_cluster(P, Q, W):
    """Sizes of the product are no part of it: partial tiles and empty groups send as much."""
    for C in range(2, 9):
        sent(P, Q, W, C, groups=1)


@pytest.mark.parametrize("fours", [False, True])
@pytest.mark.parametrize(("Q", "C", "tile", "size", "kind"), [
    (32, 2, (0, 0), (32, 128), "bf16"),
    (128, 3, (128, 128), (201, 204), "f16"),  # the second group has 12 columns
    (256, 2, (0, 64), (130, 96), "bf16"),  # it has none
    (16, 5, (16, 0), (17, 128), "bf16"),  # and programs have no rows
])  # fmt: skip
def test_shares_are_written_to_their_columns_and_to_no_others(Q, C, tile, size, kind, fours):
    check_written(Q, C, tile, size, kind, fours)


@pytest.mark.parametrize(("fours", "edit"), [
    (False, ("write_added", "t % 2 * 8", "t % 2 * 4")),
    (True, ("write_added", "warp % 2 * 4", "warp % 2 * 2")),
    (False, ("write_added", "column < N", "column < N + 64")),
    (True, ("write_added", "gl.minimum(M - m, BLOCK_M)", "BLOCK_M")),
    (False, ("write_added", "number * C * 8", "number * 8")),
    (True, ("write_added", "(8 * C)", "8")),
])  # fmt: skip
def test_a_fault_of_writing_is_seen(fours, edit):
    with pytest.raises((AssertionError, IndexError)):
        check_written(128, 3, (128, 128), (201, 204), "f16", fours, [edit])


@pytest.mark.parametrize("edit", [
    ("send", "p % 8 * 4", "p % 4 * 8"),  # a thread's place
    ("send", "block % C", "block // C % C"),  # the program that adds
    ("send", "16 * GROUP", "0 * GROUP"),  # its barrier
    ("room_of", "- rank + C - 1", "+ C - 1"),  # what that awaits
    ("room_of", "(C - 1) * W", "C * W"),  # its own, too
    ("place_of", "element // 128 * 16", "element // 64 * 8"),  # where a sum belongs
    ("added", "own * W * 512", "own * W * 256"),  # where the next program's lies
])  # fmt: skip
def test_a_fault_is_seen(edit):
    with pytest.raises((AssertionError, IndexError)):
        check(64, 128, 4, 3, groups=2, edits=[edit])


def test_buffers_are_static_where_that_has_room():
    assert clusters.static_bytes(32 * 1024) == 33 * 1024 and clusters.static_bytes(48 * 1024) == 1024
    assert shape_of([clusters.buffer_bytes(64, 128, 4, 3)]) == (3 * 6 * 2048,)


def test_programs_have_the_shared_memory_that_triton_asks_for():
    """More than 48 KiB in all only where Triton's own are more, and no more than there is."""
    for columns, block_k, size in itertools.product(*CLUSTERED_SPACE.values()):
        config = dict(zip(CLUSTERED_SPACE, (columns, block_k, size), strict=True))
        for steps in range(size, 40 * size):
            k = steps * block_k
            if not multiplies_in_clusters(types.SimpleNamespace(numel=lambda: 1), k, config):
                continue
            stages, static = ring_and_room(k, columns, block_k, size)
            own = stages * ((64 + columns) * block_k * 2 + 8)
            assert stages > 1 and static + own <= (227 if own > 48 * 1024 else 48) * 1024, (config, steps)
            sent = shape_of([clusters.buffer_bytes(64, columns, 4, size)])[0] if size > 1 else 0
            assert static > sent or own >= sent


def test_little_beside_static_memory_is_made_more_than_48_kib():
    assert clusters.launchable(17 * 1024, 24 * 1024) == 24 * 1024
    assert clusters.launchable(17 * 1024, 40 * 1024) == clusters.launchable(33 * 1024, 24 * 1024) == 48 * 1024 + 1
    assert clusters.launchable(33 * 1024, 60 * 1024) == 60 * 1024
