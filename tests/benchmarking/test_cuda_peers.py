"""Peers in CUDA C++: compiled where there is nvcc, left out with a reason where something is missing."""

import importlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from atlas import catalog
from atlas.cli import main
from atlas.cuda import nvcc
from atlas.cuda.nvcc import usage
from atlas.cuda.programs import Programs
from atlas.declaration import cuda
from atlas.host import gpus
from atlas.identity import today
from atlas.plan import jobs as plan
from atlas.reading.config import CONFIG_FILE, load_yaml

from .small_kernel import Stage

SAID = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'tiled_fp32' for 'sm_80'
ptxas info    : Function properties for tiled_fp32
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 8 bytes cumulative stack size, 37888 bytes smem, 388 bytes cmem[0]
ptxas info    : Compile time = 76.793 ms
ptxas info    : Compiling entry function 'naive_fp32' for 'sm_80'
ptxas info    : Function properties for naive_fp32
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 388 bytes cmem[0]
"""
KERNELS = [name for name in catalog.names() if nvcc.sources(name)]


def built(folder, kernel="vector_add", gpu="t4"):
    """Run the stage; its document, and its cubin's size."""
    assert main(["cuda", kernel, "--gpu", gpu, "--results", str(folder)]) == 0
    place = folder / "measured" / gpu / kernel
    return json.loads((place / "cuda.json").read_text()), (place / "cuda.cubin").stat().st_size


def programs(folder, kernel="vector_add", gpu="t4"):
    return Programs(kernel, gpu, folder / "measured" / gpu / kernel, torch.device("cpu"))


@pytest.fixture
def compiler(monkeypatch):
    """An nvcc that makes a cubin of four bytes; calling it with a reason makes it fail."""
    outcome = {"reason": ""}

    def compile_cubin(_, source, arch, cubin):
        if not outcome["reason"]:
            cubin.write_bytes(b"\x7fELF")
        return nvcc.NvccResult(SAID, outcome["reason"])

    monkeypatch.setattr(nvcc, "find", lambda: "/usr/bin/nvcc")
    monkeypatch.setattr(nvcc, "version", lambda _: "13.0.88")
    monkeypatch.setattr(nvcc, "compile_cubin", compile_cubin)
    return lambda reason: outcome.update(reason=reason)


def test_what_ptxas_says_is_read():
    naive, tiled = usage(SAID)
    assert naive == {
        "name": "naive_fp32", "registers": 32, "stack_bytes": 0, "spill_store_bytes": 0, "spill_load_bytes": 0,
        "shared_bytes": 0,
    }  # fmt: skip
    assert (tiled["registers"], tiled["spill_store_bytes"], tiled["spill_load_bytes"]) == (128, 12, 16)
    assert (tiled["stack_bytes"], tiled["shared_bytes"]) == (8, 37888)
    assert usage("nvcc warning : nothing was compiled") == []


def test_without_nvcc_the_build_is_skipped_and_says_so_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(nvcc, "find", lambda: None)
    document, size = built(tmp_path)
    assert (document["status"], document["reason"]) == ("skipped", nvcc.NOWHERE)
    assert size == 0, "the rule's second output is there all the same"
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert programs(tmp_path).obstacle == ("missing", nvcc.NOWHERE)
    assert programs(tmp_path).facts() == {}


def test_a_build_says_of_what_by_what_and_what_came_out(tmp_path, compiler):
    document, size = built(tmp_path)
    assert (document["status"], document["kind"], size) == ("ok", "compiled", 4)
    assert document["nvcc"]["version"] == "13.0.88" and "-arch=sm_75" in document["nvcc"]["flags"]
    assert [row["name"] for row in document["kernels"]] == ["naive_fp32", "tiled_fp32"]
    assert programs(tmp_path).obstacle == ("", "")
    assert programs(tmp_path).facts()["cuda"]["nvcc"]["version"] == "13.0.88"


def test_sources_that_do_not_compile_fail_their_peers_with_nvcc_s_words(tmp_path, compiler):
    compiler('vector_add.cu(3): error: expected a ";"')
    document, size = built(tmp_path)
    assert (document["status"], size) == ("failed", 0)
    assert programs(tmp_path).obstacle == ("failed", 'vector_add.cu(3): error: expected a ";"')


def test_a_cubin_that_is_not_of_today_s_sources_is_not_timed(tmp_path, compiler, monkeypatch):
    assert "run python -m atlas cuda vector_add --gpu t4" in programs(tmp_path).obstacle[1]
    built(tmp_path)
    (tmp_path / "measured/t4/vector_add/cuda.cubin").write_bytes(b"other")
    assert "not the one its document describes" in programs(tmp_path).obstacle[1]
    monkeypatch.setattr(nvcc, "source_digest", lambda kernel: "edited")
    assert "today's kernels/cuda/vector_add.cu" in programs(tmp_path).obstacle[1]


def test_the_interpreter_and_kernels_without_sources_are_the_user_s_mistake(tmp_path, capsys):
    assert main(["cuda", "vector_add", "--gpu", "cpu", "--results", str(tmp_path)]) == 2
    assert main(["cuda", "softmax", "--gpu", "t4", "--results", str(tmp_path)]) == 2
    assert "kernels/cuda/softmax.cu" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_benchmark_without_what_was_built_keeps_the_row_and_the_reason():
    rows = Stage({"good 1": 1.0, "torch": 1.0}, peers={"cuda": cuda("vectors")}).rows()
    assert rows["peer cuda"]["status"] == "missing"
    assert rows["peer cuda"]["reason"]
    assert rows["variant good"]["status"] == "unsupported" and rows["peer torch"]["status"] == "ok"


def test_a_benchmark_depends_on_what_is_built_and_how_it_is_launched(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNEL_ATLAS_DEVICES", "NVIDIA H200")
    for name in (gpus.PLACES_VARIABLE, gpus.LIMIT_VARIABLE):
        monkeypatch.setenv(name, "")  # so that what settling puts there goes with the test
        monkeypatch.delenv(name)
    settled = plan.settle(load_yaml(CONFIG_FILE))
    inputs = settled.cuda_peers(SimpleNamespace(gpu="h200", kernel="matmul"))
    assert inputs == [f"results/measured/h200/matmul/cuda.{suffix}" for suffix in ("json", "cubin")]
    assert settled.cuda_peers(SimpleNamespace(gpu="cpu", kernel="matmul")) == []
    assert settled.cuda_peers(SimpleNamespace(gpu="h200", kernel="softmax")) == []
    read = settled.cuda_sources(SimpleNamespace(kernel="matmul"))
    assert [path.rpartition("/")[2] for path in read] == ["matmul.cu", "numbers.cuh"]
    # How they are launched is part of the kernel's identity.
    tree = Path(shutil.copytree(catalog.KERNELS, tmp_path / "kernels"))
    before = today.of_kernel(tree, "matmul")
    launcher = tree / "cuda" / "matmul.py"
    launcher.write_text(launcher.read_text().replace('"naive"', '"tiled"'))
    after = today.of_kernel(tree, "matmul")
    assert {name for name in before if before[name] != after[name]} == {"peers"}


class Recorder:
    """Stands for a program on a device: says which entry functions were launched, and how."""

    int32 = int64 = float32 = staticmethod(lambda value: value)
    sms, arch = 132, 90

    def __init__(self):
        self.launches = []

    def kernel(self, name):
        return name

    def config(self, grid, block):
        return grid, block

    def launch(self, config, kernel, *arguments):
        self.launches.append((kernel, *config, *(a for a in arguments if not isinstance(a, torch.Tensor))))


def launched(kernel, launcher, **inputs):
    program = Recorder()
    thunk = getattr(importlib.import_module(f"kernels.cuda.{kernel}"), launcher)(program, **inputs)
    output = thunk()
    return *program.launches, output


def test_launchers_cover_all_elements_and_allocate_what_torch_would():
    x = torch.zeros(4097, dtype=torch.bfloat16)
    launch, out = launched("vector_add", "vectors", x=x, y=x)
    assert launch == ("vector_add_bf16", 3, 128, 4097) and out.shape == x.shape
    launch, out = launched("vector_add", "vectors", x=torch.zeros(4097), y=torch.zeros(4097))
    assert launch[1] == 5, "1024 elements of fp32 a block, and one more"
    launch, out = launched("reduction", "rows", x=torch.zeros(1, 2**20, 1), op="sum")
    assert launch == ("long_rows_fp32", 256, 256, 2**20, 256, 1), "a row shared until a thread has 4 vectors"
    launch, out = launched("reduction", "rows", x=torch.zeros(6, 64, 1, dtype=torch.float16), op="mean")
    assert launch == ("short_rows_fp16", 1, 256, 6, 64, 8, 64) and out.shape == (6, 1)
    launch, out = launched("matmul", "tiled", a=torch.zeros(130, 16), b=torch.zeros(16, 256))
    assert launch == ("tiled_fp32", 4, 256, 130, 256, 16) and out.shape == (130, 256)
    launch, out = launched("matmul", "naive", a=torch.zeros(9, 16), b=torch.zeros(16, 33))
    assert launch == ("naive_fp32", (2, 2), 256, 9, 33, 16)


@pytest.mark.parametrize(
    ("kernel", "launcher", "inputs", "reason"),
    [
        ("vector_add", "vectors", {"x": torch.zeros(9)[1:], "y": torch.zeros(8)}, "start on 16 bytes"),
        ("vector_add", "vectors", {"x": torch.zeros(8).double(), "y": torch.zeros(8).double()}, "fp32, fp16, bf16"),
        ("reduction", "rows", {"x": torch.zeros(2, 8, 4), "op": "sum"}, "last axis"),
        ("reduction", "rows", {"x": torch.zeros(2, 8, 1), "op": "amax"}, "sum and mean"),
        ("matmul", "tiled", {"a": torch.zeros(8, 9).half(), "b": torch.zeros(9, 8).half()}, "multiples of 8"),
        ("matmul", "tiled", {"a": torch.zeros(8, 8).T[:4], "b": torch.zeros(8, 8)}, "contiguous"),
        ("matmul", "naive", {"a": torch.zeros(8192, 4096), "b": torch.zeros(4096, 8192)}, "too long"),
    ],
)
def test_what_a_launcher_does_not_take_is_unsupported_with_the_reason(kernel, launcher, inputs, reason):
    with pytest.raises(NotImplementedError, match=reason):
        launched(kernel, launcher, **inputs)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_declared_peer_has_its_launcher(kernel):
    module = importlib.import_module(f"kernels.cuda.{kernel}")
    declared = [peer.launcher for work in catalog.load(kernel).passes.values() for peer in work.peers.values()]
    assert any(declared)
    assert all(hasattr(module, launcher) for launcher in declared if launcher)


@pytest.mark.skipif(nvcc.find() is None, reason=nvcc.NOWHERE)
@pytest.mark.parametrize(
    ("kernel", "gpu", "entries"),
    [
        ("vector_add", "t4", 3),
        ("reduction", "a100", 6),
        ("matmul", "t4", 5),  # tensor cores take bf16 from 8.0 on
        ("matmul", "h200", 6),
    ],
)
def test_the_sources_compile_and_keep_their_values_in_registers(tmp_path, kernel, gpu, entries):
    document, _ = built(tmp_path, kernel, gpu)
    assert document["status"] == "ok", document["reason"]
    assert len(document["kernels"]) == entries
    assert not [row["name"] for row in document["kernels"] if row["spill_store_bytes"]]


@pytest.mark.skipif(nvcc.find() is None, reason=nvcc.NOWHERE)
def test_nvcc_s_error_is_told_without_the_checkout_s_path(tmp_path):
    (tmp_path / "broken.cu").write_text("__global__ void f() { x; }")
    outcome = nvcc.compile_cubin(nvcc.find(), tmp_path / "broken.cu", 75, tmp_path / "out.cubin")
    assert outcome.reason == 'broken.cu(1): error: identifier "x" is undefined'
