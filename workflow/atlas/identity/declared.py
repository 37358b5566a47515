"""Reading a kernel's declaration without running it: which variants there are, and which expression each field holds.

It follows names, imports and calls of functions that only build and return something (``variants=_variants(launch)``).
What it cannot follow it leaves as the expression it is, which then counts whole.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from .code import Code
from .normal_form import REGISTRAR, Writer
from .scopes import LOCAL, Frame, Root, Value

_CLASSES = ("Declaration", "Pass", "Variant")
_STEPS = 50
"""Names and calls that one expression may lead through."""


@dataclass(frozen=True, eq=False)
class Structure:
    """A call of ``Declaration``, ``Pass`` or ``Variant``: the fields it gives, and the class itself."""

    kind: str
    fields: Mapping[str, Value]
    definition: Root


class Reader:
    """Follows expressions of one :class:`Code`."""

    def __init__(self, code: Code):
        self._code = code

    def declaration(self, module: str) -> Structure | None:
        """The declaration that a kernel's file makes; None where it cannot be followed."""
        return self.structure(Value(ast.Name("DECLARATION", ast.Load()), module), "Declaration")

    def public(self, kernel: str) -> Value | None:
        """The function that a kernel's file or package marks as its declaration's public one; None where none is."""
        declaration, main = self._code.resolve(kernel, REGISTRAR[0]), self._code.module(kernel)
        parts = self._code.submodules(kernel) if main is not None and main.package == kernel else []
        for module in (kernel, *parts):
            found, writer = self._code.module(module), Writer(self._code, module)
            for name, units in found.units.items() if found is not None else ():
                marks = [one for unit in units if isinstance(unit, ast.FunctionDef) for one in unit.decorator_list]
                if any(("definition", *(writer.registrar(one, None) or ())) == declaration for one in marks):
                    return Value(ast.Name(name, ast.Load()), module)
        return None

    def structure(self, value: Value | None, kind: str) -> Structure | None:
        """The fields of what is a call of ``kind`` in the end; None for anything else."""
        if value is None:
            return None
        value = self.followed(value)
        if not isinstance(value.node, ast.Call):
            return None
        found = self._called(value)
        if found is None or found[0] != "definition" or found[2] != kind or not self._is_class(*found[1:]):
            return None
        call, order = value.node, self._order(*found[1:])
        if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
            return None
        given = dict(zip(order, call.args, strict=False)) | {str(one.arg): one.value for one in call.keywords}
        fields = {name: Value(node, value.module, value.frame) for name, node in given.items()}
        return Structure(kind, fields, (found[1], found[2]))

    def items(self, value: Value | None) -> list[Value] | None:
        """The elements of what is a tuple or a list in the end, a sum of such included; None for anything else."""
        if value is None:
            return None
        value = self.followed(value)
        node = value.node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [self.items(Value(side, value.module, value.frame)) for side in (node.left, node.right)]
        elif isinstance(node, ast.Tuple | ast.List):
            parts = []
            for element in node.elts:
                if isinstance(element, ast.Starred):
                    parts.append(self.items(Value(element.value, value.module, value.frame)))
                else:
                    parts.append([Value(element, value.module, value.frame)])
        else:
            return None
        return None if any(part is None for part in parts) else [one for part in parts if part for one in part]

    def text(self, value: Value | None) -> str | None:
        """The string that an expression is in the end."""
        node = self.followed(value).node if value is not None else None
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

    def followed(self, value: Value) -> Value:
        """The expression behind names, fields and calls."""
        for _ in range(_STEPS):
            further = self._step(value)
            if further is None:
                break
            value = further
        return value

    def _step(self, value: Value) -> Value | None:
        node, writer = value.node, Writer(self._code, value.module)
        if isinstance(node, ast.Name):
            found = writer.look_up(node.id, value.frame)
            if isinstance(found, Value):
                return found
            return None if found is None or found is LOCAL else self._assigned(found)
        if isinstance(node, ast.Attribute):
            found, rest = writer.dotted(node, value.frame)
            if found is not None:
                return None if rest else self._assigned(found)
            for kind in _CLASSES:
                owner = self.structure(Value(node.value, value.module, value.frame), kind)
                if owner is not None:
                    return owner.fields.get(node.attr)
            return None
        return self._returned(value) if isinstance(node, ast.Call) else None

    def _assigned(self, found: tuple) -> Value | None:
        """What a name is set to, by one plain assignment."""
        if found[0] != "definition":
            return None
        units = self._code.definition(*found[1:])
        if len(units) != 1 or not isinstance(units[0], ast.Assign | ast.AnnAssign) or units[0].value is None:
            return None
        targets = units[0].targets if isinstance(units[0], ast.Assign) else [units[0].target]
        plain = all(isinstance(target, ast.Name) for target in targets)
        return Value(units[0].value, found[1]) if plain else None

    def _called(self, value: Value) -> tuple | None:
        assert isinstance(value.node, ast.Call)
        function = Value(value.node.func, value.module, value.frame)
        writer = Writer(self._code, value.module)
        if isinstance(function.node, ast.Name):
            found = writer.look_up(function.node.id, value.frame)
        else:
            found, rest = writer.dotted(function.node, value.frame)
            found = None if rest else found
        return found if isinstance(found, tuple) else None

    def _returned(self, value: Value) -> Value | None:
        """What a call gives of a function that defines and names things and then returns one expression."""
        assert isinstance(value.node, ast.Call)
        found = self._called(value)
        units = self._code.definition(*found[1:]) if found is not None and found[0] == "definition" else []
        if len(units) != 1 or not isinstance(units[0], ast.FunctionDef) or units[0].decorator_list:
            return None
        function, module = units[0], found[1]
        *body, last = [one for one in function.body if not isinstance(one, ast.Expr)] or [None]
        if not isinstance(last, ast.Return) or last.value is None:
            return None
        names = self._bound(function.args, value, module)
        if names is None:
            return None
        frame = Frame(names)
        for statement in body:
            if isinstance(statement, ast.FunctionDef):
                name, node = statement.name, statement
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name, node = statement.targets[0].id, statement.value
                if len(statement.targets) > 1:
                    return None
            else:
                return None
            if name in names:  # set twice: which of the two is meant where is not to be seen
                return None
            names[name] = Value(node, module, frame)
        return Value(last.value, module, frame)

    def _bound(self, arguments: ast.arguments, value: Value, module: str) -> dict | None:
        """The arguments of a call by the function's names for them."""
        call = value.node
        assert isinstance(call, ast.Call)
        starred = any(isinstance(one, ast.Starred) for one in call.args) or any(
            one.arg is None for one in call.keywords
        )
        positional = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        if arguments.vararg or arguments.kwarg or starred or len(call.args) > len(positional):
            return None
        defaults = dict(zip(reversed(positional), reversed(arguments.defaults), strict=False))
        keyword = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        defaults |= {one.arg: default for one, default in keyword if default is not None}
        given = dict(zip(positional, call.args, strict=False)) | {str(one.arg): one.value for one in call.keywords}
        names = {name: Value(node, module) for name, node in defaults.items()}
        names |= {name: Value(node, value.module, value.frame) for name, node in given.items()}
        wanted = {*positional, *(one.arg for one in arguments.kwonlyargs)}
        return names if names.keys() == wanted else None

    def _is_class(self, module: str, name: str) -> bool:
        return module.startswith("atlas.") and any(
            isinstance(unit, ast.ClassDef) for unit in self._code.definition(module, name)
        )

    def _order(self, module: str, name: str) -> list[str]:
        (unit,) = self._code.definition(module, name)
        assert isinstance(unit, ast.ClassDef)
        return [
            one.target.id for one in unit.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        ]
