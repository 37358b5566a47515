"""Models train alike with the kernels put in, and their training steps are faster than torch.compile's."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gc
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from atlas.errors import AtlasError, in_a_line
from atlas.results.pieces import Pieces
from atlas.stages import frame

import kernels.nn

from .. import scratch
from ..evidence import Evidence, at_least, at_most, none_of
from . import decoder, hugging_face

FASTER = 1.10
"""Least tokens a second of the decoder with the kernels, compiled or not, over those of torch.compile."""

NOISE, LEAST_APART = 2.0, 2**-7
"""Most that losses may differ from torch's: this many times what torch.compile's do, or so much of the first loss, the
spacing of bf16, in which a BERT has its loss."""

DECODERS = {
    "decoder 1024": decoder.Sizes(),
    "decoder 2048": decoder.Sizes(hidden=2048, mlp=5632, batch=4, length=2048),
}
NAMES = (*DECODERS, *hugging_face.MODELS)

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--models``, ``--steps``, ``--timed``, ``--leave`` and ``--scratch``."""
    scratch.add_folder(parser)
    parser.add_argument("--models", default="", metavar="A,B", help=f"default: {', '.join(NAMES)}")
    parser.add_argument("--steps", type=int, default=40, help="whose losses are compared")
    parser.add_argument("--timed", type=int, default=20, help="steps that are timed")
    parser.add_argument("--leave", default="", metavar="A,B", help="parts that stay torch's: Linear, …")


def run(job: frame.Job) -> Evidence:
    """Train and time every model; AtlasError on a GPU that only the interpreter stands for, or without transformers."""
    given = job.arguments
    if job.functional:
        raise AtlasError(f"--gpu {job.gpu_name}: these are claims of speed; name a GPU of this host")
    names = [name.strip() for name in given.models.split(",") if name.strip()] or list(NAMES)
    if unknown := set(names) - set(NAMES):
        raise AtlasError(f"--models: unknown {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if set(names) & set(hugging_face.MODELS) and importlib.util.find_spec("transformers") is None:
        raise AtlasError("--models: llama and bert need the package transformers: pip install transformers")
    leave = tuple(part.strip() for part in given.leave.split(",") if part.strip())
    with frame.leased(job), scratch.folder(job) as folder:
        from atlas.host import runtime

        device = runtime.device_of(job.gpu_name, job.block)
        asked = {"steps": given.steps, "timed": given.timed, "leave": list(leave)}
        kept = Pieces(folder / "models.jsonl", scratch.context_of_all(job) | asked)
        rows = [row_of(name, given.steps, given.timed, device, leave, kept) for name in names]
    return evidence(rows)


def row_of(
    name: str, steps: int, timed: int, device: torch.device, leave: Sequence[str], kept: Pieces
) -> dict[str, Any]:
    """What became of one model, each way once in ``kept``; ``reason`` says what kept it from ending."""
    row = dict.fromkeys(("apart", "noise", "first", "last", *WAYS))
    row |= {"model": name, "reason": ""}
    try:
        data, plain, of_kernels, loss_of = _made(name, max(steps, timed), device, leave)
        ways = _ways(name, plain, of_kernels, loss_of, data[:steps], data[:timed], kept)
        expected, compiled = ways["torch"][0], ways["torch.compile"][0]
        found = ways["kernels"][0]
        row |= {way: speed for way, (_, speed) in ways.items()}
        row |= {"apart": _apart(expected, found), "noise": _apart(expected, compiled)}
        row |= {"first": expected[0], "last": expected[-1]}
    except Exception as error:
        row["reason"] = in_a_line(error)
    gc.collect()
    torch.cuda.empty_cache()
    return row


WAYS = ("torch", "torch.compile", "kernels", "kernels, compiled")
"""In the order they run: what :func:`kernels.nn.replace` changes it changes for all models of an architecture."""


def _made(name: str, steps: int, device: torch.device, leave: Sequence[str]) -> tuple[Any, ...]:
    """(batches, torch's model, what makes the kernels' of a copy of it, the loss's function of a model)."""
    if name in DECODERS:
        sizes = DECODERS[name]
        parts = [part for part in decoder.PARTS if part not in leave]

        def of_kernels(state: Mapping[str, torch.Tensor]) -> torch.nn.Module:
            ours = decoder.twins(sizes, device, torch.bfloat16, parts=parts)[1]
            ours.load_state_dict(state)
            return ours

        plain = decoder.twins(sizes, device, torch.bfloat16, parts=())[0]
        return decoder.batches(sizes, steps, device), plain, of_kernels, lambda model: model
    make, sizes = hugging_face.MODELS[name]
    torch.manual_seed(0)
    plain = make(sizes).to(device, torch.bfloat16)

    def of_transformers(state: Mapping[str, torch.Tensor]) -> torch.nn.Module:
        ours = make(sizes).to(device, torch.bfloat16)
        ours.load_state_dict(state)
        kernels.nn.replace(ours, leave=[kind for kind in leave if kind in ("Linear", "attention", "loss")])
        return ours

    data = hugging_face.data(name, sizes, steps, device)
    return data, plain, of_transformers, lambda model: hugging_face.step_of(model, padded=name == "bert")


def _ways(
    name: str, plain: torch.nn.Module, of_kernels: Callable, loss_of: Callable[[Any], Step], compared: Sequence,
    timed: Sequence, kept: Pieces,
) -> dict[str, tuple[list[float], float]]:  # fmt: skip
    """By way its losses over the ``compared`` batches from the same parameters, and its tokens a second when warm."""
    state = copy.deepcopy(plain.state_dict())

    def trained(way: str) -> tuple[list[float], float]:
        model = plain if way.startswith("torch") else of_kernels(state)
        model.load_state_dict(state)
        compiled = way.endswith(("compile", "compiled"))
        torch._dynamo.reset()
        step = loss_of(torch.compile(model) if compiled else model)
        losses = decoder.train(step, model, compared, decoder.RATE)
        speed = decoder.tokens_per_second(step, model, timed, decoder.RATE)
        for parameter in model.parameters():
            parameter.grad = None
        return losses, speed

    found: dict[str, tuple[list[float], float]] = {}
    for way in WAYS:
        losses, speed = kept.once(f"{name}, {way}", lambda way=way: trained(way))
        found[way] = losses, speed
        print(f"{name}, {way}: {speed:.0f} tokens a second", flush=True)
    return found


def _apart(expected: Sequence[float], found: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(expected, found, strict=True))


def evidence(rows: Sequence[Mapping[str, Any]]) -> Evidence:
    """The claims, of the worst model each, and every row with its speeds over torch.compile's."""
    done = [row for row in rows if not row["reason"]]
    own = [_gain(row) for row in done if row["model"] in DECODERS]
    others = [row["kernels"] / row["torch"] for row in done if row["model"] not in DECODERS]
    beyond = [row["apart"] / max(NOISE * row["noise"], LEAST_APART * row["first"]) for row in done]
    claims = [
        none_of("models that failed", (row for row in rows if row["reason"])),
        at_most("differences of losses in what is allowed, at most", max(beyond, default=None), 1.0),
    ]
    if any(row["model"] in DECODERS for row in rows):
        text = "tokens a second of a decoder of the kernels over torch.compile's, at least"
        claims.append(at_least(text, min(own, default=None), FASTER))
    if any(row["model"] not in DECODERS for row in rows):
        text = "tokens a second of a model of transformers with the kernels put in over those before, at least"
        claims.append(at_least(text, min(others, default=None), 1.0))
    shown = [
        {key: row[key] for key in ("model", *WAYS)}
        | {"over compile": _gain(row) if not row["reason"] else None}
        | {key: row[key] for key in ("apart", "noise", "first", "last", "reason")}
        for row in rows
    ]
    sizes = {name: DECODERS.get(name) or hugging_face.MODELS[name][1] for name in (row["model"] for row in rows)}
    return Evidence(
        claims,
        shown,
        [
            "tokens a second of training in bf16 with AdamW; apart and noise: most that losses differ from torch's, "
            f"of the kernels and of torch.compile; allowed: {NOISE:g} times the noise or {LEAST_APART:g} of the first",
            *(f"{name}: {dataclasses.asdict(size)}" for name, size in sizes.items()),
        ],
    )


def _gain(row: Mapping[str, Any]) -> float:
    return max(row["kernels"], row["kernels, compiled"]) / row["torch.compile"]
