"""The rules of headline, means and "since the record", on rows made so that every wrong rule gives another answer."""

from types import SimpleNamespace

import pytest
from atlas.results import changes, summary, verdict


def row(median_us=10.0, n=64, dtype="bf16", kind="variant", provider="tiled", **more):
    found = {"direction": "forward", "dtype": dtype, "sizes": {"n": n}, "provider": provider, "provider_kind": kind}
    found |= {"config": None, "status": "ok", "reason": "", "median_us": median_us, "bytes": float(n), "speedup": 1.0}
    return found | more


def against_record(before, now, **documents):
    """The rows of two runs of these times: of the variant, then of the peers."""

    def run(rows, protocol="timing/2"):
        document = {"rows": rows, "protocol": protocol, "kernel_digest": "d", "software": {"date": "2026-11-20"}}
        return SimpleNamespace(document=document, kernel="toy", gpu="h200", identity=lambda direction, variant: "same")

    return list(changes.against_record([(run(now, **documents), run(before))]))


def timed(ours, torch=100.0, **more):
    return [row(ours, **more), row(torch, kind="peer", provider="torch", **more)]


@pytest.mark.parametrize(
    ("before", "now", "verdict_"),
    [
        (30.0, 30.2, "same"),  # 0.7 %, and 1.2 more that two runs of the same code lie apart: within 2
        (30.0, 30.5, "undecided"),  # 1.6 %: within 2, and may be more
        (30.0, 30.7, "slower"),  # 2.3 %
        (30.7, 30.0, "faster"),
        (18.0, 18.5, "same"),  # 3 %
        (18.0, 19.5, "undecided"),  # 8 %: both under 20 us, where runs of the same code lie up to 10 % apart
        (17.0, 19.5, "slower"),  # 13 %
        (19.0, 20.5, "slower"),  # 7 %: the longer of the two is over 20 us, and counts
        (20.5, 19.0, "faster"),
        (20.0, 20.5, "slower"),  # from 20 us on it is 2 %
    ],
)
def test_the_margin_is_2_per_cent_from_20_us_on_and_10_below(before, now, verdict_):
    (found,) = against_record(timed(before), timed(now))
    assert found["verdict"] == verdict_


@pytest.mark.parametrize(
    ("torch_before", "torch_now", "verdict_"),
    [
        (100.0, 100.0, "slower"),
        (100.0, 130.0, "same"),  # the board slowed the peers down as much
        (100.0, 115.0, "slower"),  # or half as much
        (100.0, 80.0, "slower"),  # the board became faster, and the kernel slower all the same
    ],
)
def test_what_the_peers_show_is_divided_out(torch_before, torch_now, verdict_):
    (found,) = against_record(timed(100.0, torch_before), timed(130.0, torch_now))
    assert found["verdict"] == verdict_
    assert found["peer_step"] == pytest.approx(torch_before / torch_now)


@pytest.mark.parametrize("status", ["suspect", "wrong"])
def test_a_peer_whose_figure_is_not_to_be_believed_is_no_control(status):
    # Were it one, the loss of 30 % would be put down to the board.
    now = [row(130.0), row(1000.0, kind="peer", provider="torch", status=status)]
    (found,) = against_record(timed(100.0), now)
    assert (found["verdict"], found["peer_step"]) == ("slower", None)


def test_a_peer_that_only_one_of_the_runs_timed_is_no_control():
    (found,) = against_record(timed(100.0), [row(130.0), row(1000.0, kind="peer", provider="liger")])
    assert (found["verdict"], found["peer_step"]) == ("slower", None)


@pytest.mark.parametrize("protocol", ["timing/1", "timing/20"])
def test_a_run_by_another_protocol_decides_nothing(protocol):
    (found,) = against_record(timed(100.0), timed(500.0), protocol=protocol)
    assert found["verdict"] == "undecided"


def test_the_sentence_names_the_worst_case():
    before = [*timed(100.0, n=1), *timed(100.0, n=2), *timed(100.0, n=3)]
    now = [*timed(110.0, n=1), *timed(200.0, n=2), *timed(104.0, n=3)]
    (sentence,) = changes.sentences(against_record(before, now))
    assert "3 of 3 cases slower (0.50x at worst: forward n=2 bf16), 0 faster" in sentence


def entry(stage, document, kind="measured", stale=False):
    document = {"status": "ok", "reason": "", **document}
    return SimpleNamespace(
        gpu="h200", kernel="toy", stage=stage, document=document, kind=kind, path="a/b/c/d/e.json", stale=stale
    )


def judged(*entries):
    (found,) = verdict.verdicts(entries)
    return found


def headline(*rows):
    found = judged(entry("benchmark", {"rows": list(rows)}))
    return found["dtype"], (found["headline_case"] or {}).get("n")


@pytest.mark.parametrize(
    ("dtypes", "chosen"),
    [
        (("fp32", "fp16", "bf16"), "bf16"),
        (("fp32", "fp16"), "fp16"),
        (("fp8e4m3", "fp32"), "fp32"),
        (("int8", "fp8e4m3"), "int8"),  # else the first there is
    ],
)
def test_the_headline_is_in_bf16_else_fp16_else_fp32_else_the_first(dtypes, chosen):
    assert headline(*(row(dtype=dtype) for dtype in dtypes)) == (chosen, 64)


def test_the_headline_is_the_forward_case_with_the_most_traffic():
    cases = [row(n=8), row(n=512), row(n=64), row(n=4096, direction="backward"), row(n=2048, dtype="fp32")]
    assert headline(*cases) == ("bf16", 512)


def test_a_case_that_no_peer_could_run_is_counted_and_enters_no_mean():
    alone = row(n=1)
    del alone["speedup"]
    rows = [alone, row(n=2, speedup=2.0), row(n=3, speedup=0.5)]
    found = judged(entry("benchmark", {"rows": rows}))
    assert (found["cases"], found["speedup_geomean"], found["speedup_worst"]) == (3, pytest.approx(1.0), 0.5)
    assert found["worst_case"] == {"direction": "forward", "dtype": "bf16", "sizes": {"n": 3}}


def test_a_case_of_weak_peers_alone_is_counted_and_enters_no_mean():
    rows = [row(n=1, speedup=15.0, weak="in bf16"), row(n=2, speedup=2.0), row(n=3, speedup=0.5)]
    found = judged(entry("benchmark", {"rows": rows}))
    assert (found["cases"], found["weak_cases"], found["weak"]) == (3, 1, None)
    assert (found["speedup_geomean"], found["speedup_worst"]) == (pytest.approx(1.0), 0.5)
    assert summary.all_cases(found) == "1.00x, worst 0.50x, without 1 weak"


def test_a_kernel_of_weak_peers_alone_has_no_mean_and_says_so():
    found = judged(
        entry(
            "benchmark",
            {"rows": [row(speedup=15.0, weak="in bf16", gb_per_s=1.0), row(5.0, kind="peer", provider="t")]},
        )
    )
    assert (found["speedup_geomean"], found["speedup_worst"], found["worst_case"]) == (None, None, None)
    assert (found["speedup"], found["weak"], found["against"]) == (15.0, "in bf16", "t (weak)")
    assert summary.all_cases(found) == "1 weak"


def test_the_best_of_a_case_is_the_fastest_variant_and_its_peer_the_fastest_peer():
    rows = [row(9.0, provider="slow"), row(5.0, provider="fast"), row(1.0, kind="default", provider="fast")]
    rows += [row(us, kind="peer", provider=name) for name, us in (("a", 8.0), ("b", 6.0), ("c", 7.0))]
    rows += [row(0.1, provider="broken", status="wrong"), row(0.1, kind="peer", provider="d", status="failed")]
    (best,) = verdict.best_of_each_case(rows)
    assert (best["provider"], best["peer"]) == ("fast", "b")


@pytest.mark.parametrize(
    ("roof", "unit"), [("matmul_bf16", "TFLOP/s"), ("matmul_fp8", "TFLOP/s"), ("copy", "GB/s"), (None, "GB/s")]
)
def test_a_figure_is_in_the_unit_of_the_roof_that_binds(roof, unit):
    figure = verdict.figure({"roof": roof, "tflop_per_s": 1.0, "gb_per_s": 2.0})
    assert figure == ({"TFLOP/s": 1.0, "GB/s": 2.0}[unit], unit)


@pytest.mark.parametrize("stale", ["validate", "benchmark"])
def test_a_kernel_of_which_one_document_is_stale_is_stale(stale):
    stages = {"validate": {}, "benchmark": {"rows": []}}
    assert judged(*(entry(name, document, stale=name == stale) for name, document in stages.items()))["stale"]
    assert not judged(*(entry(name, document) for name, document in stages.items()))["stale"]


def test_a_build_beside_a_measured_document_does_not_weaken_the_row():
    found = judged(entry("build", {}, "compiled"), entry("benchmark", {"rows": [row()]}, "measured"))
    assert (found["kind"], found["median_us"]) == ("measured", 10.0)
