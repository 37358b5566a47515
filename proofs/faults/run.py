"""One autotune run of :mod:`.kernel`, in a process of its own: what the stage does, of a kernel outside kernels/.

``python -m proofs.faults.run`` ends as the stage's command would: 0, or 2 with one sentence for the user's
mistakes; the document's fields are in ``--output``.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from atlas.errors import AtlasError
from atlas.host import gpus
from atlas.reading.config import load_gpus
from atlas.results import documents

if TYPE_CHECKING:
    from atlas.declaration import Declaration

CERTIFY_SEEDS = 2
"""Fewer than the stage's: what is certified matters less here than that it is."""


def load(faults: tuple[str, ...], cases: int, interpret: bool) -> Declaration:
    """The kernel's declaration; ``interpret`` binds the whole process, as in :func:`atlas.catalog.load`."""
    if interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        from atlas.host import interpreter

        interpreter.patch()
    from . import kernel

    return kernel.declare(faults, cases)


def main(words: list[str] | None = None) -> int:
    """Tune, write the fields; the exit status."""
    parser = argparse.ArgumentParser(prog="proofs.faults.run", description=__doc__)
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--gpus-file", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where the journal lies")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--faults", default="", metavar="A,B")
    parser.add_argument("--cases", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--trial-timeout-seconds", type=float, default=3.0)
    parser.add_argument("--file-limit", type=int, help="most bytes of any file: a disk that is full, to this process")
    arguments = parser.parse_args(words)
    if arguments.file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (arguments.file_limit, resource.RLIM_INFINITY))
    try:
        _tune(arguments)
    except AtlasError as error:
        print(f"atlas autotune: {error}", file=sys.stderr)
        return 2
    return 0


def _tune(arguments: argparse.Namespace) -> None:
    from atlas.host import devices, environment, runtime
    from atlas.timing import Clock
    from atlas.tuning import candidates, tuner
    from atlas.tuning.journal import Journal
    from atlas.tuning.strategies.halving import HALVING
    from atlas.tuning.strategies.strategy import FUNCTIONAL
    from atlas.tuning.worker import Setting

    block = load_gpus(arguments.gpus_file)[arguments.gpu]
    gpu, functional = gpus.gpu(arguments.gpu, block), gpus.functional(block)
    faults = tuple(filter(None, arguments.faults.split(",")))
    setting = Setting(
        load=functools.partial(load, faults, arguments.cases, functional),
        device=functools.partial(runtime.device_of, arguments.gpu, block),
        clock=Clock,
    )
    problems = candidates.problems(setting.load(), gpu, candidates.Ruling())
    options = tuner.Options(
        strategy=FUNCTIONAL if functional else HALVING,
        budget_seconds=None,
        trial_timeout_seconds=arguments.trial_timeout_seconds,
        jobs=0 if functional else max(1, arguments.jobs - 1),
        certify_seeds=0 if functional else CERTIFY_SEEDS,
    )
    digest = hashlib.sha256(Path(__file__).with_name("kernel.py").read_bytes()).hexdigest()
    here = (device.uuid for device in devices.visible() if gpus.matches(block, device.name))
    context = tuner.context(digest, gpu, {} if functional else environment.device(next(here, "")))
    with Journal(arguments.folder / "journal.jsonl", context, arguments.trial_timeout_seconds) as journal:
        fields = tuner.tune(problems, gpu, setting, journal, options, f"autotune faulty_kernel on {arguments.gpu}")
    documents.write_text(arguments.output, json.dumps(fields) + "\n")


if __name__ == "__main__":
    # Under its own name: what is sent to the worker must not be found in a module called __main__.
    from proofs.faults import run

    sys.exit(run.main())
