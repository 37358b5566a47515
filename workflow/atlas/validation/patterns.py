"""Words for where wrong elements lie, and how they are wrong: the first question anyone asks of a failing kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_SHOWN = 3
_BLOCK = 16  # the shortest run of a vector's elements that is called a block


@dataclass(frozen=True)
class Element:
    """One wrong element of an output."""

    output: str
    index: tuple[int, ...]
    got: float
    expected: float

    @property
    def label(self) -> str:
        """``y[0, 7]``."""
        return f"{self.output}[{', '.join(map(str, self.index))}]" if self.index else self.output

    def __str__(self) -> str:
        return f"{self.label} is {self.got:.6g}, expected {self.expected:.6g}"


def elements(
    name: str, wrong: torch.Tensor, result: torch.Tensor, expected: torch.Tensor, most: int = _SHOWN
) -> tuple[Element, ...]:
    """The first ``most`` elements that the mask ``wrong`` names, with what was expected and what is there."""
    return tuple(
        Element(name, tuple(index), result[tuple(index)].item(), expected[tuple(index)].item())
        for index in wrong.nonzero()[:most].tolist()
    )


def first_elements(name: str, wrong: torch.Tensor, result: torch.Tensor, expected: torch.Tensor) -> str:
    """The first wrong elements with index, expected and got: ``out[0, 7] is 0, expected 1.25``."""
    return "; ".join(map(str, elements(name, wrong, result, expected)))


def describe(wrong: torch.Tensor) -> str:
    """Where the True elements of a mask lie: a tail, every k-th row, a program's tile, all of them.

    Leading dimensions count as rows: the last one is the columns.
    """
    count, total = int(wrong.sum()), wrong.numel()
    if count == total:
        return f"all {total} elements" if total > 1 else "the only element"
    prefix = f"{count} of {total} elements"
    if wrong.dim() and count > 1:
        matrix = wrong.reshape(-1, wrong.shape[-1])
        try:
            place = _place_of(matrix, count)
        except RuntimeError:  # its memory does not hold the indices; torch's nonzero ends at 2^31 elements there
            place = _place_of(matrix.cpu(), count)
        return f"{prefix}: {place}" if place else prefix
    return prefix


def _place_of(matrix: torch.Tensor, count: int) -> str:
    """Looked for where the mask is: a host takes a minute for 2^31 elements."""
    place = _columns(matrix) or _rows(matrix) or _tiles(matrix, count) or _rows(matrix, in_part=True)
    return place or _flat(matrix.flatten(), count)


def _columns(matrix: torch.Tensor) -> str:
    """The same columns wrong in every row of a matrix of several rows."""
    if len(matrix) < 2 or not torch.equal(matrix.any(0), matrix.all(0)):
        return ""
    return _series(matrix[0], "column", "of every row")


def _rows(matrix: torch.Tensor, in_part: bool = False) -> str:
    """Whole rows wrong, or where ``in_part`` rows with something wrong in them."""
    hit = matrix.any(1)
    if len(matrix) < 2 or bool(hit.all()) or not (in_part or torch.equal(hit, matrix.all(1))):
        return ""
    named = _series(hit, "row", "")
    return named and named + (", in part" if in_part else "")


def _tiles(matrix: torch.Tensor, count: int) -> str:
    """One rectangle or several of one grid, as programs own them; of one that is wrong only in places, its bounds."""
    rows, columns = matrix.shape
    if rows < 2 or columns < 2:
        return ""
    height, width = _grid(matrix), _grid(matrix.t())
    hit_rows, hit_columns = matrix.any(1).nonzero().flatten(), matrix.any(0).nonzero().flatten()
    top, bottom = int(hit_rows[0]), int(hit_rows[-1])
    left, right = int(hit_columns[0]), int(hit_columns[-1])
    tall, wide = bottom - top + 1, right - left + 1
    box = f"rows {top} to {bottom}, columns {left} to {right}"
    if min(tall, wide) < 2:
        return ""
    if count == tall * wide:
        return f"one tile of {tall} x {wide}: {box}{_place(matrix, top, left, tall, wide)}"
    if min(height, width) > 1:
        tiles = matrix[::height, ::width]
        first = tiles.nonzero()[0].tolist()
        down, right = first[0] * height, first[1] * width
        last = f"rows {down} to {min(down + height, rows) - 1}, columns {right} to {min(right + width, columns) - 1}"
        return f"{int(tiles.sum())} tiles of {height} x {width}, the first at {last}"
    if 2 * tall * wide <= matrix.numel() and 2 * count >= tall * wide:
        return f"most of one tile of {tall} x {wide}: {box}{_place(matrix, top, left, tall, wide)}"
    return ""


def _grid(matrix: torch.Tensor) -> int:
    """The largest block of rows that a grid of them could have: neighbours differ at multiples of it alone."""
    changes = (matrix[1:] != matrix[:-1]).any(1).nonzero().flatten() + 1
    return math.gcd(*changes.tolist()) if len(changes) else len(matrix)


def _place(matrix: torch.Tensor, top: int, left: int, tall: int, wide: int) -> str:
    """The tile's place in the grid, where it lies on one; a tile at the lower or right edge may be cut short."""
    rows, columns = matrix.shape
    # One that is cut by an edge does not show its size: its grid is then read from where it begins.
    height = top if top + tall == rows and top else tall
    width = left if left + wide == columns and left else wide
    if top % height or left % width or tall > height or wide > width:
        return ""
    if (height, width) != (tall, wide):
        return ", cut by the edge"
    return f" (tile {top // height}, {left // width} of a grid of them)"


def _flat(mask: torch.Tensor, count: int) -> str:
    return (_series(mask, "element", "counted row by row") or _blocks(mask)) if count > 1 else ""


def _blocks(mask: torch.Tensor) -> str:
    """Several blocks of consecutive elements, as programs own them."""
    length = _grid(mask[:, None])
    if length < _BLOCK:
        return ""
    hit = mask[::length]
    first = int(hit.nonzero()[0]) * length
    return f"{int(hit.sum())} blocks of {length} elements, the first from {first} on"


def _series(mask: torch.Tensor, what: str, of: str) -> str:
    """A mask over one axis as a tail, a head, a range or every k-th."""
    where, size = mask.nonzero().flatten(), len(mask)
    count, first, last = len(where), int(where[0]), int(where[-1])
    of = f" {of}" if of else ""
    if count == 1:
        return f"{what} {first}{of}"
    if last - first + 1 == count:
        if last == size - 1:
            return f"the tail, the last {count} of {size} {what}s{of}, from {first} on"
        return f"the first {count} of {size} {what}s{of}" if first == 0 else f"{what}s {first} to {last}{of}"
    steps = where.diff()
    if count > 2 and bool((steps == steps[0]).all()):
        return f"every {int(steps[0])}th {what}{of}, from {first} on"
    return ""


def relation(result: torch.Tensor, expected: torch.Tensor) -> str:
    """How a wholly wrong result relates to the expected one, where that is plain: zero, scaled, shifted, transposed."""
    result, expected = result.double(), expected.double()
    if result.dim() > 2:
        result, expected = result.flatten(0, -2), expected.flatten(0, -2)
    both = result.isfinite() & expected.isfinite()
    if int(both.sum()) < 4:
        return ""
    a, b = result[both], expected[both]
    size = float(b.abs().max())
    if not bool(a.any()):
        return "the result is zero" if size else ""
    if result.dim() == 2 and result.shape[0] == result.shape[1] > 1 and _near(result.t(), expected, size):
        return "the result is the transpose of what is expected"
    far = b.abs() > 0.1 * size
    ratio = float((a[far] / b[far]).median())
    if not math.isclose(ratio, 1, rel_tol=1e-3) and ratio and _near(a, b * ratio, size * abs(ratio)):
        return f"the result is {ratio:.4g} times what is expected"
    shift = float((a - b).median())
    if shift and _near(a, b + shift, size):
        return f"the result is shifted by {shift:.4g}"
    return ""


def _near(a: torch.Tensor, b: torch.Tensor, size: float) -> bool:
    return bool(((a - b).abs() <= 0.02 * size).all()) and bool(((a - b).abs() <= 0.01 * size).double().mean() > 0.9)
