"""The stage: its document, its selection, the replay of a failing row, and a device that is lost."""

import dataclasses
import functools
import os
import shlex
import subprocess
import sys

import pytest
import torch
from atlas import ROOT, catalog, cli
from atlas.declaration.hardware import GPU, INTERPRETER, pretend
from atlas.results import documents
from atlas.validation import DeviceLost, Inspection, Selection, cases, certify, device, variants
from atlas.validation.findings import summary, worst
from atlas.workers import pool

from .planting import EXEMPLAR, inspect, load, planted


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Make the catalog hold one kernel, ``row_kernel``, with the given faults planted."""

    def put(*replacements):
        declaration = planted(tmp_path, *replacements)
        monkeypatch.setattr(catalog, "load", functools.partial(load, tmp_path))  # which a worker process can have too
        monkeypatch.setattr(catalog, "KERNELS", EXEMPLAR.parent)
        return declaration

    return put


def validate(tmp_path, *words):
    return cli.main(["validate", "row_kernel", "--gpu", "cpu", "--results", str(tmp_path / "results"), *words])


def document(tmp_path):
    return documents.read(tmp_path / "results" / "measured" / "cpu" / "row_kernel" / "validate.json", "validate")


def test_a_right_kernel_has_a_document_that_says_ok_and_how_near_the_limit_it_came(kernel, tmp_path, capsys):
    kernel()
    assert validate(tmp_path, "--seeds", "2") == 0
    assert capsys.readouterr().out.startswith("atlas validate: row_kernel on cpu: ok\n  ")
    written = document(tmp_path)
    assert (written["status"], written["reason"], written["kind"]) == ("ok", "", "functional")
    values = [row for row in written["checks"] if row["check"] == "values"]
    assert all(row["seeds"] == 2 or row["config"] != {"BLOCK": 32} for row in values)
    assert all(0 < row["tolerance_used"] < 1 and row["rtol"] > 0 and row["case_reason"] for row in values)


def test_a_wrong_kernel_exits_0_says_wrong_and_its_replay_finds_the_same(kernel, tmp_path, capsys):
    kernel(("offs, x * rstd, mask=mask", "offs, x * rstd, mask=offs < n - 1"))
    assert validate(tmp_path, "--seeds", "1") == 0
    written = document(tmp_path)
    assert written["status"] == "wrong"
    assert "variant rows, forward m=5 n=33 fp32" in written["reason"]
    failing = next(row for row in written["checks"] if row["status"] == "fail")
    said = capsys.readouterr().out
    assert f"atlas validate: row_kernel on cpu: wrong: {written['reason']}\n" in said
    assert "validate.json\n" in said and f"fails: {failing['replay']}\n" in said
    words = shlex.split(failing["replay"])
    assert words[:5] == ["python", "-m", "atlas", "debug", "row_kernel"]
    before = (tmp_path / "results" / "measured" / "cpu" / "row_kernel" / "validate.json").stat().st_mtime_ns
    assert cli.main([*words[3:], "--results", str(tmp_path / "results")]) == 1
    assert failing["reason"] in capsys.readouterr().out
    after = (tmp_path / "results" / "measured" / "cpu" / "row_kernel" / "validate.json").stat().st_mtime_ns
    assert before == after, "a replay writes no document"


def test_seeds_begin_where_they_are_told_to(kernel, tmp_path, capsys):
    kernel()
    assert validate(tmp_path, "--seeds", "2", "--first-seed", "40") == 0
    written = document(tmp_path)
    assert written["seeds"] == [40, 41]
    assert {row["seed"] for row in written["checks"]} <= {40, 41}
    assert validate(tmp_path, "--seeds", "0") == 2
    assert "--seeds is 0; give 1 or more" in capsys.readouterr().err


def test_a_lost_device_ends_the_stage_as_failed_and_keeps_what_was_found(kernel, tmp_path, monkeypatch):
    kernel()
    launches = []
    launch = variants.launch

    def lost_at_the_third(problem, variant, config, run):
        launches.append(1)
        if len(launches) == 3:
            raise DeviceLost("variant rows, forward, m=1 n=7 fp32: an illegal memory access was encountered")
        return launch(problem, variant, config, run)

    monkeypatch.setattr(variants, "launch", lost_at_the_third)
    assert validate(tmp_path, "--seeds", "1") == 0
    written = document(tmp_path)
    assert written["status"] == "failed"
    assert "the device was lost in variant rows" in written["reason"]
    assert "tasks were not done" in written["reason"]
    assert len(launches) == 3 and written["checks"]


def test_several_processes_write_the_document_that_one_writes(kernel, tmp_path):
    fault = ("offs, x * rstd, mask=mask", "offs, x * rstd, mask=offs < n - 1")
    kernel(ONE_DTYPE, fault, ('(4, 64, "', '(2048, 4096, "'))
    assert validate(tmp_path, "--seeds", "2") == 0
    alone = document(tmp_path)
    assert validate(tmp_path, "--seeds", "2", "--jobs", "3") == 0
    several = document(tmp_path)
    assert {row["status"] for row in alone["checks"]} == {"pass", "fail"} and alone["left_out"]
    fields = ("status", "reason", "seeds", "left_out", "checks")
    assert {key: several[key] for key in fields} == {key: alone[key] for key in fields}


ONE_DTYPE = ('("fp32", "fp16")', '("fp32",)')
ONCE = """    mark = __import__("pathlib").Path(__file__ + ".lost")
    if x.shape == (5, 33) and not mark.exists():
        mark.touch()
"""
GONE = """        from atlas.validation import device
        def gone(_):
            raise RuntimeError("CUDA error: misaligned address")
        device.synchronize = gone
"""
ABORTS = """        import os
        os.abort()
"""


def faulty(text):
    """A launcher with this text at its beginning."""
    return "    m, n = x.shape\n", f"{text}    m, n = x.shape\n"


@pytest.mark.parametrize(
    ("fault", "check", "variant", "reason"),
    [
        (GONE, "values", "rows", "misaligned address; the device answered no more"),
        (ABORTS, "process", "", "the process ended by SIGABRT"),
    ],
)
def test_a_worker_that_is_lost_is_a_row_of_its_case_and_all_others_are_checked(
    kernel, tmp_path, fault, check, variant, reason
):
    kernel(ONE_DTYPE)
    assert validate(tmp_path, "--seeds", "1") == 0
    whole = {(row["check"], row["variant"], *row["sizes"].values()) for row in document(tmp_path)["checks"]}
    kernel(ONE_DTYPE, faulty(ONCE + fault))
    assert validate(tmp_path, "--seeds", "1", "--jobs", "2") == 0
    written = document(tmp_path)
    (row,) = [row for row in written["checks"] if row["status"] == "error"]
    assert (row["check"], row["variant"], *row["sizes"].values()) == (check, variant, 5, 33)
    assert reason in row["reason"] and reason in written["reason"] and written["status"] == "failed"
    found = {(row["check"], row["variant"], *row["sizes"].values()) for row in written["checks"]}
    assert {key for key in whole if key[2:] != (5, 33)} <= found
    words = shlex.split(row["replay"])
    assert ("--check" in words) == (check != "process"), "what ended the process may have been any check of the case"


def test_a_kernel_that_always_loses_its_device_is_given_up(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "MOST_LOSSES", 2)
    kernel(ONE_DTYPE, faulty("    if x.numel():\n" + GONE))
    assert validate(tmp_path, "--seeds", "1", "--jobs", "2") == 0
    written = document(tmp_path)
    assert written["status"] == "failed"
    assert "worker 2 to be lost" in written["reason"] and "tasks were not done" in written["reason"]


def test_a_fault_that_outlives_its_launch_is_told_from_one_that_does_not(monkeypatch):
    def gone(_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    device.check_alive(torch.device("cpu"), "a launch", ValueError("bad"))  # the device answers: nothing is raised
    monkeypatch.setattr(device, "synchronize", gone)
    with pytest.raises(DeviceLost, match=r"a launch: ValueError: bad; the device answers no more .* \(RuntimeError"):
        device.check_alive(torch.device("cpu"), "a launch", ValueError("bad"))
    with pytest.raises(DeviceLost, match="a graph: RuntimeError: CUDA error: an illegal .* in this process$"):
        device.check_alive(torch.device("cpu"), "a graph")  # nothing was raised before it was asked


def test_what_a_gpu_cannot_hold_in_float64_is_left_out_with_the_reason(tmp_path, monkeypatch):
    declaration = planted(tmp_path)
    gpu = GPU("t4", "cuda", 75, sms=40, shared_bytes=2**16, memory_bytes=2**34, l2_bytes=2**22)
    case = dataclasses.replace(declaration.edge_cases[0], sizes=(("m", 2**10), ("n", 2**16)))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**30, 2**30))
    assert "the GPU has 1.0 GiB" in cases.too_costly(declaration.forward, case, gpu, torch.device("cuda"))
    huge = dataclasses.replace(case, sizes=(("m", 2**14), ("n", 2**16)))
    assert "MiB of traffic" in cases.too_costly(declaration.forward, huge, gpu, torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**34, 2**34))
    assert cases.too_costly(declaration.forward, case, gpu, torch.device("cuda")) == ""


def test_planning_loads_no_compiler_of_torch():
    # It takes 2 s, in every process.  Inputs of this kernel compute with what they draw.
    words = (
        "import sys, torch; from atlas import catalog, validation; from atlas.host import gpus\n"
        "from atlas.reading.config import load_gpus\n"
        "declaration, gpu = catalog.load('rope', interpret=True), gpus.gpu('cpu', load_gpus()['cpu'])\n"
        "tasks = validation.Inspection(declaration, gpu, torch.device('cpu'), [0]).tasks()\n"
        "assert any('no elements' in task.about.case.reason for task in tasks)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    paths = {"PYTHONPATH": f"{ROOT / 'workflow'}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", words], env=os.environ | paths, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def certificate(tmp_path):
    """Certify the row kernel's one forward variant with faults planted."""

    def put(*replacements, dtype="fp32", **changes):
        declaration = planted(tmp_path, *replacements)
        variant = dataclasses.replace(declaration.forward.variants[0], **changes)
        return certify(declaration, "forward", variant, {"BLOCK": 16}, dtype, torch.device("cpu"), [0, 1])

    return put


def test_a_right_config_is_certified_on_its_edge_cases_with_all_seeds(certificate):
    found = certificate()
    assert (found.reason, found.cases, found.seeds) == ("", 3, 2)
    # values, written, unchanged with each seed, repeatable once a case; NaN, infinities, magnitudes and an offset once.
    assert found.checks == 3 * (2 * 3 + 1) + 3
    assert found.status == "pass"


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ([("offs, x * rstd, mask=mask", "offs, x * rstd")], "stored outside y"),
        ([("squares += x * x", "squares += tl.where(x == x, x * x, 0.0)"),
          ("x * rstd, mask", "tl.where(x == x, x, 0.0) * rstd, mask")], "nan_inf"),
        # A fault of one config alone, which the default (32) does not have.
        ([("x * rstd, mask", "tl.where(BLOCK == 16, 1.01, 1.0) * x * rstd, mask")], "BLOCK=16, seed 0: fail"),
    ],
)  # fmt: skip
def test_a_wrong_config_is_not_certified(certificate, faults, words):
    found = certificate(*faults)
    assert words in found.reason
    assert found.status == "fail"


def test_a_launch_that_raises_refuses_a_certificate_as_an_error_whatever_its_message_says(certificate):
    found = certificate(("    m, n = x.shape\n", "    m, n = x.shape\n    raise RuntimeError('a: fail: b')\n"))
    assert found.status == "error"
    assert ": fail: " in found.reason


def test_a_config_that_fits_no_edge_case_is_certified_on_small_ones(certificate):
    """A large tile is no worth a trial on a small problem, and computes the right thing there all the same."""
    found = certificate(fits=lambda config, case, gpu: "a tile twice as large as the problem")
    assert (found.reason, found.cases) == ("", 3)


def test_a_variant_that_takes_no_edge_case_is_unsupported_and_every_reason_is_told(certificate):
    found = certificate(handles=lambda case, gpu: "an odd size" if any(n % 2 for _, n in case.sizes) else "an even one")
    assert (found.cases, found.status) == (0, "unsupported")
    assert found.reason.startswith("no edge case of fp32 that rows takes: ")
    assert found.reason.count("an odd size") == found.reason.count("an even one") == 1


def test_a_config_that_asks_for_too_much_is_not_certified_and_not_called_wrong(certificate):
    raising = "from triton.runtime.errors import OutOfResources\n"
    found = certificate(("    m, n = x.shape\n", f"    {raising}    raise OutOfResources(300000, 232448, 'shared')\n"))
    assert found.cases == found.checks == 0
    assert found.reason.startswith("OutOfResources")
    assert found.status == "error"


T4 = GPU("t4", "cuda", 75, sms=40, shared_bytes=2**16, memory_bytes=2**34, l2_bytes=2**22)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (("_variant(_launch)", "_variant(_launch, needs=frozenset({'wgmma'}))"), "t4 has no wgmma"),
        (('("fp32", "fp16")', '("fp32", "fp8e4m3")'), "t4 has no fp8 tensor cores"),
    ],
)
def test_what_the_gpu_lacks_is_unsupported_everywhere_and_never_wrong(tmp_path, monkeypatch, fault, reason):
    """A pretended T4 of which the interpreter plays the part: the capability table is asked, nothing is launched."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**34, 2**34))
    declaration = planted(tmp_path, fault)
    dtype = declaration.dtypes[1]
    with pretend(T4):
        findings = worst(
            finding
            for direction in ("forward", "backward")
            for check in ("values", "public_function", "gradients", "nan_inf", "empty")
            for inspection in [Inspection(declaration, T4, torch.device("cpu"), [0],
                                          Selection(check, direction=direction, dtype=dtype))]
            for task in inspection.tasks()
            for finding in inspection.run(task)
        )  # fmt: skip
        found = certify(declaration, "forward", "rows", {"BLOCK": 16}, dtype, torch.device("cpu"), [0])
    assert (found.cases, found.status) == (0, "unsupported")
    assert found.reason == f"no edge case of {dtype} that rows takes: {reason}"
    refused = [f for f in findings if f.subject.direction == "forward" and f.status != "pass"]
    assert {f.check for f in refused} >= {"values", "public_function", "gradients"}
    assert {f.status for f in findings} <= {"unsupported", "pass"}, [str(f) for f in findings]
    assert all(reason in f.reason for f in refused), [str(f) for f in refused]
    assert summary(findings)[0] in ("ok", "unsupported")


def test_a_case_too_costly_for_the_interpreter_is_named_in_the_document(kernel, tmp_path):
    kernel(('(4, 64, "whole blocks")', '(2048, 4096, "large")'))
    assert validate(tmp_path, "--seeds", "1") == 0
    left_out = document(tmp_path)["left_out"]
    assert {(entry["direction"], entry["dtype"]) for entry in left_out} == {
        (direction, dtype) for direction in ("forward", "backward") for dtype in ("fp32", "fp16")
    }
    assert "costs the interpreter" in left_out[0]["reason"]


def test_further_seeds_stop_when_the_interpreters_time_is_spent(tmp_path, monkeypatch):
    declaration = planted(tmp_path)
    monkeypatch.setattr(cases, "INTERPRETER_SECONDS", 0.0)
    findings = inspect(declaration, seeds=5, check="values", dtype="fp32")
    assert findings and {finding.seeds for finding in findings} == {1}


def test_a_spread_of_configs_ignores_what_the_interpreter_does_not_know(tmp_path):
    variant = dataclasses.replace(
        planted(tmp_path).forward.variants[0], space={"BLOCK": (16, 32, 64), "num_warps": (1, 2, 4)}
    )
    case = planted(tmp_path).edge_cases[0]
    assert len({config["BLOCK"] for config in cases.evenly_spaced(variant, case, INTERPRETER, 3)}) == 3


def test_the_true_vector_add_is_right_in_every_check():
    declaration = catalog.load("vector_add", interpret=True)
    findings = inspect(declaration, seeds=1)
    assert [str(finding) for finding in findings if finding.status != "pass"] == []


@pytest.mark.parametrize("name", [name for name in catalog.names() if name != "vector_add"])
def test_every_kernel_of_the_catalog_passes_its_cheapest_edge_case(name):
    """A look at each kernel; all edge cases and dtypes are what `validate --gpu cpu` tries, in minutes a kernel."""
    declaration = catalog.load(name, interpret=True)
    dtype = declaration.dtypes[0]
    mine = [case for case in declaration.edge_cases if case.dtype == dtype]
    cheapest = min(mine, key=lambda case: sum(declaration.forward.bytes(case).values()))
    declaration = dataclasses.replace(declaration, edge_cases=(cheapest,))
    inspection = Inspection(declaration, INTERPRETER, torch.device("cpu"), [0])
    assert inspection.tasks()
    findings = inspect(declaration, seeds=1, dtype=dtype)
    assert [str(finding) for finding in findings if finding.status in ("fail", "error")] == []
