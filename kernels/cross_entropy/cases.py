"""The cases of the loss, their inputs, and what they cost."""

import torch
from atlas.declaration import cases

_FLAGS = {"pitch": 0, "ignored": False, "reduction": "mean", "smoothing": 0.0, "z_loss": 0.0, "gradient": False}
"""Of a case that does not say otherwise: how far rows are apart (0: as long as they are), whether each third target is
ignored, the function's arguments, and whether the forward pass computes the gradient as well."""

_IGNORED = -100
"""torch's default, in all cases."""


def flags_of(problem):
    """The flags of a case, with those that it does not say."""
    return _FLAGS | dict(problem.sizes)


def forward_inputs(problem, device, generator):
    m, n = problem["m"], problem["n"]
    flags = flags_of(problem)
    x = cases.normal(problem, device, generator)(m, flags["pitch"] or n)[:, :n]
    target = torch.randint(0, n, (m,), device=device, generator=generator)
    if flags["ignored"]:
        target[::3] = _IGNORED
    return {
        "x": x, "target": target, "ignore_index": _IGNORED, "reduction": flags["reduction"],
        "label_smoothing": flags["smoothing"], "z_loss": flags["z_loss"], "gradient": flags["gradient"],
    }  # fmt: skip


def backward_inputs(problem, device, generator):
    inputs = forward_inputs(problem, device, generator)
    del inputs["gradient"]
    x, reduction = inputs["x"], inputs["reduction"]
    counted = inputs["target"] != _IGNORED
    scale = torch.ones(1, device=device)
    dloss = cases.normal(problem, device, generator)(*((problem["m"],) if reduction == "none" else ()))
    return inputs | {
        "lse": torch.where(counted, torch.logsumexp(x.float(), dim=-1), 0.0),
        "scale": scale / counted.sum() if reduction == "mean" else scale,
        "dloss": dloss,
    }


SWEEP = cases.sweep(
    "m n",
    {
        "bf16": (
            (128, 1024),  # the launch is the cost
            (8192, 1000),  # the classes of ImageNet
            (16, 128256),  # the next token of a batch
            (4096, 32000),
            (16384, 32000),
            (4096, 50257),  # a vocabulary of odd length: no row but each eighth starts on 16 bytes
            (4096, 50257, {"pitch": 50304}),  # the same as part of a padded one
            (4096, 128256),
            (1024, 262144),
            (8192, 1000, {"gradient": True}),
            (4096, 32000, {"gradient": True}),
            (4096, 50257, {"gradient": True}),
            (4096, 128256, {"gradient": True}),
            (1024, 262144, {"gradient": True}),
        ),
        "fp16": ((4096, 32000), (4096, 128256), (4096, 32000, {"gradient": True})),
        "fp32": ((4096, 32000), (4096, 128256), (4096, 32000, {"gradient": True})),
    },
    tensors=3,  # logits, gradient and a peer's copy
)

EDGE_CASES = cases.edge_cases(
    "m n",
    (
        (1, 1, {}, "one class: the loss is 0 whatever the logit"),
        (7, 1, {"reduction": "none"}, "rows of one class, a loss each"),
        (1, 1000, {"reduction": "sum", "gradient": True}, "one row, not a power of two"),
        (37, 129, {"ignored": True}, "odd rows, of which a third is ignored; no row but the first starts on 16 bytes"),
        (33, 64, {"smoothing": 0.1}, "one row more than whole tiles of rows; smoothed labels"),
        (3, 4097, {"reduction": "none", "z_loss": 1e-2}, "rows one element longer than a block: a tail of one; z-loss"),
        (9, 2049, {"gradient": True, "ignored": True}, "odd rows, each beginning elsewhere in a lane of 16 bytes"),
        (6, 40, {"pitch": 43, "smoothing": 0.1, "gradient": True}, "short rows apart, none a whole number of vectors"),
        (4, 5, {"ignored": True, "reduction": "none", "gradient": True}, "rows shorter than a vector, a loss each"),
        (35, 20, {"ignored": True, "smoothing": 0.1}, "few rows of few classes, none a whole number of vectors"),
        (65, 24, {"gradient": True, "ignored": True, "z_loss": 1e-2}, "the same in whole vectors, with the gradient"),
        (2, 20_000, {"smoothing": 0.1, "z_loss": 1e-2}, "several blocks and a tail; all terms of the loss"),
        (3, 9001, {"smoothing": 0.1, "ignored": True}, "parts of odd rows: edges belong to the first and the last"),
        (5, 9000, {"pitch": 9024, "z_loss": 1e-2, "gradient": True, "ignored": True}, "padded rows of several blocks"),
    ),
)

HUGE_CASES = (
    cases.case("bf16", "row offsets beyond 2^31: one row more than 2^31 elements hold", m=2**14 + 1, n=2**17),
    cases.case("bf16", "the same, with the gradient", m=2**14 + 1, n=2**17, gradient=True),
)


def forward_bytes(c):
    rows = {"target": c["m"] * cases.element_size("int64")}
    if flags_of(c)["gradient"]:
        return cases.traffic("x", "dx")(c) | rows
    return cases.traffic("x")(c) | rows | {"lse": c["m"] * cases.element_size("fp32")}


def forward_flops(c):
    elements = c["m"] * c["n"]
    terms = {"max": elements, "exp(x - max)": 2 * elements, "sum": elements}
    return terms | ({"dx": 3 * elements} if flags_of(c)["gradient"] else {})


def backward_bytes(c):
    """Logits and gradient, and what is known of each row."""
    rows = {"target": c["m"] * cases.element_size("int64"), "lse": c["m"] * cases.element_size("fp32")}
    return cases.traffic("x", "dx")(c) | rows
