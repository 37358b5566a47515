"""A ``python -m atlas`` that sleeps in the place of measuring.

The test of scheduling lays it over ``workflow/atlas/__main__.py`` of a checkout, beside a ``seconds.json`` that says
how long each stage of each kernel takes.  A stage leaves the files that its rule promises, and a line in
``stages.log``: stage, GPU, kernel, the devices that SLURM gave it, its node, begin and end.
"""

import json
import os
import sys
import time
from pathlib import Path


def _run(words: list[str]) -> None:
    stage, gpu = words[0], words[words.index("--gpu") + 1]
    kernel = words[1] if words[1] != "--gpu" else ""
    begin = time.time()
    time.sleep(json.loads(Path("seconds.json").read_text())[stage].get(kernel, 0))
    folder = Path("results/measured", gpu, kernel)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stage}.json").write_text(json.dumps({"stage": stage, "gpu": gpu, "kernel": kernel}))
    if stage == "cuda":
        (folder / "cuda.cubin").touch()
    given, node = os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.environ["SLURMD_NODENAME"]
    with Path("stages.log").open("a") as log:
        log.write(json.dumps([stage, gpu, kernel, given, node, begin, time.time()]) + "\n")


if __name__ == "__main__":
    _run(sys.argv[1:])
