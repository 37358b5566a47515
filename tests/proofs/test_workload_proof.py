"""A model's way to configs of its own: what is typed, what comes of what it printed; the commands are played here."""

import contextlib
import json
import sys

import pandas as pd
import pytest
from atlas import catalog
from atlas.errors import AtlasError
from atlas.tables import store
from proof_doubles import job

from proofs.models import hugging_face, step, way_in, workload

CALLS = {
    "format": "kernel-atlas calls",
    "version": 1,
    "cases": [
        {"kernel": "softmax", "dtype": "bf16", "sizes": {"m": 4096, "n": 3000}, "count": 8},
        {"kernel": "matmul", "dtype": "bf16", "sizes": {"m": 8, "n": 16, "k": 32}, "count": 4},  # has no gradient
        {"kernel": "softmax", "dtype": "bf16", "sizes": {"m": 4096, "n": 64}, "direction": "forward"},
    ],
}
PROBLEMS = [
    ("softmax", "forward", {"m": 4096, "n": 3000}),
    ("softmax", "backward", {"m": 4096, "n": 3000}),
    ("matmul", "forward", {"m": 8, "n": 16, "k": 32}),
    ("softmax", "forward", {"m": 4096, "n": 64}),
]


class Typist:
    """Plays the commands: ``speeds`` by way, tokens a second; ``broken`` names the one that fails."""

    def __init__(self, root, untuned=None, broken="", drift=0.0):
        self.root, self.broken, self.drift = root, broken, drift
        self.tuned = [one for index, one in enumerate(PROBLEMS) if index != untuned]
        self.speeds = {"torch": 100.0, "before": 150.0, "after": 165.0}
        self.typed = []

    def run(self, module, words, environment, log, cwd=None):
        words = [str(word) for word in words]
        assert cwd == self.root and log.is_relative_to(self.root)
        what = "watch" if words[0] == "watch" else {"snakemake": "tune", "atlas": "export"}.get(module, "train")
        way = "torch" if "--torch" in words else "after" if environment else "before"
        self.typed.append(way if what == "train" else what)
        if self.broken == self.typed[-1]:
            raise RuntimeError("as told")
        getattr(self, f"_{what}")(words, environment, log)
        return 7.0

    def _watch(self, words, environment, log):
        assert words[words.index("--") + 1 :][:4] == [sys.executable, "-m", "proofs.models.step", "llama"]
        (self.root / words[words.index("--output") + 1]).write_text(json.dumps(CALLS))

    def _tune(self, words, environment, log):
        asked = dict(word.split("=", 1) for word in words[words.index("--config") + 1 :])
        assert (self.root / asked["workload"]).exists() and asked["gpus"] == "h200"
        for kernel, seconds in (("softmax", 30.2), ("matmul", 12.0)):
            path = self.root / "workloads/llama/results/benchmarks/h200" / kernel / "autotune.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"s\th:m:s\n{seconds}\t0:00:30\n")

    def _export(self, words, environment, log):
        entries = [
            {"kernel": kernel, "direction": direction, "dtype": "bf16", "sizes": sizes, "variant": "v", "config": {}}
            for kernel, direction, sizes in self.tuned
        ]
        (self.root / words[-1]).write_text(json.dumps({"match": "NVIDIA H200$", "entries": entries}))

    def _train(self, words, environment, log):
        way = self.typed[-1]
        assert environment == ({"KERNEL_ATLAS_TUNED": "llama-h200.json"} if way == "after" else {})
        speed, drift = self.speeds[way], self.drift if way == "after" else 0.0
        printed = {"tokens_per_second": speed, "step_ms": 1e3 / speed, "losses": [10.0, 9.0 + drift]}
        log.write_text(f"a warning\n{json.dumps(printed)}\n")


@pytest.fixture
def gone(tmp_path, monkeypatch):
    """Goes the way with a typist; the evidence."""
    monkeypatch.setattr(way_in.WayIn, "copy", lambda way: way.root.mkdir(parents=True))
    monkeypatch.setattr(way_in.WayIn, "predicted", lambda way: {"over default ms": 2.0, "over peers ms": 4.0})
    monkeypatch.setattr(workload.frame, "leased", lambda job: contextlib.nullcontext())
    monkeypatch.setattr(workload.scratch, "context_of_all", lambda job: {"gpu": job.gpu_name})
    monkeypatch.setattr(workload.importlib.util, "find_spec", lambda name: True)

    def go(typist=None, *words):
        typist = typist or Typist(tmp_path / "scratch" / "llama" / "checkout")
        monkeypatch.setattr(way_in.scratch, "run", typist.run)
        made = job(workload, tmp_path / "results", "--scratch", tmp_path / "scratch", "--rounds", "2", *words)
        return typist, workload.run(made)

    go.root = tmp_path / "scratch" / "llama" / "checkout"
    return go


def test_a_way_that_was_gone_to_its_end_holds(gone):
    typist, found = gone()
    assert found.holds, found.broken
    turns = ["torch", "before", "after", "after", "before", "torch"]
    assert typist.typed == ["watch", "tune", "export", *turns]
    rows = {row["step"]: row for row in found.rows}
    assert rows["before"]["after over it"] == pytest.approx(1.1) and rows["torch"]["runs"] == 2
    assert rows["torch"]["saved ms"] == pytest.approx(1e3 / 100 - 1e3 / 165)
    assert (rows["torch"]["report says"], rows["before"]["report says"]) == (4.0, 2.0)
    assert "4 problems of 2 kernels" in rows["watch"]["found"] and rows["tune"]["found"] == "autotune 42 s"
    assert len({tuple(row) for row in found.rows}) == 1, "rows have the same columns"
    assert any("KERNEL_ATLAS_TUNED=llama-h200.json python -m proofs.models.step llama" in note for note in found.notes)
    assert not any(sys.executable in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"broken": "tune"}, "a command failed"),
        ({"broken": "after"}, "a command failed"),
        ({"untuned": 2}, "not tuned"),
        ({"untuned": 3}, "not tuned"),
        ({"drift": 0.5}, "losses"),
    ],
    ids=["the workflow fails", "the program fails", "a kernel is left", "a case is left", "losses drift"],
)
def test_each_claim_breaks(gone, change, said):
    _, found = gone(Typist(gone.root, **change))
    assert [claim.text for claim in found.broken if said in claim.text]
    assert (
        any("as told" in note or "matmul forward" in note or "softmax forward" in note for note in found.notes)
        or "drift" in change
    )


def test_a_program_that_is_slower_after_breaks_the_claim(gone):
    typist = Typist(gone.root)
    typist.speeds["after"] = 0.98 * typist.speeds["before"]
    _, found = gone(typist)
    assert [claim.found for claim in found.broken] == [pytest.approx(0.98)]


def test_what_is_done_is_not_done_again(gone):
    typist, broken = gone(Typist(gone.root, broken="tune"))
    assert typist.typed == ["watch", "tune"] and not broken.holds
    assert "problems that were not tuned" in {claim.text for claim in broken.broken}, "nobody knows"
    (gone.root / "workloads" / "llama" / ".snakemake").mkdir(parents=True)  # of the run that was cut off
    typist, found = gone()
    assert typist.typed[0] == "tune" and found.holds
    assert any("snakemake --cores" in note and "--nolock" in note for note in found.notes)
    assert gone()[0].typed == []


def test_a_job_that_failed_is_quoted(gone):
    typist = Typist(gone.root)

    def fail(words, environment, log):
        path = gone.root / "workloads/llama/results/logs/h200/softmax/validate.log"
        path.parent.mkdir(parents=True)
        path.write_text("Traceback\nno such device\n")
        log.write_text("Error in rule validate:\n    log: results/logs/h200/softmax/validate.log (check)\n")
        raise RuntimeError("python -m snakemake ended with 1")

    typist._tune = fail
    _, found = gone(typist)
    assert any(note.endswith("ended with 1; results/logs/h200/softmax/validate.log: no such device")
               for note in found.notes)  # fmt: skip


def test_kernels_that_were_not_asked_for_need_no_config(gone):
    _, found = gone(Typist(gone.root, untuned=2), "--set", "kernels=softmax", "validate={seeds: 1}")
    assert found.holds, found.broken
    assert any("kernels=softmax 'validate={seeds: 1}'" in note for note in found.notes)


def test_losses_may_differ_twice_as_much_as_the_kernels_do_from_torch():
    def losses(*ends):
        return {name: [{"losses": [10.0, end]}] for name, end in zip(workload.WAYS, ends, strict=True)}

    assert workload.apart(losses(9.0, 9.1, 9.3)) == pytest.approx(1.0)
    assert workload.apart(losses(9.0, 9.0, 9.0 + 10 / 128)) == pytest.approx(1.0)  # the spacing of bf16
    assert workload.apart(losses(9.0, 9.0, 9.0) | {"after": []}) is None


def test_the_gain_is_that_of_neighbours_in_time():
    def runs(*speeds):
        return [{"tokens_per_second": speed} for speed in speeds]

    # The host slows down from round to round: the medians of each way would say the same of a gain of none.
    assert workload.gain({"before": runs(100, 80, 60), "after": runs(110, 88, 66)}) == pytest.approx(1.1)
    assert workload.gain({"before": runs(100), "after": []}) is None


def test_the_report_s_gains_are_those_of_one_step(tmp_path, monkeypatch):
    made = job(workload, tmp_path / "results")
    way = workload.way_in(made, "llama", tmp_path)
    way.root.mkdir(parents=True)
    way.calls.write_text(json.dumps(CALLS))
    sizes = json.dumps({"m": 4096, "n": 3000})
    head = {"kind": "measured", "gpu": "h200", "kernel": "softmax", "direction": "forward", "dtype": "bf16",
            "sizes": sizes, "status": "ok"}  # fmt: skip
    rows = [
        head | {"provider": provider, "provider_kind": kind, "median_us": us}
        for provider, kind, us in (("torch", "peer", 700.0), ("v", "default", 600.0), ("v", "variant", 500.0))
    ]
    monkeypatch.setattr(store, "read", lambda folder, columns: {"benchmark": pd.DataFrame(rows)})
    steps = way_in.WATCHED_STEPS + way_in.WATCHED_WARM
    assert way.predicted() == {"over default ms": 8 * 0.1 / steps, "over peers ms": 8 * 0.2 / steps}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--models", "gpt"), "--models: unknown gpt; there are llama, bert"),
        (("--rounds", "0"), "--rounds 0: give at least 1"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(gone, words, said):
    with pytest.raises(AtlasError, match=said):
        gone(None, *words)


def test_the_interpreter_is_refused(tmp_path):
    with pytest.raises(AtlasError, match="these are claims of speed"):
        workload.run(job(workload, tmp_path, gpu="cpu"))


def test_the_copy_has_what_the_commands_need(tmp_path):
    way = workload.way_in(job(workload, tmp_path / "results"), "llama", tmp_path)
    way.copy()
    there = {path.relative_to(way.root).as_posix() for path in way.root.rglob("*")}
    assert {"Snakefile", "proofs/models/step.py", "workflow/atlas/__main__.py", "config/gpus.yaml"} <= there
    assert not any(name.startswith(("results/measured", ".git")) for name in there)
    assert {path.split("/")[1] for path in there if path.startswith("kernels/")} >= set(catalog.names()[:1])


def test_the_program_trains_and_says_how_fast(monkeypatch, capsys):
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Embedding(8, 8)

        def forward(self, tokens, labels):
            logits = self.inner(tokens).float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            return type("Answer", (), {"loss": loss})

    sizes = []
    monkeypatch.setitem(
        hugging_face.MODELS, "llama", (lambda found: sizes.append(found) or Model(), hugging_face.LLAMA)
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    step.main(["llama", "--torch", "--steps", "3", "--warm", "2", "--vocabulary", "8", "--length", "4", "--batch", "2"])
    found = json.loads(capsys.readouterr().out)
    assert (sizes[0].vocabulary, sizes[0].hidden) == (8, hugging_face.LLAMA.hidden)
    assert len(found["losses"]) == 5 and found["losses"][-1] < found["losses"][0] and found["replaced"] == {}
    assert found["tokens_per_second"] == pytest.approx(1e3 * 2 * 4 / found["step_ms"])
