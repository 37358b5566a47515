"""Declaration of the loss: its passes, with their variants, peers and costs."""

from atlas.declaration import Declaration, Pass, Variant, peers, rowwise

from kernels.common import strip_configs

from . import cases, references, spaces
from .backward import launch_backward
from .flat import launch_flat
from .held import launch_held
from .one_pass import launch_one_pass
from .split import launch_split
from .stream import launch_stream, launch_stream_gradient
from .strips import launch_strips, launch_strips_backward
from .whole import launch_whole

DECLARATION = Declaration(
    name="cross_entropy",
    family="losses",
    summary="loss = logsumexp(x) - x[target] over rows",
    call=lambda function, inputs: function(
        inputs["x"],
        inputs["target"],
        ignore_index=inputs["ignore_index"],
        reduction=inputs["reduction"],
        label_smoothing=inputs["label_smoothing"],
        z_loss=inputs["z_loss"],
    ),
    cases=cases.SWEEP,
    edge_cases=cases.EDGE_CASES,
    huge_cases=cases.HUGE_CASES,
    differentiable=("x",),
    forward=Pass(
        inputs=cases.forward_inputs,
        reference=references.reference,
        outputs=("loss", "saved", "scale"),  # saved for the backward pass: lse, or the gradient itself
        variants=(
            Variant(
                name="whole",
                summary="few rows of few classes: one program holds them all, with the gradient where it is asked for",
                launch=launch_whole,
                space=spaces.WHOLE_SPACE,
                default=spaces.whole_default,
                fits=spaces.fits_whole,
                handles=spaces.handles_whole,
                follows="one_pass",
            ),
            Variant(
                name="split",
                summary="few rows: several programs a row, whose parts a second kernel puts together",
                launch=launch_split,
                space=spaces.SPLIT_SPACE,
                default=spaces.split_default,
                fits=spaces.fits_split,
                handles=spaces.handles_split,
                follows="stream",
            ),
            Variant(
                name="held",
                summary="many rows of few classes: a thread holds all of a row, and a program leaves one sum of losses",
                launch=launch_held,
                space=spaces.HELD_SPACE,
                default=spaces.held_default,
                fits=spaces.fits_held,
                handles=spaces.handles_held,
                follows="one_pass",
            ),
            Variant(
                name="strips",
                summary="many rows of up to a thousand classes: a few lanes of a warp hold a row",
                launch=launch_strips,
                space=strip_configs.SPACE,
                default=strip_configs.forward_default,
                fits=spaces.fits_strips,
                handles=spaces.handles_strips,
                follows="one_pass",
            ),
            Variant(
                name="one_pass",
                summary="rows in registers, one block of rows a program; the gradient where it is asked for",
                launch=launch_one_pass,
                space=rowwise.SPACE,
                default=spaces.one_pass_default,
                fits=spaces.fits_rows,
                handles=spaces.handles_rows,
            ),
            Variant(
                name="stream",
                summary="rows of any length read once, with a running maximum and sum for each lane",
                launch=launch_stream,
                space=spaces.BLOCKS_SPACE,
                default=spaces.stream_default,
                fits=spaces.fits_blocks,
                handles=lambda problem, gpu: spaces.only(False, problem),
            ),
            Variant(
                name="stream_gradient",
                summary="loss and gradient in one launch: rows of any length streamed twice, then from cache",
                launch=launch_stream_gradient,
                space=spaces.BLOCKS_SPACE,
                default=spaces.gradient_default,
                fits=spaces.fits_blocks,
                handles=lambda problem, gpu: spaces.only(True, problem),
            ),
        ),
        peers={
            "torch": peers.Peer(references.user(references.of_torch)),
            "torch.compile": peers.Peer(references.user(references.of_torch, compiles=True), compiles=True),
            "liger": peers.Peer(references.user(references.liger, overwrites=True), requires="liger_kernel"),
        },
        bytes=cases.forward_bytes,
        flops=cases.forward_flops,
        reduction=lambda c: max(c["m"], c["n"]),
    ),
    backward=Pass(
        inputs=cases.backward_inputs,
        reference=references.backward_reference,
        outputs=("dx",),
        variants=(
            Variant(
                name="strips",
                summary="many rows of up to 512 classes: a few lanes of a warp hold a row",
                launch=launch_strips_backward,
                space=strip_configs.SPACE,
                default=strip_configs.backward_default,
                fits=spaces.fits_strips,
                handles=spaces.handles_strips_backward,
                follows="blocks",
            ),
            Variant(
                name="flat",
                summary="rows of few classes as one stretch of memory, many a program",
                launch=launch_flat,
                space=spaces.FLAT_SPACE,
                default=spaces.flat_default,
                fits=spaces.fits_flat,
                handles=spaces.handles_flat,
                follows="blocks",
            ),
            Variant(
                name="blocks",
                summary="one block of a row a program, from the logits and lse",
                launch=launch_backward,
                space=spaces.BLOCKS_SPACE,
                default=spaces.backward_default,
                fits=spaces.fits_blocks,
                handles=lambda problem, gpu: spaces.only(False, problem),
            ),
        ),
        # Liger's has nothing to do: its forward pass, timed with gradient=True, leaves the gradient behind.
        peers={
            "torch": peers.gradients(references.of_torch_with_lse, ("x",), cotangent="dloss"),
            "torch.compile": peers.compiled_gradients(references.of_torch_with_lse, ("x",), cotangent="dloss"),
        },
        bytes=cases.backward_bytes,
        flops=lambda c: {"exp(x - lse)": 2 * c["m"] * c["n"], "weight, target": 2 * c["m"] * c["n"]},
        reduction=lambda c: c["n"],
    ),
)
