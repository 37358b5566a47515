"""Which entry of a file of tuned configs a call takes: that of its kernel, pass, dtype and very case."""

import pytest
from atlas.declaration import GPU, Declaration, Pass, Variant, case, choice, eager

H200 = GPU("h200", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=2**37, l2_bytes=2**25)


def declared() -> Declaration:
    """A kernel whose two passes have variants of one name and one space, as most do."""
    work = Pass(
        inputs=lambda problem, device, generator: {},
        reference=lambda: None,
        outputs=("y",),
        variants=(Variant("tiled", lambda *, config: None, {"BLOCK": (1, 2, 4)}, lambda problem, gpu: {"BLOCK": 1}),),
        peers={"torch": eager(lambda: None)},
        bytes=lambda problem: {"y": problem["m"]},
        flops=lambda problem: {},
    )
    return Declaration(
        name="toy", family="toys", summary="", function=lambda: None, call=lambda f, i: None, dtypes=("fp32",),
        cases=lambda gpu: [], edge_cases=(), forward=work, backward=work,
    )  # fmt: skip


def entry(block, sizes=None, **more):
    sizes = sizes or {"m": 64, "n": 64}
    return {"kernel": "toy", "direction": "forward", "dtype": "fp32", "sizes": sizes, "variant": "tiled",
            "config": {"BLOCK": block}, "certificate": {"checks": 1}} | more  # fmt: skip


def chosen(*entries, direction="forward", **sizes):
    sizes = sizes or {"m": 64, "n": 64}
    return choice.explained(declared(), direction, case("fp32", **sizes), H200, entries).config["BLOCK"]


@pytest.mark.parametrize("other", [{"direction": "backward"}, {"kernel": "another"}, {"dtype": "bf16"}])
def test_an_entry_of_another_pass_kernel_or_dtype_is_never_used(other):
    assert chosen(entry(2, **other)) == 1, "the default"
    assert chosen(entry(2, **other), entry(4)) == 4


def test_each_pass_has_its_own_entry():
    entries = entry(2), entry(4, direction="backward")
    assert (chosen(*entries), chosen(*entries, direction="backward")) == (2, 4)


@pytest.mark.parametrize("config", [{}, {"BLOCK": 2, "STAGES": 1}, {"STAGES": 1}], ids=["less", "more", "other"])
def test_an_entry_whose_parameters_are_not_those_of_the_space_is_passed_over(config):
    assert chosen(entry(2, config=config)) == 1
    assert chosen(entry(2, config=config), entry(4)) == 4


@pytest.mark.parametrize("sizes", [{"m": 65, "n": 64}, {"m": 64, "n": 65}, {"m": 64}, {"m": 64, "n": 64, "k": 1}])
def test_every_size_counts_for_what_is_the_same_case(sizes):
    assert chosen(entry(2, sizes=sizes)) == 1
    assert chosen(entry(2, sizes=sizes), entry(4)) == 4
