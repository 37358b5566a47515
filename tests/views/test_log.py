"""The kernel log as Markdown: a table for each kernel, GPU and pass, a line for each rung."""

import json
import shutil
import signal
import subprocess
import sys

from atlas import ROOT, cli
from atlas.results import counters, documents


def printed(results, capsys, *words):
    assert cli.main(["log", "--results", str(results), *words]) == 0
    return capsys.readouterr().out


def test_each_rung_stands_after_the_one_it_was_made_from(scenes, capsys):
    page = printed(scenes["one"], capsys)
    matmul = page[page.index("## matmul") :].split("\n## ")[0].split("\nCounters")[0]
    lines = [line for line in matmul.splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in lines] == ["pointers", "persistent", "descriptors_persistent"]
    assert [line.split(" | ")[2] for line in lines] == ["", "pointers", "persistent"]
    assert "TFLOP/s (m=8192 n=8192 k=8192 bf16)" in lines[0]
    assert "times the fastest peer over 10 cases, from " in matmul  # five sizes in two dtypes


def test_one_gpu_can_be_asked_for_and_the_page_written(scenes, capsys, tmp_path):
    page = tmp_path / "docs" / "log.md"
    assert printed(scenes["five"], capsys, "--gpu", "a100", "--output", str(page)) == ""
    assert "**forward, a100" in page.read_text() and "h200" not in page.read_text()


def test_without_benchmarks_it_is_a_page_that_says_what_it_would_hold(scenes, capsys):
    page = printed(scenes["none"], capsys)
    assert page.startswith("# Kernel log") and "##" not in page
    assert page.rstrip().endswith("No benchmark of a kernel was found.")


def test_a_gpu_that_has_no_block_is_refused_and_one_near_it_offered(scenes, capsys):
    assert cli.main(["log", "--results", str(scenes["one"]), "--gpu", "h20"]) == 2
    assert "unknown GPU 'h20': no such block in gpus.yaml; did you mean 'h200'?" in capsys.readouterr().err


def test_a_step_s_counters_stand_beside_those_of_the_one_it_was_made_from(scenes, capsys):
    page = printed(scenes["one"], capsys)
    matmul = page[page.index("## matmul") :].split("\n## ")[0].partition("\nCounters, forward, h200")[2]
    first, second, _ = [line.split(" | ") for line in matmul.splitlines() if line.startswith("| `")]
    assert first[3:7] == ["123 us", "2,048 MiB", "0.00 MiB", "33 %"] and first[1] == ""
    assert second[1] == "`pointers`"
    assert second[3:7] == ["122 us (0.99x)", "2,048 MiB (1.00x)", "0.00 MiB", "45 % (+12)"]
    assert second[7:] == ["", "75 % (+0)", "168 (+0)", "1,234 (1.00x)", "global or local memory |"]


def test_where_there_are_no_counters_the_page_says_how_to_read_them(scenes, capsys):
    page = printed(scenes["five"], capsys, "--gpu", "a100")
    end = page[page.index("## Without counters") :]
    assert "`python -m atlas profile KERNEL --gpu GPU`" in end and "- a100: " in end and "matmul" in end


def test_counters_that_could_not_be_read_say_why(scenes, capsys, tmp_path):
    results = shutil.copytree(scenes["one"], tmp_path / "results")
    (path,) = results.glob("*/h200/matmul/profile.json")
    documents.write(path, json.loads(path.read_text()) | {"status": "skipped", "reason": "ncu is not here", "rows": []})
    assert "No counters of h200: skipped, ncu is not here" in printed(results, capsys)


def launch(us, **values):
    return {"duration_us": us, "dram_read_bytes": 8.0, "dram_write_bytes": 2.0, "registers": 32, "stalls": {}} | values


def test_a_call_of_several_launches_adds_up_what_adds_up():
    call = counters.of_call([
        launch(30.0, l2_hit_percent=80.0, stalls={"barrier": 2.0}), launch(10.0, l2_hit_percent=40.0, registers=64),
    ])  # fmt: skip
    assert (call["duration_us"], counters.dram_bytes(call), call["registers"]) == (40.0, 20.0, 64)
    assert (call["l2_hit_percent"], call["stall"]) == (70.0, "barrier")
    assert call["tensor_percent"] is None, "no launch has it"
    assert counters.dram_bytes(counters.of_call([launch(1.0), launch(1.0, dram_read_bytes=None)])) is None


def test_a_reader_who_has_seen_enough_gets_no_traceback(tmp_path):
    words = [sys.executable, "-m", "atlas", "log"]
    with subprocess.Popen(words, cwd=ROOT / "workflow", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # as `| head` does, before a line was read
        said = process.stderr.read()
    assert process.returncode == 128 + signal.SIGPIPE and not said
