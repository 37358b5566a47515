"""``python -m proofs.unseen.ahead KERNEL``: call all providers of the drawn cases once, to fill the caches on disk."""

from __future__ import annotations

import argparse
import contextlib
import gc

import torch
from atlas import catalog
from atlas.benchmarking import beyond
from atlas.benchmarking.ahead import keeping_no_winner
from atlas.benchmarking.measurement import precision
from atlas.host import runtime
from atlas.sampling import drawing
from atlas.stages import frame


def main() -> None:
    """What goes wrong here is not said: whoever times it meets it again."""
    parser = argparse.ArgumentParser(prog="proofs.unseen.ahead", description=__doc__)
    frame.add_common_arguments(parser)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--cases", type=int, required=True)
    job = frame.job("prove", parser.parse_args())
    declaration, gpu = catalog.load(job.kernel), job.gpu()
    device = runtime.device_of(job.gpu_name, job.block)
    torch.set_num_threads(1)
    for case in drawing.drawn(declaration, gpu, job.arguments.seed, job.arguments.cases):
        for mode in beyond.modes(declaration):
            with contextlib.suppress(Exception), precision(case.dtype), keeping_no_winner():
                for entry in beyond.entries(declaration, gpu, case, mode, device):
                    with contextlib.suppress(Exception):
                        entry.prepare()()
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
