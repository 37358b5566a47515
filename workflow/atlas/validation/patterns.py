"""Words for where wrong elements lie, and how they are wrong: the first question anyone asks of a failing kernel."""

from __future__ import annotations

import math

import torch

_SHOWN = 3


def first_elements(name: str, wrong: torch.Tensor, result: torch.Tensor, expected: torch.Tensor) -> str:
    """The first wrong elements with index, expected and got: ``out[0, 7] is 0, expected 1.25``."""
    shown = []
    for index in wrong.nonzero()[:_SHOWN].tolist():
        at = tuple(index)
        label = f"{name}[{', '.join(map(str, index))}]" if index else name
        shown.append(f"{label} is {_number(result[at])}, expected {_number(expected[at])}")
    return "; ".join(shown)


def _number(value: torch.Tensor) -> str:
    return f"{value.item():.6g}"


def describe(wrong: torch.Tensor) -> str:
    """Where the True elements of a mask lie: ``"the last 5 of 7"``, ``"rows 1, 3, 5, … (every 2nd)"``, ``"all"``."""
    count, total = int(wrong.sum()), wrong.numel()
    if count == total:
        return f"all {total} elements" if total > 1 else "the only element"
    prefix = f"{count} of {total} elements"
    if wrong.dim() and count > 1:
        matrix = wrong.reshape(-1, wrong.shape[-1]).cpu()
        place = _columns(matrix) or _rows(matrix) or _flat(matrix.flatten(), count)
        return f"{prefix}: {place}" if place else prefix
    return prefix


def _columns(matrix: torch.Tensor) -> str:
    """The same columns wrong in every row of a matrix of several rows."""
    if len(matrix) < 2 or not torch.equal(matrix.any(0), matrix.all(0)):
        return ""
    return _series(matrix[0], "column", "of every row")


def _rows(matrix: torch.Tensor) -> str:
    """Whole rows wrong, or the same number of them partly."""
    hit = matrix.any(1)
    if len(matrix) < 2 or bool(hit.all()):
        return ""
    whole = "" if torch.equal(hit, matrix.all(1)) else ", in part"
    named = _series(hit, "row", "")
    return named and named + whole


def _flat(mask: torch.Tensor, count: int) -> str:
    return _series(mask, "element", "counted row by row") if count > 1 else ""


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
