"""The declaration of reduction."""

from atlas.declaration import Declaration, Pass, Variant, compiled, compiled_gradients, cuda, eager, gradients

from . import (
    backward,
    blocks,
    cases,
    columns,
    filled,
    flat,
    folded,
    folded_spaces,
    gradient_spaces,
    rows,
    spaces,
    strided,
    strided_spaces,
    whole,
    whole_spaces,
)
from .strided_spaces import neighbours


def _stream_variant(name: str, summary: str, launcher, handles) -> Variant:
    return Variant(
        name, launcher, spaces.STREAM_SPACE, spaces.stream_default, summary, spaces.fits_stream, neighbours(handles)
    )


def _columns_variant(name: str, summary: str, launcher, handles, space=spaces.COLUMNS_SPACE) -> Variant:
    return Variant(name, launcher, space, spaces.columns_default, summary, spaces.fits_columns, neighbours(handles))


DECLARATION = Declaration(
    name="reduction",
    family="reductions",
    summary="sum, mean, amax, max over any axes",
    call=lambda function, inputs: function(inputs["x"], inputs["op"]),
    cases=cases.benchmark_cases,
    edge_cases=cases.EDGE_CASES,
    huge_cases=cases.HUGE_CASES,
    differentiable=("x",),
    forward=Pass(
        inputs=cases.forward_inputs,
        reference=cases.reference,
        outputs=("out", "beside"),
        variants=(
            Variant(
                name="whole",
                summary="all that is reduced at once in registers, of axes apart as one line; nothing is shared",
                follows="strided",
                launch=whole.launch_whole,
                space=whole_spaces.SPACE,
                default=whole_spaces.default,
                fits=whole_spaces.fits,
                handles=whole_spaces.handles,
            ),
            Variant(
                name="folded",
                summary="several rows of no whole vectors as one line; a program adds up its places at the end",
                follows="blocks",
                launch=folded.launch_folded,
                space=folded_spaces.SPACE,
                default=folded_spaces.default,
                fits=folded_spaces.fits,
                handles=neighbours(folded_spaces.handles),
            ),
            Variant(
                name="blocks",
                summary="neighbouring matrices, rows and columns in one block; of wide rows a thread owns its columns",
                follows="columns",
                launch=blocks.launch_blocks,
                space=spaces.BLOCKS_SPACE,
                default=spaces.blocks_default,
                fits=spaces.fits_blocks,
                handles=neighbours(spaces.handles_blocks),
            ),
            Variant(
                name="rows",
                summary="whole rows in registers, one tile of rows a program",
                launch=rows.launch_rows,
                space=spaces.ROWS_SPACE,
                default=spaces.rows_default,
                fits=spaces.fits_rows,
                handles=neighbours(spaces.handles_rows),
            ),
            _stream_variant("stream", "rows shared by programs, one launch", rows.launch_stream, spaces.handles_stream),
            _stream_variant(
                "stream_twice",
                "as stream, combined in a second launch",
                rows.launch_stream_twice,
                spaces.handles_stream_twice,
            ),
            _columns_variant(
                "columns",
                "columns shared by programs, one launch",
                columns.launch_columns,
                spaces.handles_columns,
            ),
            _columns_variant(
                "columns_twice",
                "as columns, combined in a second launch",
                columns.launch_columns_twice,
                spaces.handles_columns_twice,
                {**spaces.COLUMNS_SPACE, "BLOCK_C": (8, 16, 64, 128)},
            ),
            Variant(
                name="strided",
                summary="axes apart, or gaps: five axes with strides, of which two are reduced, in blocks of four",
                follows="blocks",
                launch=strided.launch_strided,
                space=strided_spaces.SPACE,
                default=strided_spaces.default,
                fits=strided_spaces.fits,
                handles=strided_spaces.handles,
            ),
        ),
        peers={"torch": eager(cases.reference), "torch.compile": compiled(cases.reference), "cuda": cuda("rows")},
        bytes=cases.forward_bytes,
        flops=lambda c: {c["op"]: c["outer"] * c["n"] * c["inner"]},
        reduction=lambda c: c["n"],
    ),
    backward=Pass(
        inputs=cases.backward_inputs,
        reference=cases.backward_reference,
        outputs=("dx",),
        variants=(
            Variant(
                name="filled",
                summary="max of rows, or of no whole vectors of columns: zeros as one line, then one element of each",
                follows="tiles",
                launch=filled.launch_filled,
                space=gradient_spaces.FILLED_SPACE,
                default=gradient_spaces.filled_default,
                handles=neighbours(gradient_spaces.handles_filled),
            ),
            Variant(
                name="flat",
                summary="dx as one line of whole vectors, where rows are none",
                follows="tiles",
                launch=flat.launch_flat,
                space=gradient_spaces.FLAT_SPACE,
                default=gradient_spaces.flat_default,
                handles=neighbours(gradient_spaces.handles_flat),
            ),
            Variant(
                name="tiles",
                summary="tiles of x and dx, with the results of their rows or columns",
                launch=backward.launch_backward,
                space=gradient_spaces.TILES_SPACE,
                default=gradient_spaces.tiles_default,
                fits=gradient_spaces.fits_tiles,
                handles=neighbours(gradient_spaces.handles_gradient),
            ),
            Variant(
                name="strided",
                summary="as tiles, for what the variant `strided` reduces",
                launch=strided.launch_strided_backward,
                space=strided_spaces.TILES_SPACE,
                default=strided_spaces.tiles_default,
                fits=strided_spaces.fits_tiles,
                handles=strided_spaces.handles_tiles,
            ),
        ),
        peers={
            "torch": gradients(cases.torch_forward, wrt=("x",), cotangent="dout"),
            "torch.compile": compiled_gradients(cases.torch_forward, wrt=("x",), cotangent="dout"),
        },
        bytes=cases.backward_bytes,
        flops=lambda c: {"x = out": 0 if c["op"] in ("sum", "mean") else c["outer"] * c["n"] * c["inner"]},
    ),
)
