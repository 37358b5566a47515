"""`shared` of the products with packed weights, run on the host: its own source, with numpy where Gluon would be.

Gluon is not interpreted, so every thread's addresses are followed here: copies fill an array of bytes, no sooner than
they are awaited, tensor cores and PTX are a few lines of numpy by their documented layouts, and programs run one after
the other.
"""

import re
import types

import numpy as np
import pytest
import torch
from triton.runtime.jit import JITFunction

from kernels import matmul_w8a16, pack_w4, pack_w8
from kernels.matmul_w4a16 import cases, shared
from kernels.matmul_w4a16.spaces import SHARED_SPACE

NOTHING = 0xC7
"""Bytes of the ring that no copy has filled: scales of -1e5 as bf16, and zero points of 199."""


class Array(np.ndarray):
    """A tensor or, with one element, a scalar of a kernel."""

    def to(self, _):
        return self


def array(values):
    return np.asarray(values).view(Array)


def scalar(value):
    return array(value).reshape(1, 1, 1, 1, 1, 1)


class Pointer:
    """Places of elements in a flat array."""

    dtype = types.SimpleNamespace(element_ty=None)

    def __init__(self, elements, at=0):
        self.elements, self.at = elements, at

    def __add__(self, offset):
        return Pointer(self.elements, self.at + offset)

    def to(self, dtype):
        return Pointer(self.elements.view(dtype), self.at)


def sixteen_bits(words):
    """Two bf16 of each 32-bit word, as numbers, in a new last dimension."""
    return (np.stack([words << 16, words & 0xFFFF0000], -1).astype(np.uint32)).view(np.float32)


class Host:
    """What `shared_kernel` calls, for one program at a time."""

    def __init__(self, kernel, ring_bytes):
        self.ring, self.program = np.empty(ring_bytes, np.uint8), 0
        names = {
            "constexpr": None, "int32": np.int32, "int64": np.int64, "float32": np.float32, "where": np.where,
            "minimum": np.minimum, "static_range": range, "cdiv": lambda a, b: -(-a // b), "pointer_type": lambda d: d,
            "program_id": lambda _: scalar(self.program), "arange": lambda a, b: array(np.arange(a, b)),
            "set_auto_layout": lambda t, _: t, "convert_layout": lambda t, _: t,
            "zeros": lambda shape, dtype, _: array(np.zeros(shape, dtype)), "zeros_like": lambda t: 0 * t,
            "full": lambda shape, value, *_: array(np.full(shape, value)), "fma": lambda a, b, c: a * b + c,
            "to_tensor": scalar, "load": self.load, "store": self.store, "atomic_add": self.atomic_add,
            "inline_asm_elementwise": self.assembly, "BlockedLayout": lambda *_: None,
            "SwizzledSharedLayout": lambda *_: None,
        }  # fmt: skip
        memory = types.SimpleNamespace(_keep_alive=lambda: None, index=lambda _: self.stored)
        names["allocate_shared_memory"] = lambda *_: memory
        self.stored = types.SimpleNamespace(store=lambda _: None)
        replaced = {
            "gl": types.SimpleNamespace(**names), "tl": types.SimpleNamespace(debug_barrier=lambda: None),
            "after": self.after, "copy": self.copy, "multiply": self.multiply, "unpacked_4": self.unpack_4,
            "load_scales": self.scales_at, "load_minus_zeros": self.zeros_at, "times": self.times,
            "range": lambda *ends: map(scalar, range(*(np.asarray(end).item() for end in ends))),
        }  # fmt: skip
        scope = dict(vars(shared)) | replaced
        for name, function in vars(shared).items():
            if isinstance(function, JITFunction) and name not in replaced:
                scope[name] = types.FunctionType(function.fn.__code__, scope)
        self.kernel = scope[kernel.fn.__name__]

    def read(self, addresses, size):
        """``size`` bytes of the ring at each address."""
        return self.ring[np.asarray(addresses)[..., None] + np.arange(size)]

    def words_at(self, addresses, count):
        """32-bit words at the addresses of a lane's first register."""
        return self.read(addresses[..., 0], 4 * count).view(np.uint32).astype(np.int64)

    def copy(self, addresses, pointers, inside, size, _):
        """Begin a copy: what was at its place is gone, and what will be is not there yet."""
        places, at, inside = (np.asarray(t).ravel() for t in np.broadcast_arrays(addresses, pointers.at, inside))
        source, starts = pointers.elements.view(np.uint8), at[inside] * pointers.elements.itemsize
        for offsets, end in ((places, self.ring.size), (starts, source.size)):
            assert np.all((offsets >= 0) & (offsets + size <= end) & (offsets % size == 0))
        found = np.zeros((places.size, size), np.uint8)
        found[inside] = source[starts[:, None] + np.arange(size)]
        self.ring[places[:, None] + np.arange(size)] = NOTHING
        self.begun.append((places[:, None] + np.arange(size), found))

    def after(self, address, text):
        """What is done before the address is known: a group of copies ends, or all but the last few are awaited."""
        text = getattr(text, "value", text)
        if text == shared.COMMIT.value:
            self.groups.append(self.begun)
            self.begun = []
        elif "cp.async.wait" in text:
            assert "bar.sync" in text  # others copied what a thread reads
            under_way = re.search(r"wait_group (\d+)", text)
            while len(self.groups) > (int(under_way[1]) if under_way else 0):
                for places, found in self.groups.pop(0):
                    self.ring[places] = found
        return address

    def assembly(self, text, _, given, **__):
        text = getattr(text, "value", text)
        if text.startswith("{ .reg .b32 t, r;"):  # the ring: addresses by thread
            thread = np.arange(32 * self.warps).reshape(1, 1, 1, self.warps, 32, 1)
            return array(16 * thread), array(int(re.search(r"t, -12, (\d+)", text)[1]) - 12 * thread)
        if text == shared.OPEN.value:
            pointer = given[0]
            held = pointer.elements[int(pointer.at.flat[0])]
            if held >> 16 != shared.TAG:
                pointer.elements[int(pointer.at.flat[0])] = shared.TAG << 16
            return None
        if text == shared.pairs_asm():
            return self.scales_at(given[0], None)[..., [0, 2, 0, 2]]
        if text == shared.READ_X.value:
            return array(self.words_at(given[0], 4))
        return self.unpack_8(given[0])

    def unpack_4(self, addresses, zeros, _):
        words = self.words_at(addresses, 4)
        shifts = 4 * np.arange(4)[:, None] + np.array([0, 16])  # register, column of a pair
        return [(words[..., i, None, None] >> shifts & 15) - zeros[..., None] for i in range(4)]

    def unpack_8(self, addresses):
        words = self.words_at(addresses, 4)
        byte = np.stack([words >> 8 * i & 255 for i in range(4)], -1)
        number = np.where(np.roll(byte, -1, -1) > 127, -1, 1) * (byte & 127)  # h + 2 p
        number = number.reshape(*number.shape[:-1], 2, 2).swapaxes(-1, -2)  # word, h, p
        pairs = number.reshape(*number.shape[:-3], 2, 4, 2)  # product; q, h; p
        return pairs[..., 0, :, :], pairs[..., 1, :, :]

    def scales_at(self, addresses, _):
        return sixteen_bits(self.words_at(addresses, 1))[..., 0, [0, 0, 1, 1]]

    def times(self, numbers, scales, _):
        """Not rounded, which is the tensor cores' matter; two numbers to a register."""
        return numbers * scales[..., None]

    def zeros_at(self, addresses, has_zeros, *_):
        if not has_zeros:
            return np.full(addresses.shape, 8)
        return self.read(addresses[..., 0], 2)[..., [0, 0, 1, 1]][..., [0, 2, 0, 2]].astype(np.int64)

    def multiply(self, weights, x, acc, text):
        """mma.m16n8k16 in every warp: registers by lane (g, t) as PTX documents them."""
        half = int(re.search(r"\{\$(\d+), \$\d+\}, \{\$12", text)[1]) - 8
        a = np.asarray(weights)
        a = a.reshape(*a.shape[:-3], 8, 4, 2, 2, 2)  # g, t, columns 8 apart, rows 8 apart, pair
        b = sixteen_bits(np.asarray(x)[..., half : half + 2])
        b = b.reshape(*b.shape[:-3], 8, 4, 2, 2)  # row of x, t, columns 8 apart, pair
        c = np.einsum("...gtqhp,...mtqp->...ghm", a, b)
        c = c.reshape(*c.shape[:-1], 4, 2).swapaxes(-3, -2)  # g, t, h, pair
        return array(c.reshape(*c.shape[:-4], 32, 4) + acc)

    def load(self, pointer, mask=True, other=0.0, **_):
        at, mask = np.broadcast_arrays(pointer.at, mask)
        found = pointer.elements[np.where(mask, at, 0)]
        return array(np.where(mask, sixteen_bits(found.astype(np.int64))[..., 0] if found.dtype == np.uint16 else found,
                              other))  # fmt: skip

    def store(self, pointer, values, mask=True):
        at, values, mask = np.broadcast_arrays(pointer.at, values, mask)
        pointer.elements[at[mask]] = values[mask]

    def atomic_add(self, pointer, value, **_):
        before = scalar(pointer.elements[int(pointer.at.flat[0])])
        pointer.elements[int(pointer.at.flat[0])] += int(value.flat[0])
        return before

    def run(self, grid, arguments, constants):
        """Every program, in the order of launching; the last part of a block is not always the last to count."""
        self.warps = constants["WARPS"]
        for self.program in sorted(range(grid), key=lambda program: (program * 7) % 11):
            self.ring[:], self.begun, self.groups = NOTHING, [], []
            self.kernel(*arguments, **constants)


def numbers(tensor):
    """A flat numpy array of a tensor's bits."""
    bits = tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
    return np.ascontiguousarray(bits).reshape(-1)


def on_the_host(monkeypatch, bits, x, packed, config):
    """y of `launch_shared`, whose launch is replaced."""
    found = {}

    def launch(kernel, grid, *arguments, num_warps, **constants):
        m, n = x.shape[0], packed.out_features
        x_, words, scales, zeros, _, scratch, *sizes = arguments
        y = np.full(m * n, np.nan, np.float32)
        parts = np.full(scratch.numel(), np.nan, np.float32)
        pointers = [Pointer(numbers(x_)), Pointer(numbers(words)), Pointer(numbers(scales)),
                    None if zeros is None else Pointer(numbers(zeros)), Pointer(y), Pointer(parts)]  # fmt: skip
        *sizes, blocks = sizes
        Host(kernel, constants["STAGE"] * constants["STAGES"]).run(
            grid[0], [*pointers, *sizes, scalar(blocks)], constants
        )
        found["y"], found["counters"] = y.reshape(m, n), parts.view(np.int64)[:blocks] if constants["SPLITS"] > 1 else 0

    monkeypatch.setattr(shared, "launch", launch)
    words, scales, zeros, n, _, group = packed
    shared.launch_shared(bits, x, words, scales, zeros, n, group, config=config)
    return found["y"], found["counters"]


# m, n, k, group (0: one scale a row), zero points, (ROW_TILES, DEPTH, warps, STAGES, SPLITS), reason
CASES = [
    (4, 3, 64, 256, 128, True, (1, 2, 4, 4, 1), "whole steps"),
    (4, 12, 200, 640, 128, True, (2, 2, 4, 4, 2), "16 rows of x, tails in n, parts of unequal length"),
    (4, 17, 40, 192, 64, False, (1, 2, 4, 4, 2), "four tiles of x, symmetric, half a step at the end"),
    (4, 24, 72, 320, 64, True, (2, 4, 4, 3, 2), "three tiles of x, steps of four tiles, the last of one"),
    (4, 33, 100, 384, 128, True, (2, 2, 4, 4, 2), "33 to 64 rows: weights scaled before they are multiplied"),
    (4, 64, 200, 256, 64, False, (4, 2, 4, 3, 2), "64 rows, four row tiles, symmetric, a tail in n"),
    (4, 40, 64, 256, 128, True, (4, 2, 4, 3, 1), "64 rows, four row tiles, one part"),
    (4, 17, 72, 320, 32, True, (2, 2, 4, 4, 2), "groups of 32, two of a tile; half a step at the end, tails in n"),
    (4, 5, 128, 544, 32, True, (1, 4, 4, 3, 2), "groups of 32, steps of four tiles, the last of half a tile"),
    (4, 8, 128, 256, 32, False, (2, 2, 4, 4, 1), "groups of 32, symmetric, whole steps"),
    (4, 40, 100, 224, 32, True, (2, 2, 4, 4, 2), "33 to 64 rows in groups of 32: each half with scales of its own"),
    (4, 2, 140, 128, 128, True, (1, 2, 8, 4, 4), "more parts than steps, more warps than pieces of x"),
    (8, 5, 70, 544, 0, False, (1, 4, 4, 4, 2), "one scale a row, a quarter of a step at the end"),
    (8, 16, 130, 256, 64, False, (2, 2, 4, 5, 4), "groups of 64, a step each"),
    (8, 40, 100, 160, 0, False, (4, 2, 4, 4, 2), "33 to 64 rows, one scale a row, half a step at the end"),
    (8, 48, 70, 256, 64, False, (2, 4, 4, 3, 2), "33 to 64 rows, groups of two tiles, two a step"),
    (8, 64, 40, 128, 32, False, (1, 4, 4, 4, 1), "64 rows, groups of one tile"),
    (8, 9, 64, 256, 128, False, (1, 4, 4, 4, 1), "groups of four tiles"),
]


@pytest.mark.parametrize(("bits", "m", "n", "k", "group", "zeros", "shape", "reason"), CASES, ids=lambda v: str(v)[:30])
def test_every_thread_finds_what_it_multiplies(monkeypatch, bits, m, n, k, group, zeros, shape, reason):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(n, k, generator=generator).bfloat16()
    packed = pack_w4(weight, group, not zeros) if bits == 4 else pack_w8(weight, group or None)
    x = torch.randn(m, k, generator=generator).bfloat16()
    config = dict(zip(SHARED_SPACE, shape, strict=True))
    y, counters = on_the_host(monkeypatch, bits, x, packed, config)
    dequantised = (cases if bits == 4 else matmul_w8a16).dequantised
    exact = dequantised(packed.words, packed.scales.double(), packed.zeros, n, k, group)
    np.testing.assert_allclose(y, (x.double() @ exact.T).numpy(), rtol=1e-4, atol=1e-3)
    assert not np.any(counters)  # no tag is left in memory that others are given
