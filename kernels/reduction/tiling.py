"""How a program's block of neighbouring matrices, rows and columns is cut: arithmetic alone."""

import math
from dataclasses import dataclass

import triton

_SLACK = 1.13
"""So much farther beyond the end than a smaller tile a larger one may reach: it has fewer ends of its own."""

_RUN = 4
"""Vectors of 16 bytes that are read one after the other, at least."""

_UNDER_WAY = 2**15
"""Bytes of an SM's programs that keep memory busy."""

_WIDE = 32
"""Columns from which on a row is a run long enough: threads lie along it, and each adds up its columns by itself."""


@dataclass(frozen=True)
class Block:
    """Matrices, rows and columns of a program; ``down`` says that a thread's elements lie one below the other."""

    matrices: int
    rows: int
    columns: int
    down: bool

    def reach(self, n: int, inner: int) -> int:
        """Elements from a block's first to past its last, at most."""
        return ((self.matrices - 1) * n + self.rows) * inner + self.columns


def _power(number: float) -> int:
    """The largest power of two up to ``number``, at least 1."""
    return 1 << max(1, int(number)).bit_length() - 1


def _snug(length: int, least: int, most: int) -> int:
    """The power of two from ``least`` to ``most`` whose multiples cover ``length`` with the fewest lanes beyond it, and
    of nearly equal ones the largest."""
    sizes = [1 << i for i in range(least.bit_length() - 1, max(least, most).bit_length())]
    covered = {size: triton.cdiv(length, size) * size for size in sizes}
    return max(size for size in sizes if covered[size] <= _SLACK * min(covered.values()))


def block_of(config, outer: int, n: int, inner: int, vector: int, gpu) -> Block:
    """The block of [outer, n, inner] for VECTORS 16-byte vectors a thread; ``vector`` is their length in elements.

    Of wide rows each thread owns columns of its own, so nothing is exchanged.  Of narrow ones a program takes columns
    first, then rows, then matrices: in this order they are neighbours in memory.
    """
    threads = 32 * config["num_warps"]
    room = threads * config["VECTORS"] * vector
    wanted = gpu.sms * max(1, _UNDER_WAY // (16 * threads * config["VECTORS"]))  # programs
    tall = triton.next_power_of_2(n)
    if inner < _WIDE:
        wide = triton.next_power_of_2(inner)
        longest = min(room // wide, tall)
        rows = _snug(n, max(1, min(longest, _RUN * vector // wide)), longest)
        matrices = min(room // (wide * rows), triton.next_power_of_2(outer), _power(outer / wanted))
        return Block(matrices, max(rows, min(room // (wide * matrices), longest)), wide, False)
    most = max(config["BLOCK_C"], room // min(config["VECTORS"], tall))
    while most > config["BLOCK_C"] and outer * triton.cdiv(inner, most) < wanted:
        most //= 2
    wide = _snug(inner, config["BLOCK_C"], most)
    spread = min(triton.next_power_of_2(outer), _power(outer * triton.cdiv(inner, wide) / wanted))
    matrices = max(1, min(threads * math.gcd(inner, vector) // wide, spread))
    rows = min(room // (wide * matrices), tall)
    return Block(max(matrices, min(room // (wide * rows), spread)), rows, wide, True)


@dataclass(frozen=True)
class StridedTile:
    """Elements of a block of [k0, n1, k1, n2, k2] along all its axes but the first."""

    n1: int
    k1: int
    n2: int
    k2: int


def strided_tile(config, n1: int, k1: int, n2: int, k2: int, vector: int, run: int = _RUN) -> StridedTile:
    """The block for VECTORS 16-byte vectors a thread: the faster an axis, the earlier it is filled, but of k2 no more
    than BLOCK_C before the others have had their part.  Along n2 it has ``run`` vectors, at least.

    WHOLE blocks hold all of n1 and n2 before any more of k1 and k2, where they have room for them.
    """
    room = 32 * config["num_warps"] * config["VECTORS"] * vector
    of_k2 = min(config["BLOCK_C"], triton.next_power_of_2(k2), room)
    if config.get("WHOLE"):
        of_n2, of_n1 = triton.next_power_of_2(n2), triton.next_power_of_2(n1)
        of_k1 = min(triton.next_power_of_2(k1), max(1, room // (of_k2 * of_n2 * of_n1)))
        return StridedTile(of_n1, of_k1, of_n2, of_k2)
    longest = min(triton.next_power_of_2(n2), room // of_k2)
    of_n2 = _snug(n2, max(1, min(longest, run * vector // of_k2)), longest)
    of_k1 = min(triton.next_power_of_2(k1), room // (of_k2 * of_n2))
    of_n1 = min(triton.next_power_of_2(n1), room // (of_k2 * of_n2 * of_k1))
    of_k2 = min(triton.next_power_of_2(k2), room // (of_n2 * of_k1 * of_n1))
    return StridedTile(of_n1, of_k1, of_n2, of_k2)


@dataclass(frozen=True)
class WholeTile:
    """A block of lines of k1, of places that hold all that is reduced, and of columns of k2, or of a vector of n2."""

    k1: int
    places: int
    columns: int

    @property
    def elements(self) -> int:
        return self.k1 * self.places * self.columns


def whole_tile(config, n: int, k1: int, k2: int, vector: int, width: int) -> WholeTile:
    """The block for up to VECTORS 16-byte vectors a thread; BLOCK_C columns where there are several, else vectors of
    ``width`` of the ``n`` elements.  It has more elements than that where one line has.
    """
    room = 32 * config["num_warps"] * config["VECTORS"] * vector
    columns = width if k2 == 1 else min(config["BLOCK_C"], triton.next_power_of_2(k2))
    places = triton.next_power_of_2(triton.cdiv(n, width) if k2 == 1 else n)
    return WholeTile(min(triton.next_power_of_2(k1), max(1, room // (places * columns))), places, columns)
