"""A B200 before anybody has run a kernel there: its tensor cores read shared memory, as those of Hopper do."""

import pytest
from atlas.declaration.products import reads_shared_memory
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus

from kernels import attention, grouped_matmul, matmul_8bit

B200, H200, L40S = (gpu(name, load_gpus()[name]) for name in ("b200", "h200", "l40s"))


def test_operands_are_read_where_they_lie_but_for_int8():
    cases = matmul_8bit.DECLARATION.cases(B200)
    read = {case.dtype: reads_shared_memory(case, B200) for case in cases}
    assert read["int8"] is False and read["fp8e4m3"] is True
    assert all(reads_shared_memory(case, H200) and not reads_shared_memory(case, L40S) for case in cases)


@pytest.mark.parametrize("kernel", [attention, grouped_matmul, matmul_8bit])
def test_defaults_are_configs_of_their_spaces(kernel):
    for work in kernel.DECLARATION.passes.values():
        for case in kernel.DECLARATION.cases(B200):
            for variant in work.variants:
                if not variant.unsupported(case, B200):
                    assert not variant.fits(variant.default(case, B200), case, B200), (variant.name, case)


def test_attention_takes_128_queries_at_a_time():
    forward = attention.DECLARATION.forward
    for case in attention.DECLARATION.cases(B200):
        for name in ("descriptor", "tiled"):
            if case.dtype != "fp32" and not forward.variant(name).unsupported(case, B200):
                assert forward.variant(name).default(case, B200)["BLOCK_M"] == 128
