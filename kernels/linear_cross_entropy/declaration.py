"""Declaration of the loss: cases, inputs, peers, costs."""

import torch
from atlas.declaration import Declaration, Pass, Variant, cases, peers, rows

from .chunks import launch_chunks
from .references import liger, of_torch, of_torch_in_chunks, reference, searched, user

_FLAGS = {
    "bias": False, "ignored": False, "reduction": "mean", "smoothing": 0.0, "z_loss": 0.0, "gradient": False,
    "chunk": 0,
}  # fmt: skip
"""Of a case that does not say otherwise: whether there is a bias, whether each third target is ignored, the function's
arguments, whether the gradients are computed as well, and the rows of a chunk (0: by the rule)."""


def _flags_of(problem):
    return _FLAGS | dict(problem.sizes)


def _inputs(problem, device, generator):
    m, k, n = problem["m"], problem["k"], problem["n"]
    flags, draw = _flags_of(problem), cases.normal(problem, device, generator)
    hidden, weight = draw(m, k), draw(n, k) * max(k, 1) ** -0.5  # logits of size 1, as of a layer that starts to learn
    target = torch.randint(0, n, (m,), device=device, generator=generator)
    if flags["ignored"]:
        target[::3] = -100
    return {
        "hidden": hidden, "weight": weight, "bias": draw(n) if flags["bias"] else None, "target": target,
        "dloss": None, "ignore_index": -100, "reduction": flags["reduction"], "label_smoothing": flags["smoothing"],
        "z_loss": flags["z_loss"], "gradient": flags["gradient"], "weight_gradient": flags["gradient"],
        "chunk_rows": flags["chunk"],
    }  # fmt: skip


def _bytes(c):
    size, flags = cases.element_size(c.dtype), _flags_of(c)
    inputs = {"hidden": c["m"] * c["k"] * size, "weight": c["n"] * c["k"] * size, "target": 8 * c["m"]}
    outputs = {"dhidden": inputs["hidden"], "dweight": inputs["weight"]} if flags["gradient"] else {}
    return inputs | outputs


def _flops(c):
    products = ("hidden @ weight.T", "dx @ weight", "dx.T @ hidden")
    count = 3 if _flags_of(c)["gradient"] else 1
    return dict.fromkeys(products[:count], 2 * c["m"] * c["k"] * c["n"])


_MAX_AUTOTUNED = tuple(cases.case("bf16", m=m, k=k, n=32000, gradient=True) for m, k in ((1024, 1024), (4096, 4096)))
_BLOCKS = (1024, 4096, 8192, 16384)

DECLARATION = Declaration(
    name="linear_cross_entropy",
    family="losses",
    summary="cross-entropy of hidden @ weight.T, in chunks of rows",
    call=lambda function, inputs: function(
        inputs["hidden"],
        inputs["weight"],
        inputs["target"],
        linear_bias=inputs["bias"],
        reduction=inputs["reduction"],
        ignore_index=inputs["ignore_index"],
        label_smoothing=inputs["label_smoothing"],
        z_loss=inputs["z_loss"],
        chunk_rows=inputs["chunk_rows"],
    ),
    cases=cases.sweep(
        "m k n",
        {
            "bf16": (
                (1024, 1024, 32000, {"gradient": True}),
                (4096, 2048, 50257, {"gradient": True}),  # a vocabulary of odd length
                (4096, 4096, 32000),
                (4096, 4096, 32000, {"gradient": True}),
                (8192, 4096, 128256),
                (8192, 4096, 128256, {"gradient": True}),
                (16384, 2048, 128256, {"gradient": True}),  # eight chunks
            ),
            "fp16": ((4096, 4096, 32000, {"gradient": True}),),
            "fp32": ((1024, 1024, 32000, {"gradient": True}),),
        },
        tensors=3,  # a peer's logits, their gradient and a copy
    ),
    edge_cases=cases.edge_cases(
        "m k n",
        (
            (m, k, n, {"gradient": True} | flags, reason)
            for m, k, n, flags, reason in (
                (1, 1, 1, {}, "one class: loss and gradients are 0"),
                (
                    5,
                    8,
                    7,
                    {"bias": True, "ignored": True, "reduction": "none"},
                    "rows shorter than a vector, each a loss",
                ),
                (37, 24, 129, {"smoothing": 0.1}, "a vocabulary one past a power of two; smoothed labels"),
                (9, 16, 2049, {"z_loss": 1e-2, "reduction": "sum"}, "rows of more than a block; z-loss, sum"),
                (6, 16, 1000, {"gradient": False, "ignored": True, "bias": True}, "no gradient"),
                (11, 16, 40, {"chunk": 4, "ignored": True, "bias": True}, "three chunks, the last one shorter"),
            )
        ),
    ),
    differentiable=("hidden", "weight", "bias"),
    forward=Pass(
        inputs=_inputs,
        reference=reference,
        outputs=("loss", "dhidden", "dweight", "dbias"),
        variants=(
            Variant(
                name="chunks",
                summary="cuBLAS products of chunks of rows, loss and gradient of their logits in place",
                launch=launch_chunks,
                space={"BLOCK_N": _BLOCKS, "num_warps": (4, 8, 16, 32)},
                default=rows.stream_default(1, _BLOCKS),
                fits=lambda config, problem, gpu: rows.fits_stream(config, problem, gpu, _BLOCKS[0]),
            ),
        ),
        peers={
            "torch": peers.Peer(user(of_torch)),
            "torch.compile": peers.Peer(user(of_torch, compiles=True), compiles=True),
            "torch.compile max-autotune": peers.searching(searched, lambda c: c in _MAX_AUTOTUNED),
            "torch.chunked": peers.Peer(user(of_torch_in_chunks), requires="torch.nn.modules.linear_cross_entropy"),
            "liger": peers.Peer(user(liger), requires="liger_kernel"),
        },
        bytes=_bytes,
        flops=_flops,
        reduction=lambda c: max(c["m"], c["k"], c["n"]),
        rounds_products=True,  # the logits
    ),
)
