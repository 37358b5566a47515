"""What a loop carries from pass to pass for the bounds of an inner loop alone: Triton drops it, without a word."""

import ast

import inside
import pytest
from atlas import catalog


def test_triton_still_drops_what_is_carried_for_a_bound_alone(compiling):
    """Seen in 3.6.0 and 3.7.1 (tritongpu-remove-layout-conversions), by a kernel that never ended on an H200.

    Once this fails, a new Triton carries both values, and neither the test below nor the notes in kernels are needed.
    """
    assert compiling(inside.loops_of_a_carried_bound) == [1, 1]


def _carried_bounds(text):
    """(line, name) of each name that a loop's body reads above where it sets it, and that bounds a loop in it."""
    for loop in ast.walk(ast.parse(text)):
        if not isinstance(loop, ast.For | ast.While):
            continue
        nodes = [node for statement in loop.body for node in ast.walk(statement)]
        added = {getattr(node.target, "id", "") for node in nodes if isinstance(node, ast.AugAssign)}
        lines = {ast.Load: {}, ast.Store: {}}
        for node in nodes:
            if isinstance(node, ast.Name):
                known = lines[type(node.ctx)]
                known[node.id] = min(node.lineno, known.get(node.id, node.lineno))
        bounds = {node.id for inner in nodes if isinstance(inner, ast.For) for node in ast.walk(inner.iter)
                  if isinstance(node, ast.Name)}  # fmt: skip
        for name in sorted(bounds & set(lines[ast.Store])):
            if name in added or lines[ast.Load][name] < lines[ast.Store][name]:
                yield loop.lineno, name


CARRIED = """
for part in range(parts):
    end = begin + count
    for i in range(begin, end):
        total += i
    begin = end
"""
COMPUTED = """
for part in range(parts):
    begin = part * count
    for i in range(begin, begin + count):
        total += i
"""


def test_a_carried_bound_is_found_and_a_computed_one_is_none():
    assert list(_carried_bounds(CARRIED)) == [(2, "begin")]
    assert list(_carried_bounds(CARRIED.replace("begin = end", "begin += count"))) == [(2, "begin")]
    assert list(_carried_bounds(COMPUTED)) == []


@pytest.mark.parametrize("path", sorted(catalog.KERNELS.rglob("*.py")), ids=lambda path: path.stem)
def test_no_kernel_carries_a_bound(path):
    assert list(_carried_bounds(path.read_text())) == []
