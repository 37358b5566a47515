"""What a call of no elements runs: it asks for a default like any other, on GPUs that nothing here validates on."""

import pytest
from atlas import catalog
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.public import empty_cases

GPUS = [gpu(name, block) for name, block in load_gpus().items() if name in ("t4", "a100", "h200")]
PRODUCTS = ("matmul", "batched_matmul", "matmul_epilogue", "matmul_8bit", "matmul_w4a16", "matmul_w8a16")
"""Other public functions return before they ask."""


@pytest.mark.parametrize("kernel", PRODUCTS)
def test_every_variant_that_takes_a_case_without_elements_has_a_default_for_it(kernel):
    """A batch of no fp32 matrices divided by the number of programs."""
    declaration = catalog.load(kernel)
    small = {case.dtype: case for case in reversed(declaration.edge_cases)}
    for empty in (empty for case in small.values() for empty in empty_cases(declaration, case)):
        for on in GPUS:
            for variant in declaration.forward.variants:
                if not variant.unsupported(empty, on):
                    assert variant.default(empty, on).keys() == variant.space.keys(), (variant.name, empty, on.name)
