"""What a program would gain, and the configs it takes away."""

import json

import pandas as pd
import pytest
from atlas import catalog, cli
from atlas.declaration import choice
from atlas.identity.needs import needed
from atlas.reporting import workload as reporting
from atlas.results import documents
from atlas.workload.current import Workload

SIZES = {"n": 4096}


def row(provider, kind, median, direction="forward", gpu_kind="measured", status="ok"):
    """Of the table ``benchmark``."""
    found = {"kind": gpu_kind, "gpu": "h200", "kernel": "vector_add", "provider": provider, "provider_kind": kind}
    return found | {
        "direction": direction, "dtype": "fp32", "sizes": json.dumps(SIZES), "status": status, "median_us": median
    }  # fmt: skip


@pytest.fixture
def workload(tmp_path):
    """1000 calls of vector_add, seen in a program, of which no gradient was taken; and one that came to no case."""
    run = {
        "during": "forward", "operator": "vector_add_forward", "kernel": "vector_add", "direction": "forward",
        "dtype": "fp32", "sizes": SIZES, "tensors": [], "count": 1000, "timed": 10, "timed_seconds": 1e-4,
    }  # fmt: skip
    call = {
        "function": "vector_add", "seen": "call", "arguments": [], "count": 1000, "backward": 0, "captured": 0,
        "failed": 0, "reason": "", "share": 1.0, "runs": [run],
    }  # fmt: skip
    empty = call | {"count": 3, "runs": [], "share": 0.0}
    path = tmp_path / "mine.json"
    head = {"format": "kernel-atlas calls", "version": 1, "programs": ["train.py"], "devices": ["NVIDIA H200"]}
    path.write_text(json.dumps(head | {"calls": [call, empty], "timed_by": "cuda events"}))
    return Workload(path)


def cells(section):
    return [[cell.text for cell in row] for row in section.calls.rows]


def test_each_call_s_gain_is_its_count_times_what_it_takes_less(workload):
    rows = [
        row("torch", "peer", 12.0), row("torch.compile", "peer", 10.0), row("liger", "peer", 1.0, status="wrong"),
        row("blocks", "default", 9.0), row("blocks", "variant", 8.0), row("rows", "variant", 8.5),
    ]  # fmt: skip
    section = reporting.section({"benchmark": pd.DataFrame(rows)}, workload)
    (one,) = cells(section)
    assert one[4:6] == ["1000", "100.0 %"] and one[-2:] == ["2 ms", "1 ms"]
    assert "8 ms by the tuned kernels, and 10 ms by the fastest peer" in section.sentences[-1]
    assert "2 ms (20 %) are gained, 1 ms of them over the default configs" in section.sentences[-1]


def test_a_loss_is_said_to_be_one(workload):
    rows = [row("torch", "peer", 7.0), row("blocks", "default", 9.0), row("blocks", "variant", 8.0)]
    section = reporting.section({"benchmark": pd.DataFrame(rows)}, workload)
    assert "1 ms are lost" in section.sentences[-1] and cells(section)[0][-2] == "-1 ms"


def test_the_interpreter_s_times_are_no_figures(workload):
    rows = [row("torch", "peer", 7.0, gpu_kind="functional"), row("blocks", "variant", 8.0, gpu_kind="functional")]
    section = reporting.section({"benchmark": pd.DataFrame(rows)}, workload)
    assert cells(section)[0][-6:] == ["\N{EN DASH}"] * 6
    assert section.sentences[-1] == "1 problem of it has no figure of a GPU."


def test_calls_without_a_case_are_listed(workload):
    section = reporting.section({"benchmark": pd.DataFrame([row("blocks", "variant", 8.0)])}, workload)
    assert [cell.text for cell in section.no_case.rows[0]][2:] == [
        "3", "nothing was launched: empty tensors, or torch computed it"
    ]  # fmt: skip


def test_without_a_workload_the_report_has_no_section():
    assert reporting.section({}, None) is None


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """The results of a workload's run on an H200, and what the library has for the kernel: two cases, one the same."""
    monkeypatch.setattr(choice, "TUNED", tmp_path / "tuned")
    certificate = {"protocol": "validation/3", "cases": 9, "checks": 60, "seeds": 5}

    def best(n, block):
        found = {"direction": "forward", "dtype": "fp32", "sizes": {"n": n}, "variant": "blocks", "median_us": 5.0}
        return found | {"config": {"BLOCK": block, "num_warps": 4}, "certificate": certificate}

    shipped = [best(n, 256) | {"kernel": "vector_add"} for n in (4096, 8192)] + [best(4, 8) | {"kernel": "other"}]
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "h200.json").write_text(json.dumps({"match": "NVIDIA H200$", "entries": shipped}))
    document = {
        "stage": "autotune", "schema_version": documents.VERSIONS["autotune"], "kernel": "vector_add", "gpu": "h200",
        "kind": "measured", "status": "ok", "reason": "", "device": {}, "kernel_digest": catalog.digest("vector_add"),
        "software": {"torch": "2.11.0"}, "seconds": 1.0, "protocol": "timing/2", "strategy": "halving",
        "budget_seconds": None, "seconds_by_phase": {}, "trials_by_status": {}, "best": [best(4096, 1024)],
        "trials": [], "identities": needed("autotune", catalog.identities("vector_add")),
    }  # fmt: skip
    documents.write(tmp_path / "results" / "measured" / "h200" / "vector_add" / "autotune.json", document)
    return tmp_path


def test_exported_configs_go_beside_the_library_s_of_the_same_kernels(tuned, workload, capsys):
    """A process reads the file instead of the library's for the kernels that it has entries of."""
    target = tuned / "mine-h200.json"
    words = ["workload", str(workload.path), "--gpu", "h200", "--export", str(target)]
    assert cli.main([*words, "--results", str(tuned / "results")]) == 0
    found = json.loads(target.read_text())
    entries = [(one["kernel"], one["sizes"]["n"], one["config"]["BLOCK"]) for one in found["entries"]]
    assert entries == [("vector_add", 4096, 1024), ("vector_add", 8192, 256)] and "H200" in found["match"]
    assert f"KERNEL_ATLAS_TUNED={target}" in capsys.readouterr().out


def test_what_is_tuned_is_said_of_the_file_that_a_program_would_run_with(tuned, workload, monkeypatch, capsys):
    target = tuned / "mine-h200.json"
    words = ["workload", str(workload.path), "--gpu", "h200"]
    assert cli.main([*words, "--export", str(target), "--results", str(tuned / "results")]) == 0
    shipped = tuned / "tuned" / "h200.json"
    shipped.write_text(shipped.read_text().replace("4096", "4097"))
    capsys.readouterr()
    assert cli.main(words) == 0
    assert "On h200: 1 tuned." not in capsys.readouterr().out
    monkeypatch.setenv("KERNEL_ATLAS_TUNED", str(target))
    assert cli.main(words) == 0
    assert "On h200: 1 tuned." in capsys.readouterr().out
    target.write_text(target.read_text().replace("H200", "H100"))
    assert cli.main(words) == 2
    assert "export the file again for h200" in capsys.readouterr().err


def test_there_is_nothing_to_export_before_the_workload_was_tuned(tuned, workload, capsys):
    words = ["workload", str(workload.path), "--gpu", "h200", "--export", str(tuned / "x.json")]
    assert cli.main([*words, "--results", str(tuned / "nowhere")]) == 2
    assert "--config workload=" in capsys.readouterr().err
    assert cli.main([*words[:3], "cpu", *words[4:]]) == 2
    assert "the interpreter's configs are no fast ones" in capsys.readouterr().err
    assert cli.main(words[:2] + words[4:]) == 2
    assert "name it by --gpu" in capsys.readouterr().err
