"""Mutation operators: what each makes of a function, and that what they make of the kernels can be planted."""

import ast
import functools

import pytest
from atlas import catalog
from atlas.identity import today

from proofs.mutants import equivalent, generated, operators, planting

MADE = [
    # operator, before, what may stand in its place
    ("mask dropped", "tl.load(p, mask=m, other=0.0)", ["tl.load(p)"]),
    ("mask dropped", "tl.store(p, x, mask=m)", ["tl.store(p, x)"]),
    ("bound off by one", "offs < n", ["offs <= n"]),
    ("condition dropped", "(a < m) & (b < n)", ["a < m", "b < n"]),
    ("condition dropped", "x & 15", []),  # of bits, not of masks
    ("wrong identity", "tl.load(p, mask=m, other=0.0)", ["tl.load(p, mask=m, other=1.0)"]),
    ("wrong identity", "tl.load(p, mask=m, other=-float('inf'))", ["tl.load(p, mask=m, other=0.0)"]),
    ("wrong identity", "tl.zeros([B], tl.float32)", ["tl.full([B], 1, tl.float32)"]),
    ("dtype narrowed", "x.to(tl.float32)", ["x"]),
    ("offset of 32 bits", "row.to(tl.int64)", ["row"]),
    ("offset of 32 bits", "tl.cast(row, tl.int64)", ["row"]),
    ("operands swapped", "a - b", ["b - a"]),
    ("operand dropped", "a * b", ["a"]),
    ("sum overwritten", "acc += x", ["acc = x"]),
    ("index off by one", "tl.program_id(0)", ["tl.program_id(0) + 1"]),
    ("opposite function", "tl.maximum(a, b)", ["tl.minimum(a, b)"]),
    ("sign dropped", "-x", ["x"]),
    ("sign dropped", "-1", []),  # a number's: axis=-1
    ("condition ignored", "tl.where(m, x, 0.0)", ["x"]),
    ("store dropped", "tl.store(p, x)", ["pass"]),
    ("fence dropped", "tl.debug_barrier()", ["pass"]),
    ("blocks rounded down", "tl.cdiv(n, B)", ["tl.maximum(n // B, 1)"]),
    ("strides swapped", "f(*x.stride())", ["f(*x.stride()[::-1])"]),
    ("strides swapped", "x.stride(0)", ["x.stride(1)"]),
    ("blocks rounded down", "triton.cdiv(n, B)", ["max(n // B, 1)"]),
    ("input overwritten", "torch.empty_like(x)", ["x"]),
    ("memory not cleared", "torch.zeros(n)", ["torch.empty(n)"]),
    ("strided input taken", "x.contiguous()", ["x"]),
]


@pytest.mark.parametrize(("operator", "before", "after"), MADE, ids=[f"{name}: {text}" for name, text, _ in MADE])
def test_an_operator_makes_its_fault_and_no_other(operator, before, after):
    table = operators.HOST if operator in operators.HOST and "tl." not in before else operators.DEVICE
    made = []
    for number in range(len(after) + 1):
        (function,) = ast.parse(f"def f():\n    {before}").body
        try:
            operators.mutate(function, operator, number, table)
        except IndexError:
            break
        made.append(ast.unparse(ast.fix_missing_locations(function)).partition("\n")[2].strip())
    assert made == after


@functools.cache
def source():
    """The kernels' source, read once: no test changes a file."""
    return today.code_of(catalog.KERNELS), planting.Trees()


def test_every_operator_finds_something_to_do_in_the_kernels():
    kinds = {
        mutant.kind
        for mutant in generated.mutants(["matmul", "layer_norm", "cross_entropy", "attention", "matmul_8bit"], source())
    }
    assert kinds >= {*operators.DEVICE, *operators.HOST} - {"sign dropped", "memory not cleared"}


@pytest.mark.parametrize("kernel", catalog.names())
def test_a_generated_fault_changes_one_function_and_names_where_it_is_run(kernel):
    made = generated.mutants([kernel], source())  # of attention_mla few: most of its code is attention's
    chosen = generated.sample(made, 4)
    declaration = catalog.load(kernel)
    assert len(chosen) == min(4, len(made))
    assert len({mutant.kind for mutant in chosen}) == min(4, len({mutant.kind for mutant in made}))
    for mutant in chosen:
        ((path, tree),) = planting.mutated(mutant).items()
        before = ast.parse(planting.sources()[path])
        changed = [
            new.name for old, new in zip(before.body, tree.body, strict=True) if ast.unparse(old) != ast.unparse(new)
        ]
        assert changed == [mutant.edits[0].function]
        for direction, variant in mutant.reached_by:
            assert variant == "public" or declaration.passes[direction].variant(variant)


def test_what_families_share_is_tried_once():
    made = generated.mutants(catalog.names(), source())
    assert len({mutant.name for mutant in made}) == len(made)
    shared = {mutant.kernel for mutant in made if mutant.name.startswith("common/rows.py")}
    assert len(shared) == 1


def test_a_sample_is_the_same_each_time_and_of_many_kinds():
    made = generated.mutants(["softmax"], source())
    first, again = (generated.sample(made, 8) for _ in range(2))
    assert first == again and len({mutant.kind for mutant in first}) == 8


def test_a_probe_raises_before_the_statement_of_the_fault():
    (function,) = ast.parse("def f(x, n):\n    if x < n:\n        y = 1 - x\n        return y\n    return 0").body
    operators.probe(function, "operands swapped", 0, operators.DEVICE)
    assert ast.unparse(function).splitlines()[2].strip().startswith("raise")


def test_a_fault_that_cannot_be_caught_has_its_reason():
    loads = "vector_add.py: _add: mask dropped 0: tl.load(x_ptr + offs, mask=mask) -> tl.load(x_ptr + offs)"
    assert "memory checker" in equivalent.reason(loads)
    assert equivalent.reason(loads.replace("load", "store")) == ""
