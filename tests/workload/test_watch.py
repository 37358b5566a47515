"""A program's calls are counted where they pass: once, right, whatever thread, and whatever becomes of the program."""

import json
import signal
import subprocess
import sys
import time

import pytest
from atlas import ROOT, cli
from atlas.results.subject import PassCase
from atlas.watching import merging
from atlas.workload import calls, problems

from .programs import DOUBLE, ended, environment, of, printed, started, watched

PROGRAM = """
import torch, kernels, kernels.nn
x = torch.randn(4, 33, requires_grad=True)
for _ in range(3):
    kernels.softmax(x).sum().backward()
kernels.softmax(x.detach().t(), dim=0)
kernels.nn.Linear(33, 16)(x.repeat(6, 1)).sum().backward()  # more rows than its gradient has one launch for
kernels.softmax(torch.empty(0, 3))
try: kernels.softmax(torch.zeros(3, 3, dtype=torch.int32))
except TypeError: pass
kernels.softmax(torch.empty(5, 3, device="meta"))
for seed in range(3):
    kernels.dropout(x.detach(), 0.5, seed=seed)
ends = torch.tensor([0, 2, 4], dtype=torch.int32)
kernels.attention_varlen(*(torch.randn(4, 1, 16) for _ in range(3)), ends, ends, 2, 2)
compiled = torch.compile(lambda x: kernels.softmax(2 * x), backend="aot_eager", fullgraph=True)
for _ in range(2):
    compiled(x).sum().backward()
kernels.log_softmax(x.detach(), dim=-1)
torch.func.vmap(kernels.gelu)(torch.randn(3, 4, 5))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What :data:`PROGRAM` calls; with the file."""
    path = tmp_path_factory.mktemp("watched") / "calls.json"
    return watched(PROGRAM, path), path


def plain(call):
    """Of a call's tensors names and shapes, of its other arguments names and values."""
    return [(one["name"], one.get("shape", one.get("value"))) for one in call["arguments"]]


def test_a_call_is_counted_with_its_gradient_under_what_it_was_given(seen):
    first, *_ = [call for call in of(seen[0], "softmax") if call["count"] == 3]
    assert plain(first) == [("input", [4, 33])] and first["arguments"][0]["strides"] == [33, 1]
    assert (first["count"], first["backward"], first["failed"]) == (3, 3, 0)
    runs = [(run["during"], run["kernel"], run["sizes"], run["count"]) for run in first["runs"]]
    assert runs == [(word, "softmax", {"m": 4, "n": 33}, 3) for word in ("forward", "backward")]


def test_without_a_gpu_nothing_is_timed_and_no_share_is_made_up(seen):
    assert seen[0]["timed_by"] is None and seen[0]["devices"] == ["cpu"]
    assert {call["share"] for call in seen[0]["calls"]} == {None}


def test_other_strides_make_another_kind_of_call(seen):
    (turned,) = [call for call in of(seen[0], "softmax") if ("dim", 0) in plain(call)]
    assert turned["arguments"][0]["strides"] == [1, 33] and turned["count"] == 1


def test_what_a_module_calls_is_the_public_call_and_what_its_gradient_calls_is_no_call_of_its_own(seen):
    (call,) = of(seen[0], "linear")
    assert (call["count"], call["backward"]) == (1, 1)
    assert not of(seen[0], "matmul"), "the gradient of linear calls it"
    assert {run["kernel"] for run in call["runs"] if run["during"] == "backward"} == {"matmul", "matmul_epilogue"}


def test_products_of_a_gradient_are_tuned_but_counted_with_the_call(seen):
    own = {(one.kernel, one.at.direction): one for one in problems.problems(seen[0]) if "linear" in one.functions}
    assert own["matmul_epilogue", "forward"].part == own["matmul_epilogue", "backward"].part == ""
    assert own["matmul", "forward"].part == "linear"


def test_a_gradient_made_of_other_functions_alone_counts_as_the_kernel_s_own_pass():
    """That of linear without bias and activation runs matmul twice, and no kernel of linear's."""
    run = {"operator": "o", "dtype": "bf16", "count": 2, "timed": 0, "timed_seconds": 0.0, "tensors": []}
    linear = run | {"during": "forward", "kernel": "matmul_epilogue", "direction": "forward", "sizes": {"m": 8}}
    matmul = run | {"during": "backward", "kernel": "matmul", "direction": "forward", "sizes": {"m": 4}}
    call = {"function": "linear", "seen": "call", "arguments": [], "count": 2, "backward": 2, "runs": [linear, matmul]}
    found = {(one.kernel, one.at): one.part for one in problems.problems({"calls": [call], "cases": []})}
    assert found["matmul_epilogue", PassCase("backward", "bf16", (("m", 8),))] == ""
    assert found["matmul", PassCase("forward", "bf16", (("m", 4),))] == "linear"


def test_under_torch_compile_the_operators_are_the_calls(seen):
    (forward,), (backward,) = of(seen[0], "softmax_forward"), of(seen[0], "softmax_backward")
    assert forward["seen"] == backward["seen"] == "operator" and forward["count"] == backward["count"] == 2
    assert [run["direction"] for run in backward["runs"]] == ["backward"]


def test_a_seed_makes_no_other_kind_of_call(seen):
    (call,) = of(seen[0], "dropout")
    assert call["count"] == 3 and "seed" not in dict(plain(call))


def test_a_transform_that_calls_once_for_each_element_is_one_call_of_several_runs(seen):
    (call,) = of(seen[0], "gelu")
    assert call["count"] == 1 and [run["count"] for run in call["runs"]] == [3]


def test_what_comes_to_no_case_is_told_with_the_reason_and_not_dropped(seen, capsys):
    assert cli.main(["workload", str(seen[1]), "--gpu", "h200"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "softmax(input[0, 3] fp32), 1 call: nothing was launched" in said
    assert "softmax(input[3, 3] int32), 1 call: raised TypeError: softmax takes" in said
    assert "1 call: no config is chosen by sizes for attention_varlen_forward" in said
    assert "input is not contiguous: it is copied first, which the case does not time" in said
    assert "[5, 3]" not in said, "a meta tensor computes nothing"


def test_where_no_call_ran_no_device_is_made_up(seen, tmp_path, capsys):
    calls = [call | {"failed": 1, "runs": []} for call in of(seen[0], "softmax")[:1]]
    path = tmp_path / "failed.json"
    path.write_text(json.dumps(seen[0] | {"devices": [], "calls": calls}))
    assert cli.main(["workload", str(path)]) == 0
    assert " on no device; " in " ".join(capsys.readouterr().out.split())


def test_every_recorded_case_is_one_that_the_kernel_can_draw(seen):
    from atlas import catalog
    from atlas.workload import mapping

    for one in problems.problems(seen[0]):
        declaration = catalog.load(one.kernel)
        if one.at.direction in declaration.passes:
            assert mapping.trouble(declaration, one.at.direction, mapping.case_of(one.case)) == "", one


def test_threads_lose_no_count(tmp_path):
    code = DOUBLE + (
        "def work():\n"
        "    for _ in range(500): double(x)\n"
        "threads = [threading.Thread(target=work) for _ in range(8)]\n"
        "for one in threads: one.start()\n"
        "for one in threads: one.join()\n"
    )
    (call,) = watched(code, tmp_path / "calls.json")["calls"]
    assert call["count"] == 4000 and call["runs"][0]["count"] == 4000


def test_a_mode_that_sees_every_operator_makes_no_call_two(tmp_path):
    """Under it a call comes by torch's dispatcher, which calls the operator back."""
    code = DOUBLE + (
        "from torch.utils._python_dispatch import TorchDispatchMode\n"
        "class Mode(TorchDispatchMode):\n"
        "    def __torch_dispatch__(self, func, types, args=(), kwargs=None): return func(*args, **(kwargs or {}))\n"
        "with Mode():\n"
        "    for _ in range(3): double(x)\n"
    )
    (call,) = watched(code, tmp_path / "calls.json")["calls"]
    assert call["count"] == call["runs"][0]["count"] == 3


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    path = tmp_path / "calls.json"
    code = (
        "from atlas.watching import merging\nfrom pathlib import Path\nimport sys\n"
        "for _ in range(40):\n"
        "    merging.add(Path(sys.argv[1]), merging.empty() | {'processes': 1})\n"
    )
    words = [sys.executable, "-c", code, str(path)]
    writers = [subprocess.Popen(words, env=environment(None), cwd=ROOT) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert calls.read(path)["processes"] == 80


def test_processes_add_up_in_one_file_and_a_fork_does_not_tell_its_parent_s_calls_again(tmp_path):
    path = tmp_path / "calls.json"
    forking = DOUBLE + (
        "import os, sys\n"
        "for _ in range(5): double(x)\n"
        "child = os.fork()\n"
        "for _ in range(10): double(x)\n"
        "if child: os.waitpid(child, 0)\n"
    )
    others = [started(DOUBLE + "for _ in range(100): double(x)\n", path) for _ in range(2)]
    printed(forking, path)
    assert [process.wait() for process in others] == [0, 0]
    found = calls.read(path)
    assert found["processes"] == 4 and [call["count"] for call in found["calls"]] == [225]


def written(path):
    """How many calls the file holds."""
    return sum(call["count"] for call in calls.read(path)["calls"]) if path.exists() else 0


def test_a_killed_program_leaves_what_it_had_called(tmp_path):
    path = tmp_path / "calls.json"
    process = started(DOUBLE + "import time\nfor _ in range(7): double(x)\ntime.sleep(100)\n", path)
    deadline = time.monotonic() + 240
    while written(path) < 7 and time.monotonic() < deadline:  # what is written first may be fewer, on a busy host
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert written(path) == 7


def test_a_program_that_raises_leaves_its_file_and_its_own_traceback(tmp_path):
    path = tmp_path / "calls.json"
    done = ended(DOUBLE + "double(x)\nraise RuntimeError('of the program')\n", path)
    assert done.returncode == 1 and "of the program" in done.stderr and "atlas/watching" not in done.stderr
    assert calls.read(path)["calls"][0]["count"] == 1


def test_an_unwatched_program_loads_nothing_of_it_and_its_functions_are_as_they_are():
    code = (
        "import sys, kernels\nfrom atlas.operators import operator\nfrom atlas.operators.call import written\n"
        "assert kernels.softmax.__code__.co_name == 'softmax' and operator.written is written\n"
        "print([name for name in sys.modules if name.startswith(('atlas.watching', 'atlas.workload'))])"
    )
    assert printed(code, None).strip() == "[]"


def test_a_call_that_is_odd_does_not_end_the_program(tmp_path):
    """A nested tensor tells no strides."""
    code = (
        "import torch, kernels\n"
        "nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])\n"
        "try: kernels.softmax(nested)\n"
        "except Exception as error: print(type(error).__name__)\n"
        "kernels.softmax(torch.ones(2, 3))\n"
    )
    path = tmp_path / "calls.json"
    assert printed(code, path) == printed(code, None)
    assert sum(call["count"] for call in calls.read(path)["calls"]) == 1


def test_the_command_has_the_program_s_exit_status_and_words_and_begins_a_new_file(tmp_path):
    path = tmp_path / "calls.json"
    path.write_text(json.dumps(merging.empty() | {"programs": ["old.py"]}))
    program = tmp_path / "program.py"
    program.write_text(DOUBLE + "import sys\ndouble(x)\nsys.exit(len(sys.argv))\n")
    words = [sys.executable, "-m", "atlas", "watch", "--output", str(path), "--", sys.executable, str(program)]
    done = subprocess.run(
        [*words, "--lr", "1", "--lr", "2", "--", "-x"],
        env=environment(None),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "1 call of 1 kind" in done.stdout
    assert calls.read(path)["programs"] == ["program.py"]


def test_the_command_replaces_no_file_that_is_none_of_calls(tmp_path, capsys):
    path = tmp_path / "precious.json"
    path.write_text('{"weights": [1, 2]}')
    assert cli.main(["watch", "--output", str(path), "--", "true"]) == 2
    assert "precious.json" in capsys.readouterr().err and path.read_text() == '{"weights": [1, 2]}'


def test_a_program_begins_with_no_file_that_it_cannot_add_to(tmp_path):
    path = tmp_path / "calls.json"
    path.write_text('{"format": "kernel-atlas calls", "version": 7, "calls": []}')
    done = ended("import kernels; kernels.softmax", path)
    assert done.returncode == 1 and "key 'version' is 7" in done.stderr and "move it away" in done.stderr


def test_what_cannot_be_written_is_kept_and_written_later(tmp_path, monkeypatch, capsys):
    """As on a full disk."""
    from atlas.errors import AtlasError
    from atlas.watching.book import Book
    from atlas.watching.recorder import Recorder

    book, path, add = Book(), tmp_path / "calls.json", merging.add
    recorder = Recorder(path, book)

    def full(path, part):
        raise AtlasError("no space left")

    made = book.call("softmax", "call", (), list)
    monkeypatch.setattr(merging, "add", full)
    for _ in range(2):
        book.made(made)
        recorder.write()
    monkeypatch.setattr(merging, "add", add)
    book.made(made)
    recorder.write()
    found = calls.read(path)
    assert (found["processes"], found["calls"][0]["count"]) == (1, 3)
    assert capsys.readouterr().err.count("no space left") == 1


def test_a_file_that_breaks_meanwhile_is_left_alone_and_the_calls_go_beside_it(tmp_path):
    path = tmp_path / "calls.json"
    code = DOUBLE + f"open({str(path)!r}, 'w').write('[')\ndouble(x)\n"
    done = ended(code, path)
    assert done.returncode == 0 and "go to" in done.stderr
    assert path.read_text() == "["
    (beside,) = tmp_path.glob("calls-*.json")
    assert calls.read(beside)["calls"][0]["count"] == 1


def call(**changes):
    """A call of a file."""
    run = {"during": "forward", "operator": "o", "kernel": "softmax", "direction": "forward", "dtype": "bf16"}
    run |= {"sizes": {"m": 4, "n": 8}, "tensors": [], "count": 2, "timed": 1, "timed_seconds": 0.5}
    made = {"function": "softmax", "seen": "call", "arguments": [], "count": 2, "backward": 0, "captured": 0}
    return made | {"failed": 0, "reason": "", "share": None, "runs": [run]} | changes


def test_merging_adds_counts_and_times_of_equal_calls_and_shares_the_time():
    other = call(arguments=[{"name": "dim", "value": 0}])
    part = merging.empty() | {"calls": [call(), other], "processes": 1}
    found = merging.merged(merging.merged(merging.empty(), part), part)
    assert found["processes"] == 2 and len(found["calls"]) == 2
    assert [(one["count"], one["runs"][0]["count"], one["share"]) for one in found["calls"]] == [(4, 4, 0.5)] * 2
    assert found["calls"][0]["runs"][0]["timed_seconds"] == 1.0


def test_a_call_that_was_not_timed_has_no_share():
    untimed = call(function="gelu")
    untimed["runs"] = [untimed["runs"][0] | {"timed": 0, "timed_seconds": 0.0}]
    found = merging.merged(merging.empty(), merging.empty() | {"calls": [call(), untimed]})
    assert {one["function"]: one["share"] for one in found["calls"]} == {"softmax": 1.0, "gelu": None}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "cut off or not JSON"),
        ("[]", "wrong type"),
        ('{"version": 1}', "missing key 'format'"),
        ('{"format": "kernel-atlas calls", "version": 2}', "key 'version'"),
        ('{"format": "kernel-atlas calls", "version": 1, "call": []}', "unknown key 'call'; did you mean 'calls'?"),
        ('{"format": "kernel-atlas calls", "version": 1, "version": 1}', "stands there twice"),
        ('{"format": "kernel-atlas calls", "version": 1, "cases": [{"kernel": "softmax"}]}', "missing key 'dtype'"),
        (
            '{"format": "kernel-atlas calls", "version": 1, "cases": [{"kernel": "softmax", "dtype": "bf16", '
            '"sizes": {"m": -4}}]}',
            "cases.0.sizes.m",
        ),
        ('{"format": "kernel-atlas calls", "version": 1, "seconds": NaN}', "seconds"),
        (json.dumps(merging.empty() | {"calls": [call(count=-1)]}), "calls.0.count"),
        (json.dumps(merging.empty() | {"calls": [call(runs=[{"kernel": "softmax"}])]}), "calls.0.runs.0"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_key_and_the_remedy(tmp_path, capsys, content, said):
    path = tmp_path / "calls.json"
    path.write_text(content)
    assert cli.main(["workload", str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error and said in error and "config/README.md" in error and error.count("\n") == 1


def test_a_stage_of_the_atlas_is_watched_by_nobody(tmp_path):
    path = tmp_path / "calls.json"
    words = [sys.executable, "-m", "atlas", "choose", "softmax", "--gpu", "h200", "--dtype", "bf16"]
    given = environment(path)
    done = subprocess.run(
        [*words, "--case", "m=4,n=8"], env=given, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert not [*tmp_path.iterdir()]
