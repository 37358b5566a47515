"""The declaration of softmax."""

from atlas.declaration import Capability, Declaration, Pass, Variant, compiled, eager

from . import backward, cases, clustered, forward, references, spaces, split


def _call(function, inputs):
    if inputs.get("log"):
        from . import log_softmax

        return log_softmax(inputs["x"])
    return function(**{"input" if name == "x" else name: value for name, value in inputs.items()})


DECLARATION = Declaration(
    name="softmax",
    family="rows",
    summary="y = exp(x - max) / sum over rows",
    call=_call,
    cases=cases.benchmark_cases,
    edge_cases=cases.EDGE_CASES,
    huge_cases=cases.HUGE_CASES,
    differentiable=("x",),
    forward=Pass(
        inputs=cases.forward_inputs,
        reference=references.reference,
        outputs=("y",),
        variants=(
            Variant(
                name="clustered",
                summary="few long rows: each in registers of a cluster's programs, which exchange maxima and sums",
                follows="split",
                launch=clustered.launch_clustered,
                space=clustered.CLUSTERED_SPACE,
                default=clustered.clustered_default,
                handles=clustered.handles_clustered,
                needs=frozenset({Capability.WGMMA}),  # so called is what only Hopper has: others were not timed
            ),
            Variant(
                name="one_pass",
                summary="rows in registers, one block of rows a program",
                launch=forward.launch_one_pass,
                space=spaces.ROWS_SPACE,
                default=spaces.forward_default,
                fits=spaces.fits_rows("one_pass"),
                handles=spaces.handles_rows("one_pass", streams=1),
            ),
            Variant(
                name="split",
                summary="few long rows: several programs a row, whose parts a second kernel puts together",
                follows="online",
                launch=split.launch_split,
                space=spaces.SPLIT_SPACE,
                default=spaces.split_default,
                fits=spaces.fits_split,
                handles=spaces.handles_split,
            ),
            Variant(
                name="online",
                summary="rows of any length streamed twice, with running maximum and sum",
                launch=forward.launch_online,
                space=spaces.ONLINE_SPACE,
                default=spaces.online_default,
                fits=spaces.fits_online,
                handles=spaces.handles_long,
            ),
        ),
        peers={
            "torch": eager(references.reference),
            "torch.compile": compiled(references.reference),
            "liger": eager(references.liger, requires="liger_kernel"),
        },
        bytes=cases.forward_bytes,
        flops=cases.forward_flops,
        reduction=lambda c: c["n"],
    ),
    backward=Pass(
        inputs=cases.backward_inputs,
        reference=references.backward_reference,
        outputs=("dx",),
        variants=(
            Variant(
                name="one_pass",
                summary="rows in registers, one block of rows a program",
                launch=backward.launch_one_pass,
                space=spaces.ROWS_SPACE,
                default=spaces.backward_rows_default,
                fits=spaces.fits_rows("backward"),
                handles=spaces.handles_backward_rows,
            ),
            Variant(
                name="held",
                summary="dy of a row in registers, y read again from L1",
                follows="one_pass",
                launch=backward.launch_held,
                space=spaces.HELD_SPACE,
                default=lambda problem, gpu: next(
                    c for c in spaces.HELD_CONFIGS if not spaces.fits_held(c, problem, gpu)
                ),
                fits=spaces.fits_held,
                handles=spaces.handles_held,
            ),
            Variant(
                name="stream",
                summary="rows of any length streamed twice: sum of y * dy, then dx",
                launch=backward.launch_stream,
                space=spaces.STREAM_SPACE,
                default=spaces.backward_stream_default,
                fits=spaces.fits_backward_stream,
                handles=spaces.handles_long,
            ),
        ),
        peers={
            "torch": eager(references.torch_backward),
            "torch.compile": compiled(references.user_backward),
            "liger": eager(references.liger_backward, requires="liger_kernel"),
        },
        bytes=cases.backward_bytes,
        flops=cases.backward_flops,
        reduction=lambda c: c["n"],
    ),
)
