"""The declaration of rms_norm."""

from atlas.declaration import Declaration, Pass, Variant, compiled, eager
from atlas.declaration.rows import fits_stream, stream_default

from kernels.common import few_rows, odd_rows
from kernels.common.exchange import handles_team
from kernels.common.norms import traffic

from . import backward, cases, forward, long_rows, references, spaces

DECLARATION = Declaration(
    name="rms_norm",
    family="rows",
    summary="out = x * rstd * weight over rows, x with a residual added first if asked",
    call=lambda function, inputs: function(
        inputs["x"], inputs["x"].shape[-1:], inputs["weight"], inputs["eps"], inputs["residual"]
    ),
    cases=cases.benchmark_cases,
    edge_cases=cases.EDGE_CASES,
    huge_cases=cases.HUGE_CASES,
    differentiable=("x", "residual", "weight"),
    forward=Pass(
        inputs=cases.forward_inputs,
        reference=references.reference,
        outputs=("out", "sum or rstd", "rstd"),  # there is a sum only where there is a residual
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
                space=spaces.ROWS_SPACE,
                default=spaces.one_pass_default,
                fits=spaces.fits_one_pass,
                # Longer rows fill more than half of an SM's registers: memory is idle while its one program sums.
                handles=spaces.handles_what_fits(spaces.ROWS_SPACE, spaces.fits_one_pass, longest=16384),
            ),
            Variant(
                name="late",
                summary="as one_pass, for long rows: weight loaded after the sums, x past L1 or a second time from it",
                follows="one_pass",
                launch=forward.launch_late,
                space=spaces.LATE_SPACE,
                default=spaces.least(spaces.LATE_SPACE, spaces.fits_late, spaces.away_from(elements=32)),
                fits=spaces.fits_late,
                handles=spaces.handles_late,
            ),
            Variant(
                name="stream",
                summary="rows of any length streamed twice, the second time from cache",
                launch=forward.launch_stream,
                space=spaces.STREAM_SPACE,
                default=stream_default(streams=1, blocks=spaces.STREAM_SPACE["BLOCK_N"]),
                fits=fits_stream,
            ),
        ),
        peers={
            "torch": eager(references.as_users_write),
            "torch.compile": compiled(references.as_users_write),
            "liger": eager(references.liger, requires="liger_kernel"),
        },
        bytes=traffic("x out", "residual sum", "weight", "rstd"),
        flops=lambda c: {
            "sum": c["m"] * c["n"] * c["residual"],
            "squares": 2 * c["m"] * c["n"],
            "normalize, weight": 2 * c["m"] * c["n"],
        },
        reduction=lambda c: c["n"],
    ),
    backward=Pass(
        inputs=cases.backward_inputs,
        reference=references.backward_reference,
        outputs=("dx", "dweight"),
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
                summary="rows and partial sums of dweight in registers, next rows prefetched",
                launch=backward.launch_rows,
                space=spaces.BACKWARD_SPACE,
                default=spaces.least(spaces.BACKWARD_SPACE, spaces.fits_backward_rows, spaces.prefetching(elements=24)),
                fits=spaces.fits_backward_rows,
                handles=spaces.handles_what_fits(spaces.BACKWARD_SPACE, spaces.fits_backward_rows),
            ),
            Variant(
                name="team",
                summary="rows and partial sums in the registers of several programs, which tell each other their sums",
                follows="rows",
                launch=long_rows.launch_team,
                space=spaces.TEAM_SPACE,
                default=spaces.least(
                    spaces.TEAM_SPACE, spaces.fits_team, lambda config, *_: (config["TEAM"], config["num_warps"])
                ),
                fits=spaces.fits_team,
                handles=handles_team(spaces.TEAM_SPACE, spaces.fits_team),
            ),
            Variant(
                name="reread",
                summary="partial sums of dweight in registers, rows read again from cache as the next ones are loaded",
                launch=long_rows.launch_reread,
                space=spaces.REREAD_SPACE,
                default=spaces.least(
                    spaces.REREAD_SPACE,
                    spaces.fits_reread,
                    lambda config, *_: (abs(config["num_warps"] - 16), config["BLOCK_N"]),
                ),
                fits=spaces.fits_reread,
                handles=spaces.handles_what_fits(spaces.REREAD_SPACE, spaces.fits_reread),
            ),
            Variant(
                name="columns",
                summary="rows of any length read twice: their sums, then tiles of columns",
                launch=backward.launch_columns,
                space=spaces.COLUMNS_SPACE,
                default=lambda problem, gpu: {"BLOCK_M": 2, "BLOCK_N": 1024, "num_warps": 4, "PROGRAMS_PER_SM": 4},
                fits=spaces.fits_columns,
            ),
        ),
        peers={
            "torch": references.pulled_back(references.as_users_write),
            "torch.compile": references.pulled_back(references.as_users_write, compiles=True),
            "liger": references.pulled_back(references.liger, requires="liger_kernel"),
        },
        bytes=traffic("x dy dx", "dsum", "weight dweight", "rstd"),
        flops=lambda c: {
            "xhat, g": 2 * c["m"] * c["n"],
            "row sums": 2 * c["m"] * c["n"],
            "dx": (3 + c["residual"]) * c["m"] * c["n"],
            "dweight": 2 * c["m"] * c["n"],
        },
        reduction=lambda c: max(c["m"], c["n"]),
    ),
)
