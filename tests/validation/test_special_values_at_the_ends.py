"""An infinity at the first, a middle and the last element of each input reaches the results that it should, alone.

Validation plants special values at random elements of its smallest cases.  A variant that peels the ends of rows off
has no block between them there, and made NaN of an infinity in them: it met a zero of the blocks between.  So each
variant is tried here at a case that is as large as the interpreter can afford.
"""

import math

import pytest
import torch
from atlas import catalog
from atlas.declaration.hardware import INTERPRETER
from atlas.validation import specials
from atlas.validation.cases import interpreter_cost
from atlas.validation.inspection import free_inputs
from atlas.validation.problems import Problem
from atlas.validation.variants import launch

MOST = 3e5
"""What a case may cost in the interpreter, as ``interpreter_cost`` counts."""

KERNELS = (
    "matmul", "batched_matmul", "matmul_epilogue", "grouped_matmul", "matmul_8bit", "matmul_w4a16",
    "layer_norm", "rms_norm", "layer_norm_linear", "softmax", "reduction", "cross_entropy", "linear_cross_entropy",
    "activation", "multiply_add", "rope", "embedding",
)  # fmt: skip
"""Without those whose masks drop what the reference multiplies by 0."""


def tried(name):
    """(variant, case) of a kernel's forward pass: the costliest affordable edge case of each variant."""
    declaration = catalog.load(name, interpret=True)
    work = declaration.forward
    costs = {case: interpreter_cost(work, case) for case in declaration.edge_cases}
    affordable = sorted((case for case in costs if 0 < costs[case] <= MOST), key=costs.get)
    for variant in work.variants:
        able = [case for case in affordable if not variant.unsupported(case, INTERPRETER)]
        if able:
            yield pytest.param(name, variant.name, able[-1], id=f"{name} {variant.name}")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinity times 0
@pytest.mark.parametrize(("name", "variant", "case"), [one for name in KERNELS for one in tried(name)])
def test_an_infinity_reaches_what_it_should_alone(name, variant, case):
    declaration = catalog.load(name, interpret=True)
    chosen = declaration.forward.variant(variant)
    config = dict(chosen.default(case, INTERPRETER))
    problem = Problem(declaration, "forward", case, torch.device("cpu"), seed=0)
    for which in specials.plantable(problem.inputs, free_inputs(problem)):
        tensor = problem.inputs[which]
        for place in dict.fromkeys((0, tensor.numel() // 2, tensor.numel() - 1)):
            index = [int(one) for one in torch.unravel_index(torch.tensor(place), tensor.shape)]
            hard = tensor.clone()
            hard[tuple(index)] = math.inf if torch.tensor(math.inf).to(tensor.dtype).isinf() else math.nan
            planted = problem.with_inputs(dict(problem.inputs) | {which: hard})
            outputs, _ = launch(planted, chosen, config, run=0)
            found = planted.judge(outputs)
            assert not found.reason, f"{which}{index} of {case} with {config}: {found.reason}"
