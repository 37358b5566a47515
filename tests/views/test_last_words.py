"""What a run ends with on the terminal: readable at any width, and short where there is nothing to say."""

import io

import pytest
from atlas.results.summary import in_short, note, says_little
from atlas.stages.verdict import table
from rich.console import Console


def row(kernel="linear_cross_entropy", gpu="h200", kind="recorded", status="ok", stale=False, **more):
    figures = {
        "direction": "forward",
        "dtype": "bf16",
        "headline_case": {"m": 8192, "k": 4096, "n": 128256, "gradient": True},
        "figure": 682.0,
        "unit": "TFLOP/s",
        "roof_fraction": 0.78,
        "peer": "torch.compile",
        "speedup": 1.05,
        "verdict": "undecided",
        "speedup_geomean": 1.07,
        "speedup_worst": 1.0,
    }
    if kind in ("functional", "compiled"):
        figures["figure"] = None
    found = {"kernel": kernel, "gpu": gpu, "kind": kind, "status": status, "stale": stale, "reason": "", "stages": {}}
    found |= figures | more
    return found | {"note": note(found)}


def printed(rows, width):
    out = io.StringIO()
    Console(file=out, width=width).print(table(rows, width))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 105, 116, 132, 140, 200])
def test_no_word_of_the_table_is_broken_or_cut_off_at_any_width(width):
    unsupported = row("attention_fp8", "t4", "compiled", "unsupported", stale=True, reason="no fp8 tensor cores")
    lines = printed([row(), unsupported], width)
    words = {word for line in lines for word in line.split()}
    assert {"linear_cross_entropy", "unsupported", "682", "TFLOP/s", "1.05x", "torch.compile", "1.07x,"} <= words
    assert {"kernel", "GPU", "status", "figure", "peer"} <= words
    assert ("n=128256" in words) == (width >= 132), "the case is there where there is room for it"
    assert max(map(len, lines)) <= width and len(lines) < 10


def test_kernels_that_only_compile_or_work_in_the_interpreter_are_a_line_of_each_gpu():
    rows = [row(f"kernel_{n}", "cpu", "functional") for n in range(23)]
    rows += [row(name, "t4", "compiled") for name in ("softmax", "matmul")]
    assert all(map(says_little, rows))
    assert in_short(rows) == [
        "cpu: 23 kernels ok in the interpreter, which says nothing of speed",
        "t4: softmax, matmul compiled only; nothing ran there",
    ]


def test_of_a_gpu_that_ran_other_kernels_it_is_not_said_that_nothing_ran():
    rows = [row("softmax", "h100"), row("matmul", "h100", "compiled")]
    assert in_short(rows) == ["h100: matmul compiled only, not run there as others were"]


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (("build", "validate"), "validated, not benchmarked"),
        (("build", "validate", "autotune"), "tuned, not benchmarked"),
        (("benchmark",), "no forward case was timed"),
    ],
)
def test_a_row_without_a_figure_says_how_far_the_kernel_came(stages, words):
    (line,) = printed([row("softmax", figure=None, stages=dict.fromkeys(stages, "ok"))], 200)[1:]
    assert words in line


@pytest.mark.parametrize(
    "telling",
    [
        row(),
        row(figure=None),  # tuned, not benchmarked
        row(gpu="cpu", kind="functional", status="wrong"),
        row(gpu="t4", kind="compiled", status="unsupported"),
        row(gpu="t4", kind="compiled", stale=True),
    ],
    ids=["recorded", "no figure", "wrong", "unsupported", "stale"],
)
def test_what_is_amiss_or_on_a_gpu_has_a_row_of_its_own(telling):
    assert not says_little(telling)
