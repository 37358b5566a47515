"""The end of a run: which figure stands for a kernel, and what makes the run fail."""

import math

import pytest
import sample_documents as sample
from atlas import cli
from atlas.results import collection
from atlas.results.verdict import SEVERITY, best_of_each_case, headline, verdicts


def row(provider, kind, median, dtype="bf16", n=1024, direction="forward", status="ok", **more):
    """A benchmark row with what the rules read."""
    found = {"provider": provider, "provider_kind": kind, "direction": direction, "dtype": dtype, "sizes": {"n": n}}
    found |= {"config": {"BLOCK": 1} if kind != "peer" else None, "status": status, "reason": "", "median_us": median}
    return found | {"bytes": 4.0 * n, "flops": 1.0 * n, "gb_per_s": 4e-3 * n / median, "tflop_per_s": 1e-6 * n} | more


def judge(folder, *documents, records=()):
    """The verdicts of documents written to a results folder."""
    for document in documents:
        sample.put(folder, document)
    for document in records:
        sample.put(folder, document, "recorded")
    return verdicts(collection.collect(folder))


def benchmark_of(*rows, **changes):
    return sample.envelope("benchmark", "softmax", "h200", **changes) | {"protocol": "timing/1", "rows": list(rows)}


@pytest.mark.parametrize(
    ("dtypes", "chosen"), [(("fp32", "bf16", "fp16"), "bf16"), (("fp32", "fp16"), "fp16"), (("fp32",), "fp32")]
)
def test_the_headline_is_bf16_else_fp16_else_fp32(dtypes, chosen):
    rows = [row("blocks", "variant", 5.0, dtype, n) for dtype in dtypes for n in (512, 4096, 1024)]
    top = headline(best_of_each_case(rows))
    assert (top["dtype"], top["sizes"]) == (chosen, {"n": 4096}), "the case with the largest traffic"


def test_the_headline_is_a_forward_pass_though_the_backward_moves_more():
    rows = [row("blocks", "variant", 5.0, n=512), row("blocks", "variant", 5.0, n=4096, direction="backward")]
    assert headline(best_of_each_case(rows))["direction"] == "forward"


def test_the_fastest_right_variant_stands_for_a_case():
    rows = [
        row("naive", "variant", 9.0),
        row("tiled", "variant", 4.0),
        row("wild", "variant", 1.0, status="wrong"),
        row("tiled", "default", 3.0),  # untuned configs and peers do not stand for the kernel
        row("torch", "peer", 2.0),
        row("torch.compile", "peer", 2.5),
    ]
    (best,) = best_of_each_case(rows)
    assert (best["provider"], best["peer"]) == ("tiled", "torch")


def test_means_weigh_each_compared_case_the_same(tmp_path):
    rows = [
        row("blocks", "variant", 5.0, n=1024, speedup=2.0),
        row("blocks", "variant", 5.0, n=2048, speedup=0.5),
        row("blocks", "variant", 5.0, n=4096, speedup=None),  # no peer ran it
        row("blocks", "variant", 5.0, n=1024, direction="backward", speedup=8.0),
    ]
    (verdict,) = judge(tmp_path, benchmark_of(*rows))
    assert verdict["cases"] == 4
    assert math.isclose(verdict["speedup_geomean"], 2.0), "the cube root of 2 x 0.5 x 8"
    assert (verdict["speedup_worst"], verdict["worst_case"]["sizes"]) == (0.5, {"n": 2048})


@pytest.mark.parametrize(("roof", "unit"), [("matmul_bf16", "TFLOP/s"), ("copy", "GB/s"), (None, "GB/s")])
def test_the_unit_follows_the_roof_that_binds(tmp_path, roof, unit):
    (verdict,) = judge(tmp_path, benchmark_of(row("blocks", "variant", 5.0, roof=roof)))
    assert verdict["unit"] == unit


def test_a_measured_and_a_recorded_document_of_one_kernel_are_not_mixed(tmp_path):
    wrong = sample.validate("softmax", "h200", status="wrong", reason="row 3: nan")
    (verdict,) = judge(tmp_path, wrong, records=[sample.benchmark("softmax", "h200")])
    assert (verdict["kind"], verdict["status"], verdict["figure"]) == ("measured", "wrong", None)
    assert verdict["stages"] == {"validate": "wrong"}


def test_the_interpreter_has_no_figures(tmp_path):
    sample.put_interpreted(tmp_path, ("softmax",))
    (verdict,) = verdicts(collection.collect(tmp_path))
    assert verdict["kind"] == "functional"
    assert verdict["figure"] is verdict["speedup_geomean"] is None


def test_the_worst_status_of_the_stages_is_the_kernels(tmp_path):
    assert SEVERITY.index("wrong") < SEVERITY.index("suspect") < SEVERITY.index("skipped") < SEVERITY.index("ok")
    (verdict,) = judge(
        tmp_path,
        sample.validate("softmax", "h200", status="wrong", reason="row 3: nan"),
        benchmark_of(status="skipped", reason="validate ended wrong"),
    )
    assert (verdict["status"], verdict["reason"]) == ("wrong", "validate: row 3: nan")


def run(folder, *options):
    return cli.main(["verdict", "--results", str(folder), *options])


@pytest.mark.parametrize("status", ["wrong", "failed", "suspect"])
def test_a_bad_kernel_is_named_with_gpu_and_reason_and_fails_the_run(tmp_path, capsys, status):
    sample.put(tmp_path, sample.validate("vector_add", "h200"))
    sample.put(tmp_path, sample.validate("softmax", "t4", status=status, reason="row 3: nan"))
    assert run(tmp_path) == 1
    assert f"{status.upper()}: softmax on t4: validate: row 3: nan" in capsys.readouterr().out


@pytest.mark.parametrize("status", ["ok", "unsupported", "skipped"])
def test_other_statuses_do_not_fail_the_run(tmp_path, status):
    sample.put(tmp_path, sample.validate("softmax", "t4", status=status, reason="" if status == "ok" else "why"))
    assert run(tmp_path) == 0


def test_a_build_that_fails_for_an_absent_gpu_fails_the_run(tmp_path, capsys):
    sample.put(tmp_path, sample.build("softmax", "t4", status="failed", reason="ptxas"))
    assert run(tmp_path) == 1
    assert "FAILED: softmax on t4: build: ptxas" in capsys.readouterr().out


def test_a_record_is_shown_and_does_not_fail_the_run(tmp_path, capsys):
    sample.put(tmp_path, sample.validate("softmax", "h100", status="wrong", reason="row 3: nan"), "recorded")
    sample.put(tmp_path, sample.build("softmax", "h100", status="failed", reason="ptxas"), "recorded")
    assert run(tmp_path) == 0
    shown = capsys.readouterr().out
    assert "recorded" in shown and "WRONG:" not in shown


def test_a_failure_of_today_is_not_hidden_by_a_worse_record(tmp_path, capsys):
    sample.put(tmp_path, sample.validate("softmax", "h100", status="wrong", reason="row 3: nan"), "recorded")
    sample.put(tmp_path, sample.build("softmax", "h100", status="failed", reason="ptxas"))
    assert run(tmp_path) == 1
    assert "FAILED: softmax on h100: build: ptxas" in capsys.readouterr().out


def test_a_stale_record_is_flagged_and_does_not_fail_the_run(tmp_path, capsys, monkeypatch):
    sample.put_gpu(tmp_path, "h100", ("softmax",), "recorded")
    monkeypatch.setattr(collection, "_today", lambda kernel: {"*": "another"})
    assert run(tmp_path) == 0
    assert "recorded (stale)" in capsys.readouterr().out


def test_a_selection_judges_nothing_else(tmp_path):
    sample.put(tmp_path, sample.validate("vector_add", "h200"))
    sample.put(tmp_path, sample.validate("softmax", "t4", status="wrong", reason="row 3: nan"))
    assert run(tmp_path, "--gpus", "h200") == 0
    assert run(tmp_path, "--gpus", "h200,t4") == 1
    assert run(tmp_path, "--kernels", "vector_add", "--gpus", "all") == 0


def test_a_misspelt_gpu_is_named_with_the_nearest(tmp_path, capsys):
    assert run(tmp_path, "--gpus", "h20") == 2
    assert "did you mean 'h200'?" in capsys.readouterr().err


def test_nothing_to_judge_is_no_success_and_says_so(tmp_path, capsys):
    """A script that judges the wrong folder must not read that all is well."""
    assert run(tmp_path) == 1
    assert "nothing to judge" in capsys.readouterr().out


def test_the_summary_is_plain_and_names_where_to_look(tmp_path, capsys):
    sample.put_gpu(tmp_path, "h200", ("softmax",))
    (tmp_path / "report.html").touch()
    (tmp_path / "mlflow").mkdir()
    assert run(tmp_path) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown, "no colours where no terminal reads"
    assert str(tmp_path / "report.html") in shown and "make ui" in shown and "GB/s" in shown
    assert str(tmp_path / "tables") not in shown, "there are none"
