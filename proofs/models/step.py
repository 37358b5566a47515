"""A program such as a user has: a model of transformers, trained; what it prints is how fast.

``python -m proofs.models.step llama --steps 20`` (with ``PYTHONPATH=workflow:.``) puts the kernels in by
:func:`kernels.nn.replace`, trains in bf16 with AdamW, and prints one line of JSON: tokens a second once warm, and the
losses.  ``--torch`` leaves the model as it is.  Without a GPU it runs in Triton's interpreter, at sizes such as
``--vocabulary 128 --hidden 64 --heads 4 --mlp 64 --layers 1 --batch 1 --length 16``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time

import torch

from . import hugging_face
from .decoder import RATE, Sizes, take_steps

FIELDS = tuple(field.name for field in dataclasses.fields(Sizes))
"""What ``--hidden`` and the like set."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The program's arguments."""
    parser.add_argument("model", choices=sorted(hugging_face.MODELS))
    parser.add_argument("--steps", type=int, default=20, help="that are timed (default: 20)")
    parser.add_argument("--warm", type=int, default=3, help="steps before these (default: 3)")
    parser.add_argument("--torch", action="store_true", help="leave the model as it is, without the kernels")
    for name in FIELDS:
        parser.add_argument(f"--{name}", type=int, help="of the model, instead of its own")


def main(words: list[str] | None = None) -> None:
    """Train, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_arguments(parser)
    given = parser.parse_args(words)
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before the kernels are imported
    print(json.dumps(trained(given)), flush=True)


def trained(given: argparse.Namespace) -> dict[str, object]:
    """What became of the training: ``tokens_per_second`` once warm, the ``losses``, and what was ``replaced``."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    make, sizes = hugging_face.MODELS[given.model]
    sizes = dataclasses.replace(
        sizes, **{name: asked for name in FIELDS if (asked := getattr(given, name)) is not None}
    )
    torch.manual_seed(0)
    with device:  # which draws the weights far faster than a processor
        model = make(sizes).to(torch.bfloat16)
    replaced = {} if given.torch else _replaced(model)
    step = hugging_face.step_of(model, padded=given.model == "bert")
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    batches = hugging_face.data(given.model, sizes, given.warm + given.steps, device)
    losses = take_steps(step, optimiser, batches[: given.warm])
    _finish(device)
    began = time.perf_counter()
    losses += take_steps(step, optimiser, batches[given.warm :])
    _finish(device)
    seconds = time.perf_counter() - began
    return {
        "tokens_per_second": given.steps * sizes.batch * sizes.length / seconds,
        "step_ms": 1e3 * seconds / given.steps,
        "losses": [float(loss) for loss in losses],
        "replaced": replaced,
    }


def _replaced(model: torch.nn.Module) -> dict[str, int]:
    import kernels.nn

    return dict(kernels.nn.replace(model))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
