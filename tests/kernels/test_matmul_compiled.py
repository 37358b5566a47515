"""What matrix products compile to: instructions, registers, shared memory."""

import pytest
import torch
from atlas.declaration import Case
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus

from kernels.common.products import buffers, stage_bytes
from kernels.matmul.described import descriptor_of

GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", True)}


COMPILE = """
import json, os, subprocess, sys, tempfile
from atlas.compilation.compiled import compile_config
from atlas.compilation.offline import compile_only
from atlas.reading.config import load_gpus
from atlas.declaration import Case, case
from atlas.host.gpus import gpu
from kernels.matmul import DECLARATION
from triton import knobs

work, found = DECLARATION.forward, []
for name, variant, dtype, m, n, k in (
    ("t4", "tiled", "fp16", 4096, 4096, 4096),
    ("a100", "tiled", "bf16", 1024, 1024, 1024),
    ("h200", "tiled", "bf16", 4100, 4100, 4100),
    ("h200", "descriptor", "bf16", 1024, 1024, 1024),
    ("h200", "persistent", "bf16", 4096, 4096, 4096),
    ("h200", "persistent", "tf32", 4096, 4096, 4096),
    ("h200", "specialized", "bf16", 4096, 4096, 4096),
    ("h200", "split", "bf16", 16, 8192, 8192),
):
    on, problem = gpu(name, load_gpus()[name]), case(dtype, m=m, n=n, k=k)
    config = work.variant(variant).default(problem, on)
    compiled = compile_config(DECLARATION, "forward", variant, problem, config, on).to_json()
    if variant == "specialized":
        with compile_only(on) as requests:
            work.variant(variant).launch(**work.inputs(problem, "meta", None), config=config)
        compiled["roles"] = "ttg.warp_specialize" in requests[0].kernel.asm["ttgir"]
    found.append([name, variant, problem.to_json(), config, compiled])


def listing(name, variant, dtype, layout):
    on, problem = gpu(name, load_gpus()[name]), case(dtype, m=4096, n=4096, k=4096, layout=layout)
    way = work.variant(variant)
    with compile_only(on) as requests:
        way.launch(**work.inputs(problem, "meta", None), config=way.default(problem, on))
    return requests[-1].kernel.asm["ptx"]


def complaints(ptx):
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [knobs.nvidia.ptxas.path, "-v", "-arch=sm_90a", file.name, "-o", os.devnull]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


json.dump(
    {
        "defaults": found,
        "complaints": {
            f"{variant} {layout}": complaints(listing("h200", variant, "bf16", layout))
            for variant in ("tiled", "descriptor", "persistent")
            for layout in ("NN", "NT")
        },
        "roundings": listing("a100", "tiled", "tf32", "NN").count("cvt.rna.tf32"),
    },
    sys.stdout,
)
"""


@pytest.fixture(scope="module")
def built(printed_apart):
    """What was compiled ahead of time; in a process of its own, since this one interprets kernels."""
    return printed_apart(COMPILE)


@pytest.fixture(scope="module")
def compiled(built):
    """Default configs, each with what became of it."""
    return built["defaults"]


def test_no_product_on_tensor_cores_waits_for_the_one_before(built):
    # ptxas puts a wait behind each wgmma where it cannot tell what holds the accumulator (C7510 to C7515)
    assert {name: text for name, text in built["complaints"].items() if "serialized" in text} == {}


def test_operands_of_tf32_are_rounded_before_tensor_cores_cut_them_off(built):
    assert built["roundings"] > 0
    a = torch.ones(32, 16)
    assert descriptor_of(a, [16, 16], "tf32").round_f32_to_tf32
    assert not getattr(descriptor_of(a, [16, 16]), "round_f32_to_tf32", False)


def test_defaults_compile_without_spills_and_fit_the_gpu(compiled):
    for name, _, problem, config, result in compiled:
        assert result["status"] == "ok", (name, problem, result["reason"])
        assert result["spill_bytes"] == 0, (name, problem, config)
        assert result["shared_bytes"] <= GPUS[name].shared_bytes


def test_each_architecture_gets_its_matrix_instruction(compiled):
    # T4: none through tl.dot; thin tiles: below wgmma's 64 rows
    for name, variant, problem, config, result in compiled:
        tensor_cores = "wgmma" if name == "h200" and config["BLOCK_M"] >= 64 else "mma"
        expected = "fma" if name == "t4" else tensor_cores
        assert result["matrix_instruction"] == expected, (name, variant, problem, config)


def test_warps_have_roles_where_the_variant_says_so(compiled):
    # 3.6 and 3.7 drop the request without a word if the kernel is not as they want it
    assert [result["roles"] for *_, result in compiled if "roles" in result] == [True]


def test_aligned_operands_are_read_16_bytes_at_a_time(compiled):
    for name, variant, problem, config, result in compiled:
        if problem["sizes"]["k"] % 16 == 0:
            assert result["widest_access_bits"] == 128, (name, variant, problem, config)


def test_the_shared_memory_of_the_space_is_what_the_compiler_takes(compiled):
    for name, variant, problem, config, result in compiled:
        # FMA takes so little that the exchange of C on its way out is more; odd sizes are not copied asynchronously
        if (
            variant in ("tiled", "descriptor")
            and result["matrix_instruction"] != "fma"
            and problem["sizes"]["k"] % 16 == 0
        ):
            problem = Case.from_json(problem)
            estimate = buffers(config, problem, GPUS[name]) * stage_bytes(config, problem)
            assert 0 <= result["shared_bytes"] - estimate <= 2048, (name, problem, config)
