"""Jobs, documents and commands that stand in for real ones."""

import argparse
import itertools
from pathlib import Path

from atlas import catalog
from atlas.reading.config import GPUS_FILE, load_gpus
from atlas.results import documents
from atlas.results.pieces import Pieces
from atlas.stages import frame
from atlas.tuning.summary import EMPTY

from proofs.scratch import context
from proofs.tuning import speed


def job(proof, results, *words, gpu="h200"):
    """The job of ``prove <proof> --gpu h200 <words>``."""
    parser = argparse.ArgumentParser()
    frame.add_common_arguments(parser, kernel=False)
    proof.add_arguments(parser)
    arguments = parser.parse_args(["--gpu", gpu, "--results", str(results), *map(str, words)])
    return frame.Job("prove", None, gpu, load_gpus(GPUS_FILE)[gpu], Path(results), arguments)


def document(stage, kernel, fields, gpu="h200", kind="measured", status="ok"):
    """A stage's document."""
    return {
        "stage": stage, "schema_version": documents.VERSIONS[stage], "kernel": kernel, "gpu": gpu, "kind": kind,
        "status": status, "reason": "" if status == "ok" else "as told", "kernel_digest": catalog.digest(kernel),
        "software": {}, "device": {}, "seconds": 1.0, **fields,
    }  # fmt: skip


def validated(results, kernel, gpu="h200", kind="measured"):
    """Puts a validate document there."""
    fields = {"protocol": "validation/1", "seeds": [0], "checks": []}
    path = Path(results) / "measured" / gpu / kernel / "validate.json"
    documents.write(path, document("validate", kernel, fields, gpu, kind))


SIZES = [{"n": 1}, {"n": 2}]


def row(sizes, config, median, **more):
    """A row of an autotune document."""
    problem = {"direction": "forward", "dtype": "fp32", "sizes": sizes}
    return {**problem, "variant": "blocks", "config": {"BLOCK": config}, "median_us": median, **more}


class Machine:
    """Runs a race's commands: two problems of 8 configs, of which config 1 is the fastest.

    The tuner picks config 1 for the first and 2 for the second problem, triton.autotune always picks 3, and the default
    is 8.  ``broken`` names a module whose next run fails.
    """

    def __init__(self, seconds=None):
        self.seconds = seconds or {"all": 5.0, "2": 40.0, "triton": 50.0}
        self.commands = []
        self.broken = ""

    def run(self, module, words, environment, log, cwd=None):
        words = [str(word) for word in words]
        self.commands.append((module, words, dict(environment)))
        if module == self.broken:
            raise RuntimeError("cut off")
        options = dict(itertools.pairwise(words))
        if module == "atlas":
            return self._autotune(words, options, environment)
        kernel = words[0]
        pieces = Pieces(Path(options["--pieces"]), self.context(kernel))
        if module == "proofs.tuning.triton_side":
            for sizes in SIZES:
                piece = row(sizes, 3, 0) | {"seconds": self.seconds["triton"] / 2, "configs": 8, "reason": ""}
                pick = {"variant": piece.pop("variant"), "config": piece.pop("config")}
                pieces.once(f"forward n={sizes['n']} fp32", lambda piece=piece, pick=pick: piece | {"pick": pick})
        else:
            self.asked = Path(options["--asked"]).read_text()
            for sizes in SIZES:
                timed = {f"blocks BLOCK={block}": self._timed(block) for block in (1, 2, 3, 4, 5, 6, 8)}
                found = {"default": "blocks BLOCK=8", "timed": timed, "reason": ""}
                pieces.once(f"forward n={sizes['n']} fp32", lambda found=found: found)
        return 1.0

    def context(self, kernel):
        return context(self.job, kernel)

    @staticmethod
    def _timed(block):
        median = 100 + 2 * (block - 1)
        return {"median_us": median, "low_us": median - 0.5, "high_us": median + 0.5, "samples": 100}

    def _autotune(self, words, options, environment):
        kernel, results = words[1], Path(options["--results"])
        assert (results / "measured/h200" / kernel / "validate.json").exists()
        self.cold = not Path(environment["TRITON_CACHE_DIR"]).exists()
        best = [row(sizes, 1 + index, 100.0) for index, sizes in enumerate(SIZES)]
        trials = [row(s, block, 100.0 + block, status="ok", reason="") for s in SIZES for block in range(8, 0, -1)]
        fields = EMPTY | {
            "protocol": "p",
            "strategy": "s",
            "best": best,
            "trials": trials,
            "seconds_by_phase": {"time": 7},
        }
        folder = results / "measured/h200" / kernel
        documents.write(folder / "autotune.json", document("autotune", kernel, fields))
        (folder / "journal.jsonl").write_text("{}\n")
        Path(environment["TRITON_CACHE_DIR"]).mkdir(parents=True, exist_ok=True)
        return self.seconds["2"] if options["--jobs"] == "2" else self.seconds["all"]


def race(monkeypatch, tmp_path, machine, *words):
    """Runs the proof ``tuning-speed`` on that machine, with 16 cores."""
    made = job(speed, tmp_path / "results", "--cores", "16", *words)
    machine.job = made
    monkeypatch.setattr(speed.scratch, "run", machine.run)
    for kernel in ("matmul", "layer_norm"):
        validated(tmp_path / "results", kernel)
    return speed.run(made)
