"""Mutants as texts: each is found in its kernel, and the list covers the kinds of fault that people make."""

import dataclasses

import pytest
from atlas import catalog
from atlas.errors import AtlasError
from atlas.validation import CHECKS

from proofs.mutants import planting
from proofs.mutants import proof as mutants
from proofs.mutants.planted import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.kernel}: {mutant.name}")
def test_every_edit_stands_once_in_its_kernel_and_leaves_files_that_parse(mutant):
    sources = planting.mutated(mutant)
    assert sources != {path.name: path.read_text() for path in catalog.files(mutant.kernel)}
    for name, source in sources.items():
        compile(source, f"{mutant.name}: {name}", "exec")


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


def test_text_that_is_gone_or_ambiguous_is_an_error_that_names_mutant_kernel_and_text():
    mutant = next(mutant for mutant in MUTANTS if mutant.kernel == "softmax")
    for old in ("no such text", "tl.load"):
        broken = dataclasses.replace(mutant, edits=((old, ""),))
        with pytest.raises(AtlasError) as caught:
            planting.mutated(broken)
        assert all(word in str(caught.value) for word in ("kernels/softmax/", repr(old), repr(mutant.name)))


def test_a_copy_registers_operators_of_its_own(tmp_path):
    import torch

    true = torch.ops.kernel_atlas
    for kernel in ("matmul", "rope"):
        catalog.load(kernel)
        before = getattr(true, kernel).default
        planting.load(planting.plant(tmp_path, kernel), interpret=False)
        assert getattr(true, kernel).default is before


def test_a_copy_of_a_package_runs_its_own_modules(tmp_path):
    copy = planting.load(planting.plant(tmp_path, "rope"), interpret=False)
    launchers = {variant.launch.__module__ for work in copy.passes.values() for variant in work.variants}
    assert launchers == {"atlas_planted_rope__as_it_is.rotation"}


def test_an_unknown_mutant_is_an_error_with_the_nearest_name():
    with pytest.raises(AtlasError, match="did you mean 'epsilon forgotten'"):
        mutants.select(MUTANTS, catalog.names(), "epsilon forgoten")
    assert [m.name for m in mutants.select(MUTANTS, ["layer_norm"], "epsilon forgotten")] == ["epsilon forgotten"]


def test_nothing_caught_proves_nothing():
    assert [claim.found for claim in mutants.claims([]) if not claim.holds] == [0]


@pytest.mark.parametrize(
    ("gpu", "absent"),
    [
        ("h200", set()),
        ("a100", {"coordinates of a descriptor swapped"}),  # sm_80 has no descriptors
        ("t4", {"coordinates of a descriptor swapped", "tf32 in the place of fp32", "offsets of 32 bits"}),  # 16 GiB
        ("cpu", {"coordinates of a descriptor swapped", "partial sums by atomics", "offsets of 32 bits"}),
    ],
)
def test_what_a_gpu_cannot_show_is_said_and_not_held_against_validation(gpu, absent):
    from atlas.reading.config import GPUS_FILE, load_gpus
    from atlas.stages import frame

    job = frame.Job("prove", None, gpu, load_gpus(GPUS_FILE)[gpu], None, None)
    reasons = {mutant.name: mutants.why_not_here(mutant, job) for mutant in MUTANTS}
    assert all(reasons[name] for name in absent)
    assert bool(absent) == any(reasons.values())
