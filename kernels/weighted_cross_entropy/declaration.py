"""Declaration of the loss: its passes, with their variants, peers and costs."""

from atlas.declaration import Declaration, Pass, Variant, peers

from kernels.common import strip_configs

from . import cases, references, spaces
from .backward import launch_backward
from .flat import launch_flat
from .forward import launch_stream
from .held import launch_held
from .lanes import launch_lanes, launch_lanes_backward
from .strips import launch_strips, launch_strips_backward

DECLARATION = Declaration(
    name="weighted_cross_entropy",
    family="losses",
    summary="cross-entropy with class weights, of probabilities, or along any axis",
    cases=cases.SWEEP,
    edge_cases=cases.EDGE_CASES,
    huge_cases=cases.HUGE_CASES,
    differentiable=("x",),
    forward=Pass(
        inputs=cases.forward_inputs,
        reference=references.reference,
        outputs=("loss", "saved", "scale"),
        variants=(
            Variant(
                name="strips",
                summary="many rows of up to a thousand classes: a few lanes of a warp hold a row",
                launch=launch_strips,
                space=strip_configs.SPACE,
                default=strip_configs.forward_default,
                fits=spaces.fits_strips,
                handles=spaces.handles_strips,
                follows="stream",
            ),
            Variant(
                name="lanes",
                summary="rows that may begin anywhere, in whole lanes of 16 bytes and their edges",
                launch=launch_lanes,
                space=spaces.LANES_SPACE,
                default=spaces.lanes_default(3, spaces.forward_in_lanes),
                fits=spaces.fits_lanes(3),
                handles=spaces.handles_lanes,
                follows="stream",
            ),
            Variant(
                name="stream",
                summary="rows or columns of classes read once, with a running maximum and sums for each lane",
                launch=launch_stream,
                space=spaces.FORWARD_SPACE,
                default=spaces.default(3, spaces.forward_of_rows, spaces.forward_of_columns),
                fits=spaces.fits(3),
            ),
        ),
        peers={"torch": peers.eager(references.torch_loss), "torch.compile": peers.compiled(references.torch_loss)},
        bytes=cases.forward_bytes,
        flops=cases.forward_flops,
        reduction=lambda c: max(cases.rows_of(c), c["n"]),
    ),
    backward=Pass(
        inputs=cases.backward_inputs,
        reference=references.backward_reference,
        outputs=("dx",),
        variants=(
            Variant(
                name="strips",
                summary="many rows of up to a thousand classes: a few lanes of a warp hold a row",
                launch=launch_strips_backward,
                space=strip_configs.SPACE,
                default=strip_configs.backward_default,
                fits=spaces.fits_strips,
                handles=spaces.handles_strips_backward,
                follows="blocks",
            ),
            Variant(
                name="flat",
                summary="probabilities of few classes as one stretch of memory, many a program",
                launch=launch_flat,
                space=spaces.FLAT_SPACE,
                default=spaces.flat_default,
                fits=spaces.fits_flat,
                handles=spaces.handles_flat,
                follows="blocks",
            ),
            Variant(
                name="lanes",
                summary="the same of rows that may begin anywhere, in whole lanes of 16 bytes and their edges",
                launch=launch_lanes_backward,
                space=spaces.LANES_SPACE,
                default=spaces.lanes_default(4, spaces.backward_in_lanes),
                fits=spaces.fits_lanes(4),
                handles=spaces.handles_lanes,
                follows="blocks",
            ),
            Variant(
                name="held",
                summary="columns of few classes, which a thread has all of: nothing is read of what is known of rows",
                launch=launch_held,
                space=spaces.HELD_SPACE,
                default=spaces.held_default,
                fits=spaces.fits_held,
                handles=spaces.handles_held,
                follows="blocks",
            ),
            Variant(
                name="blocks",
                summary="blocks of rows and classes, from the logits and lse",
                launch=launch_backward,
                space=spaces.SPACE,
                default=spaces.default(2, spaces.backward_of_rows, spaces.backward_of_columns),
                fits=spaces.fits(2),
            ),
        ),
        peers={
            "torch": peers.gradients(references.of_torch_with_saved, ("x",), cotangent="dloss"),
            "torch.compile": peers.compiled_gradients(references.of_torch_with_saved, ("x",), cotangent="dloss"),
        },
        bytes=cases.backward_bytes,
        flops=lambda c: {"exp(x - lse)": 2 * c["b"] * c["n"] * c["s"], "c": 2 * c["b"] * c["n"] * c["s"]},
        reduction=lambda c: c["n"],
    ),
)
