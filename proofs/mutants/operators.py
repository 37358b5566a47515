"""Mutation operators: faults that people make in kernels, made in any function's syntax tree.

An operator takes one node of a tree and gives what may stand in its place, a fault each.  Those of ``DEVICE`` are for
device functions, those of ``HOST`` for the launchers and public functions around them, where arithmetic is a matter of
speed more often than of values, so that only what decides values is changed.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

LANGUAGES = frozenset({"tl", "gl", "ttgl"})
"""What kernels call Triton's and Gluon's languages."""

REMOVED = ast.Pass(lineno=1, col_offset=0)
"""In the place of a statement: nothing."""

Operator = Callable[[ast.AST], Iterable[ast.AST]]


@dataclass(frozen=True)
class Mutation:
    """The ``number``-th fault that an operator makes in a function, in the order of the source."""

    operator: str
    number: int
    before: str
    after: str


def _called(node: ast.AST, *names: str) -> bool:
    """Whether a node calls one of these functions of Triton's language."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in names
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in LANGUAGES
    )


def _method(node: ast.AST, name: str) -> bool:
    """Whether a node calls a method of an object, or of another module than Triton's language."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _is_dtype(node: ast.AST | None, *names: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in names


def drop_mask(node: ast.AST) -> Iterator[ast.AST]:
    """A load or store of whole blocks."""
    if _called(node, "load", "store", "atomic_add") and any(one.arg == "mask" for one in node.keywords):
        yield _changed(node, keywords=[one for one in node.keywords if one.arg not in ("mask", "other")])


_BOUNDS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


def shift_bound(node: ast.AST) -> Iterator[ast.AST]:
    """``<`` for ``<=`` and the reverse."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _BOUNDS:
        yield _changed(node, ops=[_BOUNDS[type(node.ops[0])]()])


def drop_condition(node: ast.AST) -> Iterator[ast.AST]:
    """One of two masks that hold together, or of two of which one is enough."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr) and not _is_number(node.right):
        yield node.left
        yield node.right


def wrong_identity(node: ast.AST) -> Iterator[ast.AST]:
    """What a reduction begins with, or finds behind a mask: 0 where it is not, and otherwise 1."""
    if _called(node, "load"):
        for place, one in enumerate(node.keywords):
            if one.arg == "other":
                keywords = [*node.keywords]
                keywords[place] = ast.keyword("other", _other_than(one.value))
                yield _changed(node, keywords=keywords)
    elif _called(node, "full") and len(node.args) > 1:
        yield _changed(node, args=[node.args[0], _other_than(node.args[1]), *node.args[2:]])
    elif _called(node, "zeros") and node.args:
        dtype = node.args[1:] or [one.value for one in node.keywords if one.arg == "dtype"]
        yield ast.Call(_changed(node.func, attr="full"), [node.args[0], ast.Constant(1), *dtype], [])


def _other_than(value: ast.expr) -> ast.expr:
    zero = isinstance(value, ast.Constant) and value.value == 0
    return ast.Constant(1.0 if zero else 0.0)


def narrow(node: ast.AST) -> Iterator[ast.AST]:
    """Arithmetic in the input's dtype instead of fp32."""
    if _method(node, "to") and node.args and _is_dtype(node.args[0], "float32", "float64"):
        yield node.func.value
    elif _called(node, "cast") and _is_dtype(node.args[1], "float32", "float64"):
        yield node.args[0]


def keep_32_bits(node: ast.AST) -> Iterator[ast.AST]:
    """Offsets that overflow beyond 2^31 elements."""
    if _method(node, "to") and node.args and _is_dtype(node.args[0], "int64"):
        yield node.func.value
    elif _called(node, "cast") and _is_dtype(node.args[1], "int64"):
        yield node.args[0]


def swap_operands(node: ast.AST) -> Iterator[ast.AST]:
    """``b - a`` for ``a - b``, ``b / a`` for ``a / b``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Div):
        yield _changed(node, left=node.right, right=node.left)


def drop_operand(node: ast.AST) -> Iterator[ast.AST]:
    """A factor or a term that was forgotten: the second."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Add | ast.Sub | ast.Div):
        yield node.left


def overwrite(node: ast.AST) -> Iterator[ast.AST]:
    """``x = y`` for ``x += y``: the last addend in the place of the sum."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
        yield ast.Assign([node.target], node.value)


def one_off(node: ast.AST) -> Iterator[ast.AST]:
    """The program, or the element, beside the one that is meant."""
    if _called(node, "program_id", "arange"):
        yield ast.BinOp(node, ast.Add(), ast.Constant(1))


_OPPOSITES = {"maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max", "exp": "exp2", "exp2": "exp",
              "log": "log2", "log2": "log", "rsqrt": "sqrt", "sqrt": "rsqrt"}  # fmt: skip


def opposite(node: ast.AST) -> Iterator[ast.AST]:
    """Least for greatest, and functions that are taken for each other."""
    if _called(node, *_OPPOSITES):
        yield _changed(node, func=_changed(node.func, attr=_OPPOSITES[node.func.attr]))


def drop_sign(node: ast.AST) -> Iterator[ast.AST]:
    """``x`` for ``-x``."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not _is_number(node.operand):
        yield node.operand


def choose_always(node: ast.AST) -> Iterator[ast.AST]:
    """The first of two values, whatever the condition."""
    if _called(node, "where") and len(node.args) == 3:
        yield node.args[1]


def drop_store(node: ast.AST) -> Iterator[ast.AST]:
    """An output that is not written."""
    if isinstance(node, ast.Expr) and _called(node.value, "store"):
        yield REMOVED


_FENCES = ("debug_barrier", "fence_async_shared", "barrier", "wait_group", "wait")


def drop_fence(node: ast.AST) -> Iterator[ast.AST]:
    """What orders the threads of a program, or waits for a copy."""
    if isinstance(node, ast.Expr) and any(_method(node.value, name) for name in _FENCES):
        yield REMOVED


def swap_strides(node: ast.AST) -> Iterator[ast.AST]:
    """Strides of the dimensions in the reverse order."""
    if isinstance(node, ast.Starred) and _method(node.value, "stride") and not node.value.args:
        reverse = ast.Slice(None, None, ast.UnaryOp(ast.USub(), ast.Constant(1)))
        yield ast.Starred(ast.Subscript(node.value, reverse, ast.Load()), ast.Load())
    elif _method(node, "stride") and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
        yield _changed(node, args=[ast.Constant(1 - node.args[0].value)])


def round_grid_down(node: ast.AST) -> Iterator[ast.AST]:
    """``a // b`` for ``cdiv(a, b)``, at least 1: right for whole blocks."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cdiv":
        quotient = ast.BinOp(node.args[0], ast.FloorDiv(), node.args[1])
        device = isinstance(node.func.value, ast.Name) and node.func.value.id in LANGUAGES
        greater = _changed(node.func, attr="maximum") if device else ast.Name("max", ast.Load())
        yield ast.Call(greater, [quotient, ast.Constant(1)], [])


def write_over_input(node: ast.AST) -> Iterator[ast.AST]:
    """The input in the place of a new output."""
    if _method(node, "empty_like") and len(node.args) == 1 and not node.keywords:
        yield node.args[0]


def leave_uncleared(node: ast.AST) -> Iterator[ast.AST]:
    """Memory as it is found in the place of zeros."""
    if _method(node, "zeros") or _method(node, "zeros_like") or _method(node, "new_zeros"):
        yield _changed(node, func=_changed(node.func, attr=node.func.attr.replace("zeros", "empty")))


def take_strided(node: ast.AST) -> Iterator[ast.AST]:
    """A tensor as it is in the place of a contiguous one."""
    if _method(node, "contiguous") and not node.args:
        yield node.func.value


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant)


DEVICE: Mapping[str, Operator] = {
    "mask dropped": drop_mask,
    "bound off by one": shift_bound,
    "condition dropped": drop_condition,
    "wrong identity": wrong_identity,
    "dtype narrowed": narrow,
    "offset of 32 bits": keep_32_bits,
    "operands swapped": swap_operands,
    "operand dropped": drop_operand,
    "sum overwritten": overwrite,
    "index off by one": one_off,
    "opposite function": opposite,
    "sign dropped": drop_sign,
    "condition ignored": choose_always,
    "store dropped": drop_store,
    "fence dropped": drop_fence,
    "blocks rounded down": round_grid_down,
}
HOST: Mapping[str, Operator] = {
    "strides swapped": swap_strides,
    "blocks rounded down": round_grid_down,
    "input overwritten": write_over_input,
    "memory not cleared": leave_uncleared,
    "strided input taken": take_strided,
}


def mutations(function: ast.FunctionDef, operators: Mapping[str, Operator]) -> list[Mutation]:
    """Every fault that the operators make in a function, by operator and in the order of the source."""
    found, nodes = [], _nodes(function)
    for name, operator in operators.items():
        for number, (node, new) in enumerate(_sites(nodes, operator)):
            found.append(Mutation(name, number, ast.unparse(node), ast.unparse(new)))
    return found


def mutate(function: ast.FunctionDef, operator: str, number: int, operators: Mapping[str, Operator]) -> None:
    """Make one fault in a function's tree, in place; IndexError where there is no such."""
    old, new = _sites(_nodes(function), operators[operator])[number]
    for parent in ast.walk(function):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(item is old for item in value):
                value[:] = [new if item is old else item for item in value]


def probe(function: ast.FunctionDef, operator: str, number: int, operators: Mapping[str, Operator]) -> None:
    """Raise before the statement in which :func:`mutate` would make a fault, in place."""
    node, _ = _sites(_nodes(function), operators[operator])[number]
    holding = [one for one in ast.walk(function) if isinstance(one, ast.stmt) and node in ast.walk(one)]
    innermost = holding[-1]  # breadth first: the deepest comes last
    raising = ast.copy_location(ast.parse("raise RuntimeError('here')").body[0], innermost)
    for parent in ast.walk(function):
        for _, value in ast.iter_fields(parent):
            if isinstance(value, list) and innermost in value:
                value.insert(value.index(innermost), raising)
                return


def _nodes(function: ast.FunctionDef) -> list[ast.AST]:
    nodes = [node for statement in function.body for node in ast.walk(statement) if hasattr(node, "lineno")]
    return sorted(nodes, key=lambda node: (node.lineno, node.col_offset))


def _sites(nodes: Iterable[ast.AST], operator: Operator) -> list[tuple[ast.AST, ast.AST]]:
    found = [(node, new) for node in nodes for new in operator(node)]
    for node, new in found:
        if not hasattr(new, "lineno"):
            ast.fix_missing_locations(ast.copy_location(new, node))
    return found
