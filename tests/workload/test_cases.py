"""A workload's cases stand in the place of a kernel's own, and decide what is due."""

import json
from pathlib import Path

import pytest
from atlas import catalog, cli
from atlas.declaration import case
from atlas.errors import AtlasError
from atlas.host import gpus
from atlas.identity import kernel, today
from atlas.identity.needs import changed
from atlas.reading.config import load_gpus
from atlas.workload import current, mapping

HEAD = {"format": "kernel-atlas calls", "version": 1}


def softmax(m, n, dtype="bf16", **more):
    """A case of softmax as a user writes it by hand."""
    return {"kernel": "softmax", "dtype": dtype, "sizes": {"m": m, "n": n}} | more


@pytest.fixture
def of(tmp_path, monkeypatch):
    """Makes cases written by hand the workload of this process."""

    def make(*cases, name="mine.json"):
        path = tmp_path / name
        path.write_text(json.dumps(HEAD | {"cases": list(cases)}))
        monkeypatch.setenv(current.VARIABLE, str(path))
        return current.current()

    return make


@pytest.fixture(scope="module")
def h200():
    return gpus.gpu("h200", load_gpus()["h200"])


def test_the_workload_s_cases_are_tuned_and_timed_and_no_others(of, h200):
    own = catalog.load("softmax")
    of(softmax(100, 300), softmax(7, 9, "fp32"))
    found = catalog.load("softmax")
    assert found.cases(h200) == [case("bf16", m=100, n=300), case("fp32", m=7, n=9)]
    assert found.function is own.function and found.huge_cases == ()


def test_edge_cases_of_the_dtypes_at_hand_stay_for_configs_are_certified_on_them(of):
    every = catalog.load("softmax").edge_cases
    of(softmax(100, 300))
    assert catalog.load("softmax").edge_cases == tuple(one for one in every if one.dtype == "bf16")


def test_a_kernel_that_the_workload_does_not_meet_is_as_it_is(of, h200):
    own = catalog.load("rms_norm").cases(h200)
    of(softmax(100, 300))
    assert catalog.load("rms_norm").cases(h200) == own


def test_without_a_gradient_in_it_no_backward_pass_is_tuned(of):
    of(softmax(100, 300, direction="forward"))
    assert list(catalog.load("softmax").passes) == ["forward"]
    of(softmax(100, 300), name="both.json")
    assert list(catalog.load("softmax").passes) == ["forward", "backward"]


def test_the_interpreter_gets_the_cases_that_it_can_afford_and_else_the_kernel_s_smallest(of):
    declared, workload = catalog.load("softmax"), of(softmax(100, 300), softmax(8192, 8192))
    assert mapping.narrowed(declared, workload, interpret=True).edge_cases == (case("bf16", m=100, n=300),)
    workload = of(softmax(8192, 8192), name="large.json")
    kept = mapping.narrowed(declared, workload, interpret=True).edge_cases
    assert kept and {one.dtype for one in kept} == {"bf16"} and case("bf16", m=8192, n=8192) not in kept


def test_other_cases_change_what_is_tuned_and_nothing_of_the_kernel(of):
    plain = catalog.identities("softmax")
    of(softmax(100, 300))
    first = catalog.identities("softmax")
    of(softmax(100, 301), name="other.json")
    second = catalog.identities("softmax")
    assert changed("autotune", first, second) == changed("autotune", plain, first) == ["sweep"]


def test_watching_and_workloads_are_no_part_of_what_a_kernel_runs():
    """Or every record would be stale when they are edited."""
    code = today.code_of(catalog.KERNELS)
    reached = set().union(*(one for name in catalog.names() for one in kernel.reached(code, name).values()))
    assert not {module for module, _ in reached if module.startswith(("atlas.watching", "atlas.workload"))}


def test_counts_change_no_case(of):
    of(softmax(100, 300, count=5))
    first = catalog.identities("softmax")
    of(softmax(100, 300, count=6), name="other.json")
    assert catalog.identities("softmax") == first


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"kernel": "softmax", "dtype": "bf16", "sizes": {"rows": 4}}, "has no size"),
        ({"kernel": "softmax", "dtype": "bf17", "sizes": {"m": 4, "n": 4}}, "takes fp32, fp16, bf16: bf17"),
    ],
)
def test_a_case_that_the_kernel_cannot_draw_is_told_by_the_command_and_refused_by_a_stage(of, capsys, written, said):
    workload = of(written)
    with pytest.raises(AtlasError, match=said):
        catalog.load("softmax")
    assert cli.main(["workload", str(workload.path), "--gpu", "h200"]) in (0, 2)
    assert said in " ".join("".join(capsys.readouterr()).split())


def test_a_kernel_of_another_release_is_told_and_not_run(of, capsys):
    workload = of(softmax(4, 4), {"kernel": "hyperbolic", "dtype": "bf16", "sizes": {"m": 4}})
    assert workload.kernels == ["softmax"]
    cli.main(["workload", str(workload.path)])
    assert "of no kernel of this release" in capsys.readouterr().out


def test_of_very_many_cases_those_that_took_longest_are_tuned(of):
    workload = of(*(softmax(n + 1, 8, count=n) for n in range(1, 200)))
    assert len(workload.cases("softmax")) == current.MOST_CASES
    assert workload.cases("softmax")[0][1] == (("m", 200), ("n", 8))


def test_a_workload_in_the_config_and_another_in_the_environment_are_not_chosen_between(of):
    of(softmax(4, 4))
    with pytest.raises(AtlasError, match="unset one of them"):
        current.begin({"workload": "other.json"})
    assert current.begin({"workload": "mine.json"}) == current.begin({}) == Path("workloads/mine")


def test_without_a_workload_nothing_begins(monkeypatch):
    monkeypatch.delenv(current.VARIABLE, raising=False)
    assert current.begin({"workload": ""}) is None is current.current()
