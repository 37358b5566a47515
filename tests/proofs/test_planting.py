"""Faults in kernels: each made by hand is found in its kernel, and operators make the kinds that people make."""

import ast
import dataclasses

import pytest
from atlas import catalog
from atlas.errors import AtlasError
from atlas.validation import CHECKS

from proofs.mutants import generated, planting
from proofs.mutants import proof as mutants
from proofs.mutants.handmade import MUTANTS
from proofs.mutants.planting import Edit


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.kernel}: {mutant.name}")
def test_every_edit_stands_once_in_its_kernel_and_leaves_files_that_parse(mutant):
    changed = planting.mutated(mutant)
    assert changed
    for path, tree in changed.items():
        source = ast.unparse(tree)
        assert source != ast.unparse(ast.parse(planting.sources()[path]))
        compile(source, f"{mutant.name}: {path}", "exec")


def test_the_list_names_kernels_checks_and_places_that_there_are():
    assert {mutant.kernel for mutant in MUTANTS} <= set(catalog.names())
    assert len({(mutant.kernel, mutant.name) for mutant in MUTANTS}) == len(MUTANTS)  # --kernels and --only choose one
    for mutant in MUTANTS:
        assert mutant.caught_by in (*CHECKS, planting.CERTIFICATE)
        assert (mutant.config is not None) == (mutant.caught_by == planting.CERTIFICATE)
        declaration = catalog.load(mutant.kernel)
        if mutant.variant == "public":
            continue
        assert mutant.variant in [variant.name for variant in declaration.passes[mutant.direction].variants]
        assert not mutant.huge or declaration.huge_cases
        if mutant.config is not None:
            space = declaration.passes[mutant.direction].variant(mutant.variant).space
            assert all(mutant.config[name] in values for name, values in space.items())


def test_what_is_gone_or_ambiguous_is_an_error_that_names_kernel_and_python():
    mutant = next(mutant for mutant in MUTANTS if mutant.kernel == "softmax")
    for old, said in (("no_such(name)", "is not there"), ("tl.load", "times there")):
        broken = dataclasses.replace(mutant, edits=(Edit(old, "0"),))
        with pytest.raises(AtlasError) as caught:
            planting.mutated(broken)
        assert all(word in str(caught.value) for word in ("kernels/softmax", repr(old), said))


def test_a_fault_is_found_whatever_the_layout_and_a_names_underscore():
    trees = planting.Trees()
    path = Edit("( x+y )", "x - y", "add").apply(trees, "vector_add")
    assert path.startswith("vector_add") and "x - y" in ast.unparse(trees[path])


def test_a_copy_registers_operators_of_its_own(tmp_path):
    import torch

    true = torch.ops.kernel_atlas
    for kernel in ("matmul", "rope"):
        catalog.load(kernel)
        before = getattr(true, kernel).default
        copy = planting.load(planting.plant(tmp_path, kernel), interpret=False)
        assert getattr(true, kernel).default is before
        launchers = [variant.launch for work in copy.passes.values() for variant in work.variants]
        modules = [getattr(launch, "func", launch).__module__ for launch in launchers]  # some are partial
        assert all(module.startswith(f"atlas_planted_{kernel}") for module in modules), "the copy's own code"


def test_an_unknown_mutant_is_an_error_with_the_nearest_name():
    with pytest.raises(AtlasError, match="did you mean 'variance over n - 1'"):
        mutants.select(MUTANTS, catalog.names(), "variance over n")
    assert [m.name for m in mutants.select(MUTANTS, ["layer_norm"], "variance over n - 1")] == ["variance over n - 1"]


def test_nothing_caught_proves_nothing():
    assert [claim.found for claim in mutants.claims([]) if not claim.holds] == [0]


@pytest.mark.parametrize(
    ("gpu", "absent"),
    [
        ("h200", set()),
        ("a100", {"coordinates of a descriptor swapped"}),  # sm_80 has no descriptors
        ("t4", {"coordinates of a descriptor swapped", "tf32 in the place of fp32", "an offset of 32 bits"}),  # 16 GiB
        ("cpu", {"coordinates of a descriptor swapped", "partial sums by atomics", "an offset of 32 bits"}),
    ],
)
def test_what_a_gpu_cannot_show_is_said_and_not_held_against_validation(gpu, absent):
    from atlas.reading.config import GPUS_FILE, load_gpus
    from atlas.stages import frame

    job = frame.Job("prove", None, gpu, load_gpus(GPUS_FILE)[gpu], None, None)
    widened = next(one for one in generated.mutants(["vector_add"]) if one.kind == "offset of 32 bits")
    tried = [*MUTANTS, dataclasses.replace(widened, name="an offset of 32 bits")]
    reasons = {mutant.name: mutants.why_not_here(mutant, job) for mutant in tried}
    assert all(reasons[name] for name in absent)
    assert bool(absent) == any(reasons.values())
