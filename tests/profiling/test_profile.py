"""Reading ncu's pages, what the counters are called, and the stage that asks for them."""

import argparse
import contextlib
import json
import os

import pytest
import torch
from atlas import catalog
from atlas.cli import main
from atlas.cuda.programs import Programs
from atlas.declaration import Peer
from atlas.errors import AtlasError
from atlas.profiling import ncu
from atlas.reading.config import GPUS_FILE, load_gpus
from atlas.results import documents
from atlas.stages import frame, profile

GPU = "h200"

# What ncu 2025.3 prints with --csv --page raw --print-units base into its log.
RAW_PAGE = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "atlas_marker" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","gpu__time_duration.sum"
"","","","","","","","","","","","ns"
"0","4711","python3.12","127.0.0.1","atlas_marker","1","7","(32, 1, 1)","(1, 1, 1)","0","9.0","1,312"
"1","4711","python3.12","127.0.0.1","_one_pass_kernel(int, int)","1","7","(128, 1, 1)","(8192, 1, 1)","0","9.0","66,848"
"""  # noqa: E501


def test_the_raw_page_is_read_in_microseconds_without_arguments_and_thousands_separators():
    assert [(found.kernel, found.microseconds) for found in ncu.parse(RAW_PAGE)] == [
        ("atlas_marker", pytest.approx(1.312)),
        ("_one_pass_kernel", pytest.approx(66.848)),
    ]


@pytest.mark.parametrize(("unit", "scale"), [("nsecond", 1e-3), ("us", 1.0), ("msecond", 1e3)])
def test_units_are_those_of_the_table(unit, scale):
    first = ncu.parse(RAW_PAGE.replace('"ns"', f'"{unit}"'))[0]
    assert first.microseconds == pytest.approx(1312 * scale)


def test_a_page_without_launches_quotes_what_ncu_said():
    with pytest.raises(RuntimeError, match="No kernels were profiled"):
        ncu.parse("==PROF== Connected to process 1\n==WARNING== No kernels were profiled.\n")


def test_without_ncu_the_user_is_told_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(ncu.shutil, "which", lambda name: None)
    monkeypatch.setattr(ncu.os, "access", lambda path, mode: False)
    with pytest.raises(AtlasError, match="install NVIDIA Nsight Compute"):
        ncu.find()


def test_counters_that_are_not_permitted_are_the_user_s_to_permit(fake_ncu, tmp_path):
    fake_ncu("print('==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'); sys.exit(1)\n")
    with pytest.raises(AtlasError, match="NVreg_RestrictProfilingToAdminUsers"):
        ncu.profile(["true"], dict(os.environ), tmp_path / "log.csv")


def test_a_watched_process_that_fails_is_quoted(fake_ncu, tmp_path):
    fake_ncu("print('torch.OutOfMemoryError: tried to allocate', file=sys.stderr); sys.exit(9)\n")
    with pytest.raises(RuntimeError, match="ended with 9: .*tried to allocate"):
        ncu.profile(["true"], dict(os.environ), tmp_path / "log.csv")


def test_metrics_keep_their_units_and_what_was_not_collected_is_left_out():
    page = "\n".join(
        [
            '"ID","Kernel Name","gpu__time_duration.sum","dram__bytes_read.sum","lts__t_sector_hit_rate.pct"',
            '"","","us","byte","%"',
            '"0","work(int)","12","1,048,576","n/a"',
        ]
    )
    asked = [ncu.DURATION, "dram__bytes_read.sum", "lts__t_sector_hit_rate.pct", "sm__of_another_gpu.sum"]
    (found,) = ncu.parse(page, asked)
    assert found.values == {ncu.DURATION: 12.0, "dram__bytes_read.sum": 1048576.0}


def test_metrics_that_the_gpu_has_not_are_not_asked_for(fake_ncu):
    # ncu refuses a whole run for one name that it does not know
    fake_ncu("", query="Device NVIDIA T4 (TU104)\n----\ngpu__time_duration  time\ndram__bytes_read  bytes\n")
    assert ncu.known([ncu.DURATION, "sm__pipe_tensor_cycles_active.avg", "dram__bytes_read.sum"]) == [
        ncu.DURATION,
        "dram__bytes_read.sum",
    ]


def test_stalls_are_named_and_the_heaviest_comes_first():
    values = {
        ncu.DURATION: 5.0,
        "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": 0.5,
        "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 2.25,
        "smsp__average_warps_issue_stalled_sleeping_per_issue_active.ratio": 0.0,
    }
    found = ncu.facts(ncu.Launch("work", values))
    assert list(found["stalls"].items()) == [("long_scoreboard", 2.25), ("barrier", 0.5)]
    assert found["duration_us"] == 5.0
    assert found["tensor_percent"] is None  # not collected


def row(provider, kind, us, n=4096, direction="forward", dtype="bf16", **changes):
    found = {
        "provider": provider, "provider_kind": kind, "direction": direction, "dtype": dtype, "sizes": {"n": n},
        "config": {"BLOCK": 512, "num_warps": 4} if kind != "peer" else None, "status": "ok", "reason": "",
        "bytes": 4.0 * n, "flops": 0.0, "median_us": us,
    }  # fmt: skip
    return found | changes


ROWS = [
    row("blocks", "variant", 10.0), row("slow", "variant", 30.0), row("blocks", "default", 11.0),
    row("torch", "peer", 12.0), row("torch.compile", "peer", 11.0), row("wrong", "variant", 5.0, status="wrong"),
    row("blocks", "variant", 2.0, n=64), row("torch", "peer", 3.0, n=64),
    row("blocks", "variant", 40.0, dtype="fp32", n=2**20),
]  # fmt: skip


def test_the_variants_and_the_fastest_peer_of_the_case_with_the_most_traffic_are_profiled():
    chosen = [(r["provider"], r["provider_kind"]) for r in profile.choose({"rows": ROWS}, 1)]
    assert chosen == [("blocks", "variant"), ("slow", "variant"), ("torch.compile", "peer")]


def test_more_cases_follow_in_the_order_of_their_traffic():
    assert [r["sizes"]["n"] for r in profile.choose({"rows": ROWS}, 2)] == [4096, 4096, 4096, 64, 64]


def test_each_step_is_profiled_beside_the_one_it_follows_where_both_ran():
    steps = [
        {"direction": "forward", "variant": name, "follows": follows, "summary": ""}
        for name, follows in (("blocks", ""), ("slow", "blocks"), ("short", "blocks"), ("alone", "short"), ("no", ""))
    ]
    rows = [*ROWS, row("short", "default", 1.5, n=64), row("short", "variant", 1.0, n=64), row("alone", "variant", 9.0)]
    found = [
        (r["sizes"]["n"], r["provider"], r["median_us"]) for r in profile.choose({"rows": rows, "steps": steps}, 1)
    ]
    assert found[:4] == [
        (4096, "blocks", 10.0),
        (4096, "slow", 30.0),
        (4096, "alone", 9.0),
        (4096, "torch.compile", 11.0),
    ]
    assert found[4:] == [(64, "blocks", 2.0), (64, "short", 1.0)]  # with no peer


def test_a_step_counts_with_the_faster_of_its_configs():
    rows = [row("blocks", "variant", 10.0), row("blocks", "default", 9.0), row("torch", "peer", 12.0)]
    assert [r["provider_kind"] for r in profile.choose({"rows": rows}, 1)] == ["default", "peer"]


PAGES = """
plan = json.loads(open(words[-1]).read())
asked = sys.argv[sys.argv.index("--metrics") + 1].split(",")
rows = [["ID", "Kernel Name", *asked], ["", "", *("ns" if "time" in name else "" for name in asked)]]
for case in plan["cases"]:
    name = case.get("peer") or case["variant"]
    for kernel in ("atlas_marker", f"{name}_kernel(int)"):
        rows.append(["0", kernel, *("7000" if "time" in m else "0" for m in asked)])
with open(log, "w") as out:
    for row in rows:
        print(",".join(f'"{cell}"' for cell in row), file=out)
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job on a GPU whose kernel was benchmarked."""
    monkeypatch.setattr(frame, "leased", lambda job: contextlib.nullcontext())
    arguments = argparse.Namespace(gpu=GPU, gpus_file=GPUS_FILE, results=tmp_path, cases=1, kernel="vector_add")
    made = frame.Job("profile", "vector_add", GPU, load_gpus(GPUS_FILE)[GPU], tmp_path, arguments)
    document = frame.envelope(made, "measured", "ok", "", 1.0) | {"protocol": "timing/2", "rows": ROWS}
    document |= {"stage": "benchmark", "schema_version": documents.VERSIONS["benchmark"], "device": {}}
    documents.write(made.folder / "benchmark.json", document)
    return made


def read(job):
    return documents.read(job.output, "profile")


def test_the_document_holds_the_launches_of_each_call(job, fake_ncu):
    fake_ncu(PAGES, query="gpu__time_duration x\n")
    profile.run(job.arguments)
    document = read(job)
    assert (document["status"], document["kernel_digest"]) == ("ok", catalog.digest("vector_add"))
    found = [(r["provider"], [launch["kernel"] for launch in r["launches"]]) for r in document["rows"]]
    assert found == [(name, [f"{name}_kernel"]) for name in ("blocks", "slow", "torch.compile")]
    assert document["rows"][0]["launches"][0]["duration_us"] == 7.0
    assert document["rows"][2]["config"] is None and document["rows"][0]["config"] == {"BLOCK": 512, "num_warps": 4}


@pytest.fixture
def fastest_in_cuda(job, monkeypatch):
    """The job, with a peer in CUDA C++ that was the fastest; a call says why it cannot be loaded now."""
    path = job.folder / "benchmark.json"
    documents.write(path, json.loads(path.read_text()) | {"rows": [*ROWS, row("cuda", "peer", 9.0)]})

    def put(obstacle):
        monkeypatch.setattr(Peer, "missing", lambda peer: "")
        monkeypatch.setattr(Programs, "obstacle", ("missing" if obstacle else "", obstacle))
        profile.run(job.arguments)
        document = read(job)
        return document, [r["provider"] for r in document["rows"]]

    return put


def test_a_peer_in_cuda_is_profiled_with_what_the_cuda_stage_built(fastest_in_cuda, fake_ncu, job):
    where = {"gpu": GPU, "folder": str(job.folder)}
    fake_ncu(PAGES + f"assert {where!r}.items() <= plan['cases'][-1].items()\n", query="gpu__time_duration x\n")
    document, providers = fastest_in_cuda("")
    assert (document["status"], document["reason"], providers) == ("ok", "", ["blocks", "slow", "cuda"])


def test_where_that_cannot_be_loaded_the_next_peer_is_profiled_and_the_document_says_so(fastest_in_cuda, fake_ncu):
    fake_ncu(PAGES, query="gpu__time_duration x\n")
    document, providers = fastest_in_cuda("not built: run python -m atlas cuda")
    assert (document["status"], providers) == ("ok", ["blocks", "slow", "torch.compile"])
    assert document["reason"] == "the fastest peer, cuda, was passed over: not built: run python -m atlas cuda"


def test_a_peer_in_cuda_that_ends_the_watched_process_costs_no_other_its_counters(fastest_in_cuda, fake_ncu):
    failing = "\nif any(case.get('peer') == 'cuda' for case in plan['cases']):\n    sys.exit('no cubin for sm_90')\n"
    fake_ncu(PAGES + failing, query="gpu__time_duration x\n")
    document, providers = fastest_in_cuda("")
    assert (document["status"], providers) == ("ok", ["blocks", "slow", "torch.compile"])
    assert "cuda, was passed over: RuntimeError: ncu ended with 1: " in document["reason"]
    assert "no cubin for sm_90" in document["reason"]


def test_a_watched_process_that_ends_for_another_reason_fails_the_profile(fastest_in_cuda, fake_ncu):
    fake_ncu("sys.exit('out of memory')\n", query="gpu__time_duration x\n")
    document, _ = fastest_in_cuda("")
    assert document["status"] == "failed" and "out of memory" in document["reason"]


def test_a_call_that_fails_is_left_out_and_costs_no_other_its_counters(job, fake_ncu):
    body = PAGES.replace('for case in plan["cases"]', 'for case in plan["cases"][1:]')
    body += "import os\nwith open(os.path.join(os.path.dirname(words[-1]), 'failed.json'), 'w') as out:\n"
    body += "    json.dump({0: 'RuntimeError: out of luck'}, out)\n"
    fake_ncu(body, query="gpu__time_duration x\n")
    profile.run(job.arguments)
    document = read(job)
    assert (document["status"], [r["provider"] for r in document["rows"]]) == ("ok", ["slow", "torch.compile"])
    assert document["reason"] == "forward n=4096 bf16 blocks was left out: RuntimeError: out of luck"


def test_the_watched_process_loads_what_the_cuda_stage_built(monkeypatch, tmp_path):
    from atlas.profiling import launches as watched

    seen = []
    monkeypatch.setattr(Programs, "prepare", lambda *asked: seen.append(asked) or "thunk")
    asked = {"kernel": "vector_add", "direction": "forward", "dtype": "fp32", "sizes": {"n": 7}, "config": None}
    device = torch.device("cpu")
    assert watched.thunk(asked | {"peer": "cuda", "gpu": GPU, "folder": str(tmp_path)}, device) == "thunk"
    ((programs, launcher, inputs),) = seen
    assert programs == Programs("vector_add", GPU, tmp_path, device)
    assert launcher == catalog.load("vector_add").forward.peers["cuda"].launcher and set(inputs) == {"x", "y"}
    assert watched.thunk(asked | {"peer": "torch", "gpu": GPU, "folder": str(tmp_path)}, device)().shape == (7,)


def test_without_ncu_the_document_says_what_to_install(job, monkeypatch):
    monkeypatch.setattr(ncu.shutil, "which", lambda name: None)
    monkeypatch.setattr(ncu.os, "access", lambda path, mode: False)
    profile.run(job.arguments)
    document = read(job)
    assert document["status"] == "skipped" and "install NVIDIA Nsight Compute" in document["reason"]


def test_counters_that_are_not_permitted_skip_the_profile(job, fake_ncu):
    fake_ncu("print('==ERROR== ERR_NVGPUCTRPERM'); sys.exit(1)\n", query="gpu__time_duration x\n")
    profile.run(job.arguments)
    assert read(job)["status"] == "skipped" and "NVreg_RestrictProfilingToAdminUsers" in read(job)["reason"]


def test_the_interpreter_has_no_counters(tmp_path, capsys):
    assert main(["profile", "vector_add", "--gpu", "cpu", "--results", str(tmp_path)]) == 2
    assert "has no counters" in capsys.readouterr().err


@pytest.fixture
def watched(monkeypatch):
    """The watched process, here and without a device; ``seen`` is what it did."""
    from atlas.profiling import launches as watched

    seen = []
    monkeypatch.setattr(watched, "seen", seen, raising=False)

    class Device:
        index = 0

        def flush(self):
            seen.append("flush")

        def soak(self, board):
            seen.append("soak")

    monkeypatch.setattr(watched.runtime, "device_of", lambda name, block: "cuda:0")
    monkeypatch.setattr(watched, "CudaDevice", lambda device: Device())
    monkeypatch.setattr(watched, "board_of", lambda index: None)
    monkeypatch.setattr(watched, "mark", lambda: seen.append("marker"))
    monkeypatch.setattr(watched, "thunk", lambda asked, device: lambda: seen.append(asked["kernel"]))
    monkeypatch.setattr(watched.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(watched.torch.cuda.profiler, "start", lambda: seen.append("start"))
    monkeypatch.setattr(watched.torch.cuda.profiler, "stop", lambda: seen.append("stop"))
    return watched


def planned(folder, **changes):
    path = folder / "plan.json"
    plan = {"gpu": GPU, "gpus_file": str(GPUS_FILE), "repeats": 2, "cases": [{"kernel": "k"}], "lenient": False}
    path.write_text(json.dumps(plan | changes))
    return path


def test_a_watched_call_starts_from_a_flush_that_is_not_counted_itself(tmp_path, watched):
    watched.main(planned(tmp_path))
    assert watched.seen[:4] == ["soak", "marker", "k", "k"]  # nothing of this is counted
    assert watched.seen[4:] == ["start", "marker", "stop", "flush", "start", "k", "stop"] * 2


def test_a_lenient_plan_goes_on_behind_a_case_that_fails(tmp_path, watched, monkeypatch):
    def fail():
        raise ValueError("out of luck")

    usual = watched.thunk
    monkeypatch.setattr(watched, "thunk", lambda asked, on: fail if asked["kernel"] == "bad" else usual(asked, on))
    cases = [{"kernel": "bad"}, {"kernel": "k"}]
    watched.main(planned(tmp_path, cases=cases, lenient=True))
    assert watched.seen.count("k") == 4 and ncu.failures(tmp_path) == {0: "ValueError: out of luck"}
    with pytest.raises(ValueError, match="out of luck"):
        watched.main(planned(tmp_path, cases=cases))


@pytest.mark.parametrize(
    ("signature", "name"),
    [
        ("_softmax_kernel", "_softmax_kernel"),
        ("nvjet_tst_128x256(Params)", "nvjet_tst_128x256"),
        (
            "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>(T4 *, const T2 *, int)",
            "at::native::cunn_SoftMaxForward<8, float>",
        ),
        (
            "void at::native::elementwise<4, at::native::f(at::TensorIterator &)::[lambda(int) (instance 1)]>(int, T3)",
            "at::native::elementwise<4, at::native::f(at::TensorIterator &)::[lambda(int) (instance 1)]>",
        ),
    ],
)
def test_a_launch_is_named_without_its_parameters(signature, name):
    assert ncu.plain_name(signature) == name
