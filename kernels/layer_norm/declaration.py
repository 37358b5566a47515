"""The declaration of layer_norm."""

from atlas.declaration import Declaration, Pass, Peer, Variant, compiled, compiled_gradients, eager, gradients

from kernels.common import few_rows, odd_rows
from kernels.common.exchange import handles_team
from kernels.common.norms import has_residual, traffic

from . import backward, cases, forward, references, spaces, team


def _call(function, inputs):
    """The public function on a pass's inputs; of the two results with a residual, out."""
    result = function(
        inputs["x"], inputs["x"].shape[-1:], inputs["weight"], inputs["bias"], inputs["eps"], inputs.get("residual")
    )
    return result[0] if isinstance(result, tuple) else result


DECLARATION = Declaration(
    name="layer_norm",
    family="rows",
    summary="out = (x - mean) * rstd * weight + bias over rows, x + residual in the place of x if asked",
    call=_call,
    cases=cases.benchmark_cases,
    edge_cases=cases.EDGE_CASES,
    huge_cases=cases.HUGE_CASES,
    differentiable=("x", "weight", "bias", "residual"),
    forward=Pass(
        inputs=cases.forward_inputs,
        reference=references.reference,
        outputs=("out", "mean", "rstd", "sum"),
        variants=(
            Variant(
                name="odd",
                summary="long rows of no whole 16-byte vectors: those that begin at one place of a vector in a program",
                launch=forward.launch_odd,
                space=odd_rows.SPACE,
                default=odd_rows.odd_default(spaces.fits_odd_forward, warps_per_sm=16),
                fits=spaces.fits_odd_forward,
                handles=odd_rows.handles_odd(spaces.fits_odd_forward),
            ),
            Variant(
                name="one_pass",
                summary="rows in registers, one block of rows a program",
                launch=forward.launch_one_pass,
                space=spaces.ONE_PASS_SPACE,
                default=spaces.one_pass_default,
                fits=spaces.fits_one_pass_alone,
                handles=spaces.handles_one_pass,
            ),
            Variant(
                name="stream",
                summary="rows of any length streamed twice, statistics merged by lane",
                launch=forward.launch_stream,
                space=spaces.STREAM_SPACE,
                default=spaces.stream_default,
                fits=spaces.fits_stream,
            ),
        ),
        peers={
            "torch": eager(references.reference),
            "torch.compile": compiled(references.reference),
            "liger": eager(references.liger, requires="liger_kernel"),
        },
        bytes=traffic("x out", "residual sum", "weight bias", "mean rstd"),
        flops=lambda c: {
            "residual": c["m"] * c["n"] * has_residual(c),
            "mean": c["m"] * c["n"],
            "variance": 3 * c["m"] * c["n"],
            "normalize": c["m"] * c["n"],
            "weight, bias": 2 * c["m"] * c["n"],
        },
        reduction=lambda c: c["n"],
    ),
    backward=Pass(
        inputs=cases.backward_inputs,
        reference=references.backward_reference,
        outputs=("dx", "dweight", "dbias"),
        variants=(
            few_rows.variant(backward.launch_few),
            Variant(
                name="odd",
                summary="long rows of no whole 16-byte vectors: those that begin at one place of a vector in a program",
                launch=backward.launch_odd,
                space=odd_rows.SPACE,
                default=odd_rows.odd_default(spaces.fits_odd_backward, warps_per_sm=8),
                fits=spaces.fits_odd_backward,
                handles=odd_rows.handles_odd(spaces.fits_odd_backward, spaces.HELD_BACKWARD),
            ),
            Variant(
                name="rows",
                summary="rows and partial sums of dweight, dbias in registers, next rows prefetched",
                launch=backward.launch_rows,
                space=spaces.BACKWARD_ROWS_SPACE,
                default=spaces.rows_default(spaces.LIVE["rows"], streams=2, block_m=4, warps_per_sm=8),
                fits=spaces.fits_rows(spaces.LIVE["rows"], streams=2),
                handles=spaces.handles_rows,
            ),
            Variant(
                name="helped",
                summary="rows and the sum for dweight in registers; some programs read dy alone, for dbias",
                follows="rows",
                launch=backward.launch_helped,
                space=spaces.HELPED_SPACE,
                default=spaces.helped_default,
                fits=spaces.fits_helped,
                handles=spaces.handles_helped,
            ),
            Variant(
                name="team",
                summary="rows and partial sums in the registers of several programs, which tell each other their sums",
                follows="rows",
                launch=team.launch_team,
                space=spaces.TEAM_SPACE,
                default=spaces.team_default,
                fits=spaces.fits_team,
                handles=handles_team(spaces.TEAM_SPACE, spaces.fits_team),
            ),
            Variant(
                name="columns",
                summary="rows of any length read twice: their two sums, then tiles of columns",
                launch=backward.launch_columns,
                space=spaces.COLUMNS_SPACE,
                default=spaces.columns_default,
                fits=spaces.fits_columns,
            ),
        ),
        peers={
            "torch": references.pulled_back(gradients),
            "torch.compile": references.pulled_back(compiled_gradients),
            "liger": Peer(references.liger_backward, requires="liger_kernel"),
        },
        bytes=traffic("x dy dx", "dsum", "weight dweight dbias", "mean rstd"),
        flops=lambda c: {
            "xhat": 2 * c["m"] * c["n"],
            "g": c["m"] * c["n"],
            "row sums": 3 * c["m"] * c["n"],
            "dx": (4 + has_residual(c)) * c["m"] * c["n"],
            "dweight, dbias": 3 * c["m"] * c["n"],
        },
        reduction=lambda c: max(c["m"], c["n"]),
    ),
)
