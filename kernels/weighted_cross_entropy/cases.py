"""The cases of the loss, their inputs, and what they cost."""

import torch
from atlas.declaration import cases

from .row import saved_rows

_FLAGS = {"ignored": False, "reduction": "mean", "smoothing": 0.0, "z_loss": 0.0, "gap": 0}
"""Of a case that does not say otherwise: whether each third target is ignored, the function's arguments, and how many
elements more the fastest axis has than is read."""

_IGNORED = -100
"""torch's default, in all cases."""


def flags_of(problem):
    """The flags of a case, with those that it does not say."""
    return _FLAGS | dict(problem.sizes)


def rows_of(problem):
    return problem["b"] * problem["s"]


def forward_inputs(problem, device, generator):
    b, n, s, flags = problem["b"], problem["n"], problem["s"], flags_of(problem)
    draw = cases.normal(problem, device, generator)

    def logits():
        if problem["last"]:
            return draw(b, s, n + flags["gap"])[..., :n].transpose(1, 2)
        return draw(b, n, s + flags["gap"])[..., :s]

    x = logits()
    if problem["probabilities"]:
        target = torch.softmax(logits().float(), 1).to(x.dtype)
    else:
        target = torch.randint(0, n, (b, s), device=device, generator=generator)
        if flags["ignored"]:
            target.view(-1)[::3] = _IGNORED
    weight = None
    if problem["weight"]:
        weight = 0.25 + torch.rand(n, dtype=torch.float32, device=device, generator=generator).to(x.dtype)
    return {
        "x": x, "target": target, "weight": weight, "ignore_index": _IGNORED, "reduction": flags["reduction"],
        "label_smoothing": flags["smoothing"], "z_loss": flags["z_loss"],
    }  # fmt: skip


def backward_inputs(problem, device, generator):
    inputs = forward_inputs(problem, device, generator)
    flags, probabilities = flags_of(problem), problem["probabilities"]
    x, target, weight, smoothing = inputs["x"].float(), inputs["target"], inputs["weight"], flags["smoothing"]
    weights = torch.ones(x.shape[1], device=device) if weight is None else weight.float()
    counted = torch.ones_like(target[:, 0], dtype=torch.bool) if probabilities else target != _IGNORED
    if probabilities:
        of_target = (target.float() * weights[:, None]).sum(1)
    else:
        of_target = weights[torch.where(counted, target, 0)]
    total = (1 - smoothing) * of_target + smoothing / x.shape[1] * weights.sum()
    kept = (x.amax(1), torch.logsumexp(x, 1) - x.amax(1), total)[: saved_rows(target, smoothing)]
    saved = torch.stack([torch.where(counted, one, 0.0).view(-1) for one in kept])
    scale = torch.ones(1, device=device)
    if flags["reduction"] == "mean":
        scale = scale / (counted.sum() if probabilities or weight is None else (of_target * counted).sum())
    draw = cases.normal(problem, device, generator)
    dloss = draw(*((rows_of(problem),) if flags["reduction"] == "none" else ()))
    return inputs | {"saved": saved, "scale": scale, "dloss": dloss}


_COLUMNS = {"last": False, "weight": False, "probabilities": False}

SWEEP = cases.sweep(
    "b n s last weight probabilities",
    {
        "bf16": (
            (8, 19, 512 * 1024, False, True, False),  # street scenes: classes of pixels, weighted
            (4096, 32000, 1, True, False, True),  # distillation
        ),
        "fp16": ((64, 1000, 196, False, False, False),),  # patches
    },
    tensors=4,  # logits, probabilities, their gradients
    elements=lambda c: c["b"] * c["n"] * c["s"],
)

EDGE_CASES = cases.edge_cases(
    "b n s last weight probabilities",
    (
        (1, 1, 1, True, True, False, {}, "one class: the loss is 0 whatever the logit"),
        (2, 19, 37, False, True, False, {"ignored": True}, "odd columns; weights; a third is ignored"),
        (3, 5, 64, False, False, False, {"smoothing": 0.1, "z_loss": 1e-2}, "whole vectors of columns; all terms"),
        (1, 130, 7, False, False, True, {"reduction": "none"}, "few columns of probabilities, a loss each"),
        (2, 12, 40, False, True, True, {"smoothing": 0.1, "reduction": "sum", "gap": 8}, "columns with gaps, weighted"),
        (2, 3, 600, False, True, False, {"ignored": True, "smoothing": 0.1}, "columns of few classes, held at once"),
        (37, 129, 1, True, True, False, {"smoothing": 0.1, "ignored": True}, "odd rows, weighted and smoothed"),
        (9, 301, 1, True, False, False, {"smoothing": 0.1}, "odd rows, smoothed alike for all classes"),
        (5, 2049, 1, True, False, True, {"z_loss": 1e-2}, "rows of probabilities, one element longer than a block"),
        (2, 64, 3, True, True, True, {"reduction": "none"}, "classes last, places between: whole vectors"),
        (3, 1000, 2, True, True, False, {"gap": 24, "reduction": "none", "ignored": True}, "rows with gaps, weighted"),
        (9, 4, 1, True, False, True, {"smoothing": 0.1}, "rows shorter than a vector; several a program"),
        (3, 20_204, 1, True, True, False, {}, "rows of several blocks, each second off 16 bytes; weighted"),
    ),
)

# Of 2^27 rows torch, which counts them in fp32, finds a quarter.
HUGE_CASES = (cases.case("bf16", "offsets beyond 2^31 along classes", b=1, n=145, s=15_000_000, **_COLUMNS),)


def _matrix(c):
    return c["b"] * c["n"] * c["s"] * cases.element_size(c.dtype)


def _targets(c):
    return _matrix(c) if c["probabilities"] else rows_of(c) * cases.element_size("int64")


def _saved(c):
    return 3 if c["probabilities"] or flags_of(c)["smoothing"] else 2


def forward_bytes(c):
    return {"x": _matrix(c), "target": _targets(c), "saved": _saved(c) * rows_of(c) * cases.element_size("fp32")}


def forward_flops(c):
    elements = c["b"] * c["n"] * c["s"]
    return {"max": elements, "exp(x - max)": 2 * elements, "sum": elements}


def backward_bytes(c):
    return forward_bytes(c) | {"dx": _matrix(c)}
