"""Products on GPUs with descriptors and little shared memory, as of compute capability 12.0: no block describes one."""

import pytest
from atlas import catalog
from atlas.host import gpus
from atlas.reading.config import load_gpus
from atlas.sampling import drawing


@pytest.fixture(scope="module")
def desktop():
    block = load_gpus()["b200"] | {"target": {"cuda": 120}, "shared_memory_kib": 99, "sms": 70}
    return gpus.gpu("desktop", block)


@pytest.mark.parametrize("kernel", ["matmul", "batched_matmul", "matmul_epilogue"])
def test_the_default_that_a_call_runs_has_room(desktop, kernel):
    """Every 16-bit matmul raised there: an estimate took the least of no tile."""
    declaration = catalog.load(kernel)
    ran = set()
    for case in (*drawing.drawn(declaration, desktop, seed=5, count=60), *declaration.edge_cases):
        for work in declaration.passes.values():
            variant = next(v for v in work.variants if not v.unsupported(case, desktop))
            config = variant.default(case, desktop)
            assert "shared memory" not in variant.fits(config, case, desktop), f"{variant.name} {config} {case}"
            ran.add(variant.name)
    assert len(ran) > 1, "calls of several kinds"
