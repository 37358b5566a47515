"""What the kernels over rows compile to, for GPUs that need not be here: registers, access widths, prefetching."""

import pytest

COMPILE = """
import json, sys
from atlas import catalog
from atlas.compilation.compiled import compile_config
from atlas.reading.config import load_gpus
from atlas.host.gpus import gpu

# Powers of two and not, rows that begin off 16 bytes, and what passes the registers: the rest is `atlas build`'s.
SHAPES = {"m=4096 n=1024", "m=4096 n=5120", "m=4096 n=50257", "m=4096 n=32768"}

found = []
blocks = load_gpus()
for kernel in ("softmax", "layer_norm"):
    declaration = catalog.load(kernel)
    for name in ("t4", "h200"):  # sm_75, sm_90
        on = gpu(name, blocks[name])
        for direction, work in declaration.passes.items():
            for problem in declaration.cases(on):
                for variant in work.variants:
                    if (
                        problem.dtype == "bf16"
                        and problem.label in SHAPES
                        and not variant.unsupported(problem, on)
                    ):
                        config = variant.default(problem, on)
                        result = compile_config(declaration, direction, variant.name, problem, config, on).to_json()
                        where = [name, kernel, direction, variant.name, problem.label]
                        found.append({"where": where, "config": config, "limit": on.shared_bytes} | result)
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def compiled(printed_apart):
    """Default configs of some bf16 cases; compiled in a process of its own, since this one interprets kernels."""
    return printed_apart(COMPILE)


def test_defaults_compile_without_spills_and_fit_the_gpu(compiled):
    for result in compiled:
        assert result["status"] == "ok", (result["where"], result["reason"])
        assert result["spill_bytes"] == 0, (result["where"], result["config"])
        assert result["shared_bytes"] <= result["limit"], (result["where"], result["config"])


def test_every_case_is_read_16_bytes_at_a_time(compiled):
    # 5120 is no power of two, and of rows of 50257 elements seven in eight begin off 16 bytes
    assert {"m=4096 n=5120", "m=4096 n=50257"} <= {result["where"][-1] for result in compiled}
    for result in compiled:
        for kernel in result["kernels"]:
            if kernel["name"] != "_sum_partials_kernel":  # fp32 columns, 128 bytes a row of 32 threads
                assert kernel["widest_access_bits"] == 128, (result["where"], kernel["name"])


def test_persistent_programs_prefetch_two_blocks_where_the_gpu_can(compiled):
    for result in compiled:
        gpu, _, direction, variant, label = result["where"]
        if variant == "rows" and gpu != "t4":  # sm_75 has no asynchronous copies
            row = 2 ** (int(label.split("n=")[1].split()[0]) - 1).bit_length() * 2
            tile = result["config"]["BLOCK_M"] * row * (2 if direction == "backward" else 1)
            assert result["shared_bytes"] >= 2 * tile, (result["where"], result["config"])


FEW_ROWS = """
import json, sys
from atlas import catalog
from atlas.compilation.offline import compile_only
from atlas.declaration import case
from atlas.host.gpus import gpu
from atlas.host.runtime import meta_inputs
from atlas.reading.config import load_gpus

on, found = gpu("h200", load_gpus()["h200"]), {}
for kernel, flags in (("layer_norm", {}), ("rms_norm", {"residual": False, "wide": False})):
    work = catalog.load(kernel).backward
    variant = work.variant("rows")
    for m in (2, 64):
        problem = case("bf16", m=m, n=1152, **flags)
        with compile_only(on) as requests:
            variant.launch(**meta_inputs(work, problem), config=variant.default(problem, on))
        found[f"{kernel} {m}"] = [request.kernel.name for request in requests]
json.dump(found, sys.stdout)
"""


def test_rows_of_one_program_take_one_launch_backward(printed_apart):
    one, sums = "_backward_rows_kernel", "_sum_partials_kernel"
    found = printed_apart(FEW_ROWS)
    assert found == {
        f"{norm} {m}": [one] if m == 2 else [one, sums] for norm in ("layer_norm", "rms_norm") for m in (2, 64)
    }
