"""What of a kernel decides which document: an identity for each variant, and for cases, references, peers and the rest.

An identity is a digest of all the code that is reached from some fields of the declaration
(:class:`~atlas.identity.code.Code` says in which form).  Names of the identities:

``forward.online``   a variant: launcher, device functions, space, default, ``fits``, ``handles``, ``needs``
``inputs``           how a case's inputs are drawn
``sweep``            the cases that are tuned and timed
``cases``            the cases that validation adds, and the dtypes
``references``       references, tolerances and how a pass is checked
``costs``            least traffic and arithmetic
``peers``            the peers, with the launchers of those in CUDA C++
``public``           the public function, its gradient, and how validation calls it
``choice``           how a call weighs configs that were timed at other cases

``forward.*`` is that of a whole pass whose variants cannot be read from the file, ``*`` of a declaration that cannot.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from .code import Code
from .declared import Reader, Structure
from .scopes import WHOLE, Definition, Root

DECLARATION = "DECLARATION"
INPUTS, SWEEP, CASES, REFERENCES, COSTS, PEERS, PUBLIC, CHOICE = PARTS = (
    "inputs", "sweep", "cases", "references", "costs", "peers", "public", "choice",
)  # fmt: skip

_WEIGHING = ("atlas.declaration.expected", "atlas.declaration.likeness")
"""What weighs configs.  They come from files, which no identity knows, and each was certified where it was tuned: which
of them is taken decides how fast a call is, and not whether it is right."""

_PROSE = frozenset({"name", "family", "summary", "follows"})
"""Fields that are shown and decide nothing."""

_OF_DECLARATION = {
    "function": PUBLIC,
    "call": PUBLIC,
    "differentiable": PUBLIC,
    "dtypes": CASES,
    "edge_cases": CASES,
    "huge_cases": CASES,
    "cases": SWEEP,
}
_OF_PASS = {
    "inputs": INPUTS,
    "bytes": COSTS,
    "flops": COSTS,
    "peers": PEERS,
    "weak": PEERS,
    "reference": REFERENCES,
    "outputs": REFERENCES,
    "reduction": REFERENCES,
    "random": REFERENCES,
    "rounds_products": REFERENCES,
    "offset_inputs": REFERENCES,
    "precision": REFERENCES,
    "spread": REFERENCES,
}

Roots = list[tuple[str, Root]]


def name_of(direction: str, variant: str) -> str:
    """The name of a variant's identity."""
    return f"{direction}.{variant}"


def find(identities: Mapping[str, str], name: str) -> str | None:
    """The identity of a name, or of the whole that it is part of where that alone is known."""
    whole = name_of(name.partition(".")[0], WHOLE)
    return next((identities[one] for one in (name, whole, WHOLE) if one in identities), None)


def digest(identities: Mapping[str, str]) -> str:
    """SHA-256 of the identities of all variants: the version of what runs, as one word."""
    own = {name: one for name, one in identities.items() if name not in PARTS}
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def identities(code: Code, kernel: str) -> dict[str, str]:
    """Every identity of a kernel, by its name."""
    return {name: code.digest(roots, _apart(code, kernel, name)) for name, roots in roots_of(code, kernel).items()}


def reached(code: Code, kernel: str) -> dict[str, set[Definition]]:
    """By identity the definitions, as (module, name), that it is of."""
    return {name: code.reached(roots, _apart(code, kernel, name)) for name, roots in roots_of(code, kernel).items()}


def _apart(code: Code, kernel: str, name: str) -> set[Root]:
    """What an identity leaves out: that of the public function the kernel's variants and what weighs configs, which
    have some themselves."""
    if name != PUBLIC:
        return set()
    found = code.resolve(f"kernels.{kernel}", DECLARATION)
    own = {found[1:]} if found is not None and found[0] == "definition" else set()
    return own.union(*(code.defined(module) for module in _WEIGHING))


def roots_of(code: Code, kernel: str) -> dict[str, Roots]:
    """By identity the expressions that it begins with, each with the field's name."""
    module = f"kernels.{kernel}"
    declaration = Reader(code).declaration(module)
    if declaration is None:
        return {WHOLE: [("module", (module, WHOLE))]}
    public = Reader(code).public(module)
    found: dict[str, Roots] = {PUBLIC: [("function", public)]} if public is not None else {}
    unknown: Roots = []
    for field, value in declaration.fields.items():
        if field in ("forward", "backward"):
            work = Reader(code).structure(value, "Pass")
            if work is None:
                found[name_of(field, WHOLE)] = [(field, value)]
            else:
                _add_pass(code, found, field, work)
        elif field in _OF_DECLARATION:
            found.setdefault(_OF_DECLARATION[field], []).append((field, value))
        elif field not in _PROSE:
            unknown.append((field, value))
    launchers = f"kernels.cuda.{kernel}"
    if code.module(launchers) is not None:
        found.setdefault(PEERS, []).append(("cuda", (launchers, WHOLE)))
    if PUBLIC in found:
        found[CHOICE] = [(module, (module, WHOLE)) for module in _WEIGHING if code.module(module) is not None]
    return {name: [*roots, *unknown] for name, roots in found.items()}


def stands_for(code: Code, module: str, name: str) -> Roots | None:
    """What counts of a declaration that code refers to, to choose a config and launch: variants, no case or peer."""
    declaration = Reader(code).declaration(module) if name == DECLARATION else None
    if declaration is None:
        return None
    found: dict[str, Roots] = {}
    for field in ("forward", "backward"):
        work = Reader(code).structure(declaration.fields.get(field), "Pass")
        if work is not None:
            _add_pass(code, found, field, work)
        elif field in declaration.fields:
            found[name_of(field, WHOLE)] = [(field, declaration.fields[field])]
    return [(f"{which} {label}", root) for which, roots in found.items() if "." in which for label, root in roots]


def _add_pass(code: Code, found: dict[str, Roots], direction: str, work: Structure) -> None:
    common = [
        (field, value)
        for field, value in work.fields.items()
        if field not in _OF_PASS and field not in _PROSE and field != "variants"
    ]
    for field, value in work.fields.items():
        if field in _OF_PASS:
            found.setdefault(_OF_PASS[field], []).append((f"{direction} {field}", value))
    reader = Reader(code)
    values = reader.items(work.fields.get("variants"))
    variants = [reader.structure(value, "Variant") for value in values or []]
    names = [reader.text(variant.fields.get("name")) if variant else None for variant in variants]
    if not variants or None in names:
        found[name_of(direction, WHOLE)] = [("variants", work.fields["variants"]), *common]
        return
    for name, variant in zip(names, variants, strict=True):
        assert name is not None and variant is not None
        own = [(field, value) for field, value in variant.fields.items() if field not in _PROSE]
        found[name_of(direction, name)] = [("class", variant.definition), *sorted(own, key=_label), *common]


def _label(root: tuple[str, Root]) -> str:
    return root[0]
