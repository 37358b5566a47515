"""What a run would do, for several sets of GPUs and edits: dry runs, nothing is executed."""

import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from atlas import catalog
from atlas.host import gpus
from atlas.plan import jobs as plan
from atlas.reading.config import CONFIG_FILE, load_yaml

A10 = """
a10:
  description: NVIDIA A10, 24 GB GDDR6
  match: NVIDIA A10$
  target: {cuda: 86}
  memory_gib: 24
  sms: 72
  shared_memory_kib: 99
  l2_mib: 6
  datasheet:
    source: NVIDIA A10 datasheet
    bandwidth_gb_per_s: 600
    tflop_per_s: {fp32: 31.2, tf32: 62.5, fp16: 125, bf16: 125, int8: 250}
"""


def test_without_a_gpu_every_gpu_is_cross_compiled_and_the_interpreter_does_the_rest(checkout):
    kernels = len(catalog.names())
    jobs = checkout.planned()
    assert jobs["build"] == 4 * kernels, "a100, h100, h200, t4; nothing is compiled for those that are only predicted"
    assert jobs["predict"] == 1, "all predictions take seconds"
    assert jobs["validate"] == jobs["autotune"] == jobs["benchmark"] == kernels, "cpu alone can run kernels"
    assert "survey" not in jobs
    assert not list(checkout.root.glob("results/*")), "a dry run leaves nothing"


@pytest.mark.parametrize(
    ("devices", "measured"),
    [
        ("NVIDIA H200", 1),
        ("Tesla T4", 1),
        ("NVIDIA A100-SXM4-80GB;NVIDIA H100 80GB HBM3", 2),
        ("NVIDIA H200;NVIDIA H200;NVIDIA H200;NVIDIA H200", 1),  # four of one model are one GPU of the atlas
        ("NVIDIA GeForce RTX 3060", 0),  # no block matches it
    ],
)
def test_a_gpu_that_is_here_gets_every_stage(monkeypatch, devices, measured):
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", devices)
    for name in (gpus.PLACES_VARIABLE, gpus.LIMIT_VARIABLE):
        monkeypatch.setenv(name, "")  # so that what settling puts there goes with the test
        monkeypatch.delenv(name)
    documents = plan.settle(load_yaml(CONFIG_FILE)).made()
    made = Counter(Path(path).stem for path in documents if path.startswith("results/measured"))
    kernels = len(catalog.names())
    assert made["survey"] == measured
    assert made["benchmark"] == (measured + 1) * kernels
    assert made["build"] == 4 * kernels, "a build is due for every GPU, here or not"
    predicted = {Path(path).parts[2] for path in documents if path.endswith("predict.json")}
    assert predicted >= {"b200", "l40s", "mi300x"} and len(predicted) <= 7 - measured and "cpu" not in predicted


def test_numbers_and_booleans_in_braces_on_the_command_line_are_read(monkeypatch):
    """Snakemake's parse_config leaves ``--config 'profile={run: true}'`` as words, and merges them into the file's."""
    from snakemake.cli import parse_config
    from snakemake.utils import update_config

    for name in (gpus.PLACES_VARIABLE, gpus.LIMIT_VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "NVIDIA H200")
    config = load_yaml(CONFIG_FILE)
    given = parse_config(["profile={run: true, cases: 2}", "benchmark={min_seconds: 0.5}", "tracking={experiment: 7}"])
    update_config(config, given)
    settled = plan.settle(config)
    assert settled.config["profile"] == {"run": True, "cases": 2}
    assert settled.config["benchmark"] == {"min_seconds": 0.5, "max_samples": 200}
    assert settled.config["tracking"]["experiment"] == "7"
    assert "profile" in settled.stages("h200")


def test_adding_a_gpu_is_one_block(checkout):
    blocks = checkout.root / "config" / "gpus.yaml"
    blocks.write_text(blocks.read_text() + A10)
    assert checkout.planned()["build"] == 5 * len(catalog.names()), "a100, h100, h200, t4 and the new one"
    done = checkout.atlas("build", "vector_add", "--gpu", "a10", "--sample", "1")
    assert done.returncode == 0, done.stderr
    built = (checkout.root / "results/measured/a10/vector_add/build.json").read_text()
    assert '"arch": 86' in built and '"status": "ok"' in built


def test_adding_a_kernel_is_one_file(checkout):
    text = (checkout.root / "kernels" / "vector_add.py").read_text()
    (checkout.root / "kernels" / "vector_more.py").write_text(text.replace("vector_add", "vector_more"))
    jobs = checkout.planned(devices="NVIDIA H200")
    kernels = len(catalog.names()) + 1
    assert (jobs["survey"], jobs["build"]) == (1, 4 * kernels)
    for stage in ("validate", "autotune", "benchmark"):
        assert jobs[stage] == 2 * kernels, "on the H200 and on the interpreter"


def test_the_config_selects_kernels_and_gpus(checkout):
    jobs = checkout.planned("--config", "gpus=t4,cpu", "kernels=softmax")
    assert (jobs["build"], jobs["validate"]) == (1, 1)


@pytest.mark.parametrize(
    ("chosen", "options"),
    [
        ({}, ""),
        ({"kernels": "softmax,matmul"}, "--kernels softmax,matmul"),
        ({"kernels": "softmax", "gpus": "t4,cpu"}, "--kernels softmax --gpus t4,cpu"),
    ],
)
def test_views_are_of_the_selected_kernels_and_gpus_alone(monkeypatch, chosen, options):
    for name in (gpus.PLACES_VARIABLE, gpus.LIMIT_VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "")
    settled = plan.settle(load_yaml(CONFIG_FILE) | chosen)
    assert settled.selection() == options


TUNED_MATMUL = "results/measured/{}/matmul/autotune.json"


def test_a_kernel_is_tuned_and_benchmarked_after_those_that_it_calls_are_tuned(checkout):
    """Else it would be timed with what was exported of another day, or with defaults."""
    target = "results/measured/a100/matmul_epilogue/benchmark.json"
    chosen = ("--config", "gpus=a100,cpu", "kernels=matmul,matmul_epilogue")
    dag = checkout.snakemake(target, *chosen, "--dag", devices="NVIDIA A100-SXM4-80GB").stdout
    rules = dict(re.findall(r'^\s*(\d+)\[label = "(\w+)', dag, re.MULTILINE))
    edges = re.findall(r"(\d+) -> (\d+)", dag)
    build_of_matmul = re.search(r'(\d+)\[label = "build\\n[^"]*kernel: matmul"', dag)[1]
    (tuned,) = (after for before, after in edges if before == build_of_matmul)
    assert rules[tuned] == "autotune"
    assert {rules[after] for before, after in edges if before == tuned} == {"autotune", "benchmark"}
    assert checkout.planned(target, *chosen, devices="NVIDIA A100-SXM4-80GB")["autotune"] == 2


def test_only_what_this_run_tunes_on_a_gpu_is_waited_for(monkeypatch):
    def waited_for(kernel, gpu, *kernels):
        for name in (gpus.PLACES_VARIABLE, gpus.LIMIT_VARIABLE):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "NVIDIA H200")
        settled = plan.settle(load_yaml(CONFIG_FILE) | {"kernels": list(kernels)})
        return settled.called(SimpleNamespace(kernel=kernel, gpu=gpu))

    both = ("matmul", "matmul_epilogue")
    assert waited_for("matmul_epilogue", "h200", *both) == [TUNED_MATMUL.format("h200")]
    assert waited_for("matmul", "h200", *both) == []
    assert waited_for("matmul_epilogue", "h200", "matmul_epilogue") == [], "this run does not tune matmul"
    assert waited_for("matmul_epilogue", "a100", *both) == [], "out of reach"
    assert waited_for("matmul_epilogue", "cpu", *both) == [], "the interpreter runs defaults"


def test_on_a_cluster_a_gpus_jobs_ask_for_it_by_the_blocks_resources(checkout):
    done = checkout.run(
        sys.executable,
        "-c",
        "from types import SimpleNamespace as Job\n"
        "from atlas.plan import jobs as plan\nfrom atlas.reading.config import CONFIG_FILE, load_yaml\n"
        "for placement in ('local', 'cluster'):\n"
        "    settled = plan.settle(load_yaml(CONFIG_FILE) | {'placement': placement})\n"
        "    for gpu in ('a100', 'cpu'):\n"
        "        asked = settled.device_resources()\n"
        "        print(placement, gpu, {key: ask(Job(gpu=gpu)) for key, ask in asked.items()})\n"
        "    del __import__('os').environ['KERNEL_ATLAS_PLACES']\n",
    )
    assert done.stdout.splitlines() == [
        "local a100 {'gpu': 1}",
        "local cpu {'gpu': None}",
        "cluster a100 {'gpu': 1, 'gpu_model': 'a100', 'slurm_partition': None}",
        "cluster cpu {'gpu': None, 'gpu_model': None, 'slurm_partition': None}",
    ], done.stderr


def test_both_snakefiles_plan_the_same_run(checkout):
    root = checkout.planned()
    inner = checkout.planned("--snakefile", "workflow/Snakefile")
    assert root.pop("reproduce") == inner.pop("all") == 1
    assert root == inner


def test_a_checkout_without_kernels_says_so(checkout):
    for name in catalog.names():
        path = checkout.root / "kernels" / name
        shutil.rmtree(path) if path.is_dir() else path.with_suffix(".py").unlink()
    done = checkout.snakemake("-n")
    assert done.returncode != 0
    assert "key 'kernels': none selected" in done.stdout + done.stderr
