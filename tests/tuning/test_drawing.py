"""Cases that are drawn: the same by a seed, calls that a kernel takes, near those of which nothing is known."""

import dataclasses

import pytest
from atlas import catalog
from atlas.declaration import case
from atlas.host import gpus, runtime
from atlas.reading.config import load_gpus
from atlas.sampling import domains, drawing
from atlas.validation.cases import INTERPRETER_LIMIT, interpreter_cost

CPU, H200 = (gpus.gpu(name, load_gpus()[name]) for name in ("cpu", "h200"))


@pytest.fixture(scope="module")
def softmax():
    return catalog.load("softmax")


def test_a_seed_gives_the_same_cases_and_another_one_others(softmax):
    first, again, other = (drawing.covering(softmax, H200, seed, 3, []) for seed in (1, 1, 2))
    assert first == again and len(set(first)) == 3 and set(first) != set(other)


def test_drawn_cases_lie_where_little_is_known(softmax):
    known = [one for one in drawing.drawn(softmax, H200, 5, 40) if one["m"] > 1000]
    near = [drawing.covering(softmax, H200, 5, 8, given) for given in ([], known)]
    small = [sum(one["m"] <= 1000 for one in found) for found in near]
    assert small[1] > small[0] and not set(near[1]) & set(known)


def test_drawn_cases_reach_more_calls_than_as_many_by_luck(softmax):
    """Within two doublings of what is known or drawn, in the same flags."""
    known = runtime.sweep(softmax, H200)
    calls = drawing.drawn(softmax, H200, 77, 80)

    def reached(cases):
        return sum(max(drawing.reach(call, one) for one in (*known, *cases)) > 0.17 for call in calls)

    by_luck = drawing.drawn(softmax, H200, 4, 12)
    assert reached([]) < reached(by_luck) < reached(drawing.covering(softmax, H200, 4, 12, known))


def test_what_a_case_reaches_has_its_flags_and_width():
    one = case("bf16", m=1024, n=1024, causal=True)
    near = [drawing.reach(one, dataclasses.replace(one, dtype=dtype)) for dtype in ("bf16", "fp16", "fp32")]
    assert near[0] == 1 and 0.9 < near[1] < 1 and near[2] == 0
    by_size = [drawing.reach(one, case("bf16", m=1024, n=n, causal=True)) for n in (2048, 4096)]
    assert 1 > by_size[0] > 0.5 > by_size[1] > drawing.reach(one, case("bf16", m=1024, n=1024, causal=False))


def test_a_kernel_without_a_domain_is_drawn_around_its_own_cases(softmax, monkeypatch):
    monkeypatch.delitem(domains.DOMAINS, "softmax")
    own = runtime.sweep(softmax, H200)
    found = drawing.drawn(softmax, H200, 3, 8)
    assert len(found) == 8 and not set(found) & set(own)
    assert {frozenset(dict(one.sizes)) for one in found} <= {frozenset(dict(one.sizes)) for one in own}


def test_the_interpreter_gets_what_it_can_afford(softmax):
    found = drawing.drawn(softmax, CPU, 3, 4)
    assert found and all(interpreter_cost(softmax.forward, one) <= INTERPRETER_LIMIT for one in found)


def test_sizes_that_were_equal_stay_equal_and_flags_stay():
    square = dataclasses.replace(
        catalog.load("matmul"), name="mine", cases=lambda gpu: [case("bf16", m=512, n=512, k=256)]
    )
    for one in drawing.drawn(square, H200, 0, 4):
        assert one["m"] == one["n"] and one.dtype == "bf16"
