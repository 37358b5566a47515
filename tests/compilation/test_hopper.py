"""Kernels in Gluon, for Hopper alone: what the assembler may spoil without a word and without a wrong result."""

import itertools
import re

import inside_hopper
import pytest

CONSUMERS = {
    256: {"CONSUMERS": 2, "STAGES": 2},
    128: {"CONSUMERS": 2, "STAGES": 2},
    96: {"CONSUMERS": 2, "STAGES": 2},
    64: {"CONSUMERS": 2, "STAGES": 4},
}


def in_turns(firsts, seconds):
    """All pairs; those are slow in which a first one has another than its turn of the second ones."""
    for i, first in enumerate(firsts):
        for j, second in enumerate(seconds):
            yield pytest.param(first, second, marks=() if j == i % len(seconds) else pytest.mark.slow)


@pytest.mark.parametrize(
    ("head_dim", "value_dim"),
    [*((d, d) for d in (128, 96, 64)), (192, 128), pytest.param(256, 256, marks=pytest.mark.slow)],
)
def test_attentions_softmax_lies_between_the_beginning_of_p_v_and_the_wait_for_it(compiling, head_dim, value_dim):
    """The assembler moved the wait up over it, and the overlap was gone; see the kernel's notes in shared memory.

    64 rows of 128 scores are 64 exponentials for each of a group's 128 threads, and 2 for the change of the maximum;
    wide heads have half as many scores.
    """
    scores = 64 if head_dim <= 128 else 32
    config = CONSUMERS[value_dim] | {"OVERLAP": True, "PINGPONG": True, "Q_REGISTERS": False}
    code = compiling(inside_hopper.hopper_attention, head_dim, value_dim, False, config)
    waits = [i for i, name in enumerate(code) if name.startswith("WARPGROUP.DEPBAR")]
    between = [sum(name == "MUFU.EX2" for name in code[a:b]) for a, b in itertools.pairwise(waits)]
    loops = [after for first, after in itertools.pairwise(between) if first == scores]
    assert len(loops) >= 2 and min(loops) >= scores + 2, between  # a tile's first block, then the loop's
    products = sum(name.startswith("HGMMA") for name in code)
    assert products > 3 * len(waits), "products are waited for one by one"
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"


@pytest.mark.parametrize(
    ("head_dim", "value_dim", "queries", "keys", "packed"),
    [
        *(
            (d, d, *few, packed)
            for d, *few in ((128, 128, 128), (128, 40, 50), (64, 300, 100))
            for packed in (False, True)
        ),
        (96, 64, 128, 128, False),
        (64, 128, 128, 100, False),
    ],
)
def test_attention_to_few_keys_spills_nothing_and_waits_twice(compiling, head_dim, value_dim, queries, keys, packed):
    code = compiling(inside_hopper.hopper_few_keys, head_dim, value_dim, queries, keys, packed)
    assert sum(name.startswith("WARPGROUP.DEPBAR") for name in code) == 2
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"


@pytest.mark.parametrize(
    ("head_dim", "keys", "causal", "spilled"),
    [(32, 77, True, 0), (40, 33, True, 0), (64, 77, False, 16), (128, 60, False, 4)],
)
def test_gradients_of_few_keys_keep_sums_of_all_keys_in_registers(compiling, head_dim, keys, causal, spilled):
    """Where those are 128 a thread, some words more than there is room for are; loops are long and wait for memory."""
    code = compiling(inside_hopper.hopper_few_keys_backward, head_dim, keys, causal)
    assert sum(name.startswith("STL") for name in code) <= spilled
    if head_dim <= 64:  # else the assembler waits for each product (C7514)
        halves, groups = -(-keys // 64), 2
        assert sum(name.startswith("WARPGROUP.DEPBAR") for name in code) == 3 * halves * groups


@pytest.mark.parametrize(
    ("head_dim", "causal", "spilled"), [(72, False, 0), pytest.param(128, True, 32, marks=pytest.mark.slow)]
)
def test_gradients_of_few_keys_by_tiles_wait_for_several_products(compiling, head_dim, causal, spilled):
    code = compiling(inside_hopper.hopper_whole_backward, head_dim, causal)
    products, waits = (sum(name.startswith(x) for name in code) for x in ("HGMMA", "WARPGROUP.DEPBAR"))
    assert products > 7 * waits > 0, "products are waited for one by one"
    assert sum(name.startswith("STL") for name in code) <= spilled


@pytest.mark.parametrize(
    ("head_dim", "causal"),
    [
        (128, True),
        pytest.param(128, False, marks=pytest.mark.slow),
        (64, True),
        pytest.param(256, True, marks=pytest.mark.slow),
    ],
)
def test_attention_of_packed_sequences_spills_nothing_and_waits_for_several_products(compiling, head_dim, causal):
    """Under a causal mask there is a block more with a mask than where rows and keys begin together."""
    config = CONSUMERS[head_dim] | {"OVERLAP": True, "PINGPONG": False, "Q_REGISTERS": head_dim == 64}
    code = compiling(inside_hopper.hopper_packed_attention, head_dim, causal, config)
    products, waits = (sum(name.startswith(x) for name in code) for x in ("HGMMA", "WARPGROUP.DEPBAR"))
    assert products > 5 * waits > 0, "products are waited for one by one"
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"


@pytest.mark.parametrize(
    ("head_dim", "heads_k", "length", "causal"),
    [(256, 4, 512, False), pytest.param(256, 1, 500, True, marks=pytest.mark.slow), (192, 1, 500, True)],
)
def test_gradients_of_wide_heads_wait_for_several_products_and_spill_nothing(
    compiling, head_dim, heads_k, length, causal
):
    """Heads that share keys are dealt out here, and their sums added up by a third kernel."""
    codes = compiling(inside_hopper.hopper_attention_gradients, head_dim, heads_k, length, causal)
    codes = [code for code in codes if any(name.startswith("HGMMA") for name in code)]
    assert len(codes) == 2
    for code in codes:
        products, waits = (sum(name.startswith(x) for name in code) for x in ("HGMMA", "WARPGROUP.DEPBAR"))
        assert products > 8 * waits > 0, "products are waited for one by one"
        assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"


def test_fp8_attentions_weights_go_round_the_loop_as_words(compiling):
    """As bytes each was taken out of a register before the back edge and put into another behind it."""
    code = compiling(inside_hopper.hopper_attention_fp8, 128, False, {"CONSUMERS": 2, "STAGES": 3, "PINGPONG": False})
    waits = [i for i, name in enumerate(code) if name.startswith("WARPGROUP.DEPBAR")]
    pieces = [[name.split(".")[0] for name in code[a:b]] for a, b in itertools.pairwise(waits)]
    loops = [(piece, after) for before, piece, after in zip(pieces, pieces[1:], pieces[2:], strict=False)
             if before.count("MUFU") >= 64 and piece.count("MUFU") == 66]  # fmt: skip
    assert len(loops) == 2, "the softmax of a group of warps lies between the beginning of P V and the wait for it"
    for softmax, update in loops:
        assert softmax.count("F2FP") == 32
        assert {"PRMT", "SHF"}.isdisjoint(softmax) and update.count("PRMT") + update.count("SHF") < 8
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"


@pytest.mark.parametrize(
    ("layout", "tile"),
    [
        ("NT", (2, 64, 256, 4, 2)),
        ("TN", (3, 64, 128, 5, 1)),
        ("NN", (2, 64, 128, 6, 2)),
        ("TT", (2, 128, 128, 4, 1)),
    ],
)
def test_groups_of_products_overlap_their_wgmmas_and_spill_nothing(compiling, layout, tile):
    """Four products of 16 of k a wait, twice that where a group has 128 rows: ptxas may wait for each (C7510)."""
    names = ("GROUPS", "ROWS", "BLOCK_N", "STAGES", "BUFFERS")
    config = dict(zip(names, tile, strict=True)) | {"BLOCK_K": 64, "GROUP_M": 8}
    code = compiling(inside_hopper.hopper_product, layout, config)
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"
    waits = sum(name.startswith("WARPGROUP.DEPBAR") for name in code)
    assert sum(name.startswith("HGMMA") for name in code) == 2 * tile[1] // 64 * waits  # a wait in the loop, one after


@pytest.mark.parametrize(
    ("layout", "sizes", "values"),
    [
        ("NT", (16, 256, 16384), (16, 256, 8)),
        ("TN", (16, 256, 16384), (16, 128, 7)),
        ("NN", (64, 2048, 6144), (64, 128, 3)),
        ("TT", (256, 24, 8192), (32, 128, 5)),
        ("NT", (16, 4096, 1024), (16, 256, 1)),
        ("TN", (128, 512, 4096), (128, 64, 7)),
    ],
)
def test_few_rows_in_clusters_fill_blocks_again_behind_all_warps_and_send_16_bytes_each(
    compiling, layout, sizes, values
):
    config = dict(zip(("BLOCK_Q", "BLOCK_K", "CLUSTER"), values, strict=True))
    light_and_in_order(*compiling(inside_hopper.product_in_clusters, layout, *sizes, config), *values)


@pytest.mark.parametrize(
    ("layout", "sizes", "shared", "values"),
    [
        ("TN", (8, 96, 256, 96), "", (32, 128, 1)),
        ("NN", (2, 1024, 256, 96), "a", (64, 128, 1)),
        ("NT", (6, 128, 128, 4096), "", (64, 128, 4)),
        ("TT", (2, 64, 128, 512), "ab", (32, 64, 8)),
    ],
)
def test_batches_in_clusters_do_the_same(compiling, layout, sizes, shared, values):
    config = dict(zip(("BLOCK_Q", "BLOCK_K", "CLUSTER"), values, strict=True))
    light_and_in_order(*compiling(inside_hopper.batches_in_clusters, layout, *sizes, shared, config), *values)


@pytest.mark.parametrize(
    ("layout", "dtype", "sizes", "values", "registers"),
    [
        ("TN", "fp32", (768, 333, 77), (64, 128, 0, 16, 0), 255),
        ("NN", "fp32", (512, 256, 256), (64, 64, 0, 32, 0), 168),
        ("NN", "fp32", (77, 333, 768), (64, 64, 16, 16, 1), 168),
        ("NT", "tf32", (333, 577, 77), (64, 64, 0, 32, 1), 128),
        ("TN", "tf32", (197, 77, 333), (64, 64, 0, 32, 0), 128),
    ],
)
def test_products_through_registers_are_made_once_more_where_they_may_be_nan(
    compiling, layout, dtype, sizes, values, registers
):
    """ptxas left the second time out in tf32 where whether |sums| < infinity decided about it."""
    code, used = compiling(inside_hopper.product_through_registers, layout, dtype, *sizes, values)
    products = 6 if dtype == "fp32" else 3
    blocks = 2 * (values[3] // 16) * (2 if values[2] else 1)  # in the loop and after it
    assert sum(name.startswith("HGMMA") and ".64x8x16" not in name for name in code) == blocks * (products + 1)
    assert used <= registers


def light_and_in_order(code, ptx, shared, columns, block_k, size):
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"
    assert sum(name.startswith("HGMMA") for name in code) == block_k // 16
    assert sum(name.startswith("STAS") for name in code) == (columns // 8 if size > 1 else 0)
    assert shared <= 227 * 1024
    _, _, loop = ptx.partition("wgmma.wait_group.sync.aligned 1")
    between, copy, _ = loop.partition("cp.async.bulk")
    assert copy and "bar.sync" in between, "a block is filled while other warps' products read it"


@pytest.mark.parametrize(
    ("dtypes", "fast", "values"),
    [
        (("float8_e4m3fn", "float8_e4m3fn"), False, (64, 128, 3)),
        (("float8_e4m3fn", "float8_e5m2"), False, (128, 64, 7)),
        (("float8_e5m2", "float8_e4m3fn"), True, (32, 64, 8)),
        (("float8_e4m3fn", "float8_e4m3fn"), False, (64, 64, 1)),
        (("int8", "int8"), False, (64, 128, 2)),
        (("int8", "int8"), False, (64, 16, 5)),
    ],
)
def test_8_bits_in_clusters_fill_blocks_again_behind_all_warps_and_spill_nothing(compiling, dtypes, fast, values):
    config = dict(zip(("BLOCK_M", "BLOCK_N", "CLUSTER"), values, strict=True))
    code, ptx, shared = compiling(inside_hopper.product_of_8_bits_in_clusters, dtypes, fast, config)
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"
    assert sum(name.startswith(("QGMMA", "IGMMA")) for name in code) == 8
    side = values[0] if values[0] != 64 else values[1]
    assert sum(name.startswith("STAS") for name in code) == (side // 8 if values[2] > 1 else 0)
    assert shared <= 227 * 1024
    loop = ptx[ptx.index("wgmma.mma_async") : ptx.rindex("wgmma.mma_async")]
    assert "wgmma.wait_group" not in loop, "the second block waits for the first"
    between, copy, _ = ptx[ptx.rindex("wgmma.mma_async") :].partition("cp.async.bulk")
    assert copy and "bar.sync" in between, "a block is filled while other warps' products read it"


@pytest.mark.parametrize(
    ("variant", "rows", "kernel"),
    [
        ("descriptor", 256, "alternating_sums_kernel"),
        ("descriptor", 257, "_sums_descriptor_kernel"),
        ("gluon", 2048, "alternating_sums_kernel"),
        ("gluon", 2049, "sums_kernel"),
    ],
)
def test_groups_of_warps_alternate_at_sums_over_short_groups(compiling, variant, rows, kernel):
    assert compiling(inside_hopper.grouped_sums, variant, rows)[0] == kernel


@pytest.mark.parametrize(("rows", "tile"), [(1000, 2), (3000, 1)], ids=["alternating", "sharing a tile"])
def test_ragged_sums_overlap_their_wgmmas_and_spill_nothing(compiling, rows, tile):
    """For each group of warps there are products in the loop and of the last block, and a wait more at the end."""
    _, code = compiling(inside_hopper.grouped_sums, "gluon", rows, True)
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"
    assert sum(name.startswith("HGMMA") for name in code) == 2 * 2 * 4 * tile
    assert sum(name.startswith("WARPGROUP.DEPBAR") for name in code) == 2 * 3


@pytest.mark.parametrize("columns", [2560, pytest.param(2559, id="rows of C off 16 bytes")])
@pytest.mark.parametrize(("layout", "tile"), in_turns(["NN", "NT", "TN", "TT"], [(32, 6), (64, 5)]))
def test_products_of_a_block_and_of_what_lies_beside_are_waited_for_together(compiling, layout, tile, columns):
    """Four products of 16 of k each."""
    config = dict(zip(("BESIDE", "STAGES"), tile, strict=True)) | {"BLOCK_K": 64, "GROUP_M": 8}
    code = compiling(inside_hopper.hopper_columns, layout, config, columns)
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"
    waits = sum(name.startswith("WARPGROUP.DEPBAR") for name in code)
    assert sum(name.startswith("HGMMA") for name in code) == 4 * waits == 16  # a wait in the loop, one after


@pytest.mark.parametrize(("layout", "tile"), in_turns(["NN", "TT", "TN"], [(256, 4), (128, 6), (64, 8)]))
def test_tf32_reads_the_next_operand_while_it_multiplies_and_spills_nothing(compiling, layout, tile):
    """16 numbers of each thread, one each lane and bank; four products a wait."""
    config = {"GROUPS": 2, "GROUP_Y": 8} | dict(zip(("BLOCK_Y", "STAGES"), tile, strict=True))
    code = compiling(inside_hopper.hopper_tf32, layout, config)
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"
    products, waits = (
        [i for i, name in enumerate(code) if name.startswith(start)] for start in ("HGMMA", "WARPGROUP.DEPBAR")
    )
    assert len(products) == 4 * len(waits)
    begun = [max(i for i in products if i < wait) for wait in waits]
    read = [code[begin:wait].count("LDS") for begin, wait in zip(begun, waits, strict=True)]
    assert sorted(read) == [0, 0, 16, 16], read  # in either group's loop; not behind a tile's last block


FP32 = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "STAGES": 3, "num_warps": 4}


@pytest.mark.parametrize(
    ("layout", "tile"), in_turns(["NN", "NT", "TN", "TT"], [(128, 128, 8), (128, 64, 4), (64, 64, 2)])
)
def test_products_of_fp32_read_16_numbers_for_64_multiplications_whatever_the_layout(compiling, layout, tile):
    """16 bytes at a time, and a block's 32 of k in 2048 multiplications of each thread."""
    names, spilled, _ = compiling(
        inside_hopper.hopper_fp32, layout, FP32 | dict(zip(("BLOCK_M", "BLOCK_N", "num_warps"), tile, strict=True))
    )
    assert [name for name in names if name.startswith("LDS")] == ["LDS.128"] * 128
    assert 2048 <= names.count("FFMA") < 2200 and spilled == 0


@pytest.mark.parametrize(
    ("layout", "tile"), in_turns(["NN", "NT", "TN", "TT"], [(64, 64, 4), (128, 64, 8), (64, 128, 8)])
)
def test_products_of_fp32_with_half_the_elements_a_thread_leave_registers_for_more_warps(compiling, layout, tile):
    """12 numbers for 32 multiplications, and registers for 12 warps, or for 11 where one program has 8 of them."""
    names, spilled, registers = compiling(
        inside_hopper.hopper_fp32, layout, FP32 | dict(zip(("BLOCK_M", "BLOCK_N", "num_warps"), tile, strict=True))
    )
    assert [name for name in names if name.startswith("LDS")] == ["LDS.128"] * 96
    assert 1024 <= names.count("FFMA") < 1100 and spilled == 0
    assert registers <= (168 if tile[2] == 4 else 184)


@pytest.mark.parametrize(("activation", "warps"), in_turns(["gelu", "gelu_tanh", "silu"], [4, 8]))
def test_products_of_fp32_leave_registers_for_every_epilogue(compiling, activation, warps):
    _, spilled, _ = compiling(inside_hopper.hopper_fp32, "NT", FP32 | {"num_warps": warps}, activation)
    assert spilled == 0


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("gradient", "rows", "products"), [(False, 64, 4), (False, 256, 4), (True, 16, 4), (True, 32, 4)]
)
def test_packed_weights_become_operands_in_registers(compiling, bits, gradient, rows, products):
    """No register spills, and the products of a step are awaited together: ptxas may wait for each (C7513)."""
    config = {"BLOCK_M": rows, "SPLITS": 2} | ({} if gradient else {"GROUP_M": 1, "AHEAD": 16})
    code = compiling(inside_hopper.packed_on_hopper, bits, gradient, config)
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"
    count = sum(name.startswith("HGMMA") for name in code)
    assert count and count >= products * sum(name.startswith("WARPGROUP.DEPBAR") for name in code)
    assert any(name.startswith("MOVM") for name in code) == gradient  # turns blocks of weights over
    if not gradient:
        letters = {"WARPGROUP": "w", "HGMMA": "p", "HMUL2": "s"}
        parts = "".join(letters.get(name.split(".")[0], "") for name in code if name != "WARPGROUP.ARRIVE")
        assert "s" in parts.rpartition("p")[2] and "w" in parts, "no weights are scaled beside products"
        late = [part for part in parts.split("w")[1:] if "s" in part.partition("p")[0]]
        assert len(late) <= 1, "weights are scaled between products: ptxas moved the wait up"  # one: the second group's


@pytest.mark.parametrize(
    ("shape", "format_"),
    in_turns([(64, 1, 2), (64, 2, 2), (128, 2, 1), (128, 3, 1), (256, 2, 1)], [(4, 32), (4, 128), (8, 0)]),
)
def test_packed_weights_are_made_between_the_products_of_the_stage_before(compiling, format_, shape):
    """No register spills, and ptxas keeps the order: it would gather products, whose warps then wait (and C7513)."""
    config = dict(zip(("BLOCK_M", "W_GROUPS", "K_GROUPS"), shape, strict=True)) | {"SPLITS": 2}
    code = compiling(inside_hopper.packed_by_tma, *format_, False, config)
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"
    exchanges, turns = (sum(name.startswith(kind) for name in code) for kind in ("SHFL", "MOVM"))
    assert 2 * exchanges == turns, "lanes exchange what they might load, not only sums of clusters to be written"
    _check_order(code, shape)


def _check_order(code, shape, making="HMUL2"):
    """That the loop makes weights between products, whose order ptxas keeps."""
    letters = {"WARPGROUP": "w", "HGMMA": "p", making: "s"}
    parts = "".join(letters.get(name.split(".")[0], "") for name in code if name != "WARPGROUP.ARRIVE")
    steps = [part for part in parts.split("w") if "p" in part]
    assert len(steps) == 2 * shape[1] * shape[2]  # the loop is unrolled twice
    assert all(re.search("ps*ps+ps+pp$", step) and step.count("p") == 5 for step in steps[::2])  # the next one's first
    assert all(re.match("s*ps+ps+p", step) and step.count("p") == 3 for step in steps[1::2])


@pytest.mark.parametrize(
    ("shape", "format_"),
    in_turns([(64, 1, 2), (64, 2, 1), (128, 1, 2), (128, 2, 1), (256, 2, 1)], [(4, 32), (4, 128), (8, 0)]),
)
def test_packed_weights_are_turned_over_between_the_products_of_the_stage_before(compiling, format_, shape):
    config = dict(zip(("BLOCK_M", "W_GROUPS", "K_GROUPS"), shape, strict=True)) | {"SPLITS": 2}
    code = compiling(inside_hopper.packed_by_tma, *format_, True, config)
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"
    _check_order(code, shape, "MOVM")


def _places(ptx):
    """Where in Triton's shared memory its barriers lie, and what it keeps of warps' roles."""
    bases = set(re.findall(r"mov\.[bu]32\s+(%r\d+), global_smem;", ptx))
    added = {}
    for found, base, offset in re.findall(r"add\.s32\s+(%r\d+), (%r\d+), (\d+);", ptx):
        if base in bases:
            added[found] = int(offset)
    barriers = re.findall(r"@%p\d+ mbarrier\.init\.shared::cta\.b64 \[(%r\d+)\]", ptx)
    roles = re.findall(r"st\.shared\S*\s+\[global_smem(?:\+(\d+))?\]", ptx)
    return [added[barrier] for barrier in barriers], [int(place or 0) for place in roles]


@pytest.mark.parametrize(
    ("shape", "splits", "format_", "gradient"),
    [((32, 2, 2), 5, (4, 128), False), ((64, 1, 2), 2, (4, 32), False), ((64, 2, 2), 4, (8, 0), False),
     ((128, 1, 2), 3, (8, 0), False), ((128, 2, 1), 6, (4, 128), False), ((128, 3, 1), 2, (8, 0), False),
     ((256, 2, 1), 3, (4, 32), False), ((64, 1, 2), 2, (4, 32), True), ((128, 1, 2), 3, (8, 0), True)],
)  # fmt: skip
def test_parts_of_packed_weights_are_sent_to_where_nothing_else_lies(compiling, shape, splits, format_, gradient):
    """16 bytes an instruction, to memory of their own or to the ring, behind which barriers and roles are kept."""
    config = dict(zip(("BLOCK_M", "W_GROUPS", "K_GROUPS"), shape, strict=True)) | {"SPLITS": splits}
    code, ptx, sent, shared = compiling(inside_hopper.packed_in_clusters, *format_, gradient, config)
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"
    _check_order(code, shape, "MOVM" if gradient else "HMUL2")
    assert sum(name.startswith("STAS") for name in code) == shape[0] // 8 * shape[1]
    (static,) = map(int, re.findall(r"\.shared \.align 1024 \.b8 room\[(\d+)\]", ptx))
    assert static % 1024 == 0 and shared <= 227 * 1024
    barriers, roles = _places(ptx)
    assert barriers and roles
    assert static >= 1024 + sent if static > 1024 else min(barriers + roles) >= sent
    # all threads arrive at the cluster's barrier, and there are none of no role
    (threads,) = map(int, re.findall(r"\.reqntid (\d+)", ptx))
    groups = shape[1] * shape[2]
    assert threads == 128 * (groups + 1)
    assert ptx.count("barrier.cluster.arrive") == ptx.count("barrier.cluster.wait") == groups + 3


@pytest.mark.parametrize(
    ("shape", "format_"),
    [((16, 4), (4, 128)), ((32, 5), (8, 0)), ((64, 2), (4, 32)), ((64, 6), (8, 0)), ((128, 1), (8, 64)),
     ((128, 3), (4, 64)), ((128, 7), (8, 0)), ((256, 3), (4, 128)), ((256, 1), (8, 0)), ((16, 6, 128), (4, 128)),
     ((32, 4, 64), (8, 64)), ((64, 1, 64), (8, 0)), ((64, 6, 128), (4, 32)), ((128, 4, 64), (4, 64)),
     ((128, 5, 128), (8, 0))],
)  # fmt: skip
def test_small_products_of_packed_weights_overlap_and_are_short(compiling, shape, format_):
    """Two waits are the kernel's own: ptxas adds one behind each product of those whose order it does not keep."""
    config = dict(zip(("BLOCK_M", "CLUSTER", "COLUMNS"), shape, strict=False))
    columns = config.get("COLUMNS")
    code, ptx, sent, shared = compiling(inside_hopper.packed_in_one_role, *format_, columns is not None, config)
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"
    assert len(code) < 1300 and shared <= 227 * 1024
    assert sum(name.startswith("WARPGROUP.DEPBAR") for name in code) == 2
    products = columns // 16 if columns else 4 if shape[0] == 256 else 8
    assert sum(name.startswith("HGMMA") for name in code) == products
    if shape[1] > 1:
        (static,) = map(int, re.findall(r"\.shared \.align 1024 \.b8 room\[(\d+)\]", ptx))
        barriers, _ = _places(ptx)
        assert static >= 1024 + sent if static > 1024 else min(barriers) >= sent


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [64, 128])
def test_packed_weights_are_converted_16_bytes_a_store_beside_products_that_overlap(compiling, bits, rows):
    code = compiling(inside_hopper.packed_in_shared_memory, bits, {"ROWS": rows, "GROUP_M": 8, "SPLITS": 1})
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"
    waits = sum(name.startswith("WARPGROUP.DEPBAR") for name in code)
    assert sum(name.startswith("HGMMA") for name in code) == rows // 32 * waits
    weights = 64 * 128 * 2 * 2 // 16 // (32 * (4 if rows == 64 else 2))  # of two converters' blocks, a lane's stores
    assert sum(name == "STS.128" for name in code) >= weights


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [("TN", (3, 2051, 4096)), ("NN", (7, 4098, 3000)), ("NT", (8, 4096, 4097)), ("TT", (8, 4096, 4096))],
    ids=str,
)
def test_few_rows_of_fp32_go_to_registers_past_shared_memory(compiling, layout, sizes):
    """But for the last sum across warps.  16 rows along K fill registers, and Triton 3.7 spills 8 bytes."""
    names, spilled = compiling(inside_hopper.streamed, layout, *sizes)
    assert spilled == 0
    loop = names[: max(i for i, name in enumerate(names) if name.startswith("LDG"))]
    assert not [name for name in loop if name.startswith(("LDS", "STS", "BAR", "LDGSTS"))]


@pytest.mark.parametrize("columns", [128, 256])
def test_odd_rows_are_copied_16_bytes_at_a_time_past_registers(compiling, columns):
    names, spilled = compiling(inside_hopper.shifted, columns)
    assert spilled == 0
    loop = names[: max(i for i, name in enumerate(names) if name.startswith("HMMA"))]
    copies = [name for name in loop if name.startswith("LDGSTS")]
    assert copies and all(".128" in name for name in copies)


@pytest.mark.parametrize(
    ("rows", "columns", "copies"), [(5, 32, 0), (5, 64, 0), (5, 32, 1), (5, 64, 1), (17, 64, 1), (64, 64, 1)]
)
def test_odd_rows_along_k_and_what_they_meet_are_copied_16_bytes_at_a_time(compiling, rows, columns, copies):
    names, spilled = compiling(inside_hopper.staggered, rows, columns, copies)
    assert spilled == 0
    copies = [name for name in names if name.startswith("LDGSTS")]
    assert copies and all(".128" in name for name in copies)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("dtype", "m", "n"), [("bf16", 16, 65_536), ("fp16", 2, 40_008), ("fp32", 6, 32_768)])
def test_softmax_in_clusters_reads_a_row_once_in_whole_vectors_and_spills_nothing(compiling, dtype, m, n, log):
    code, ptx = compiling(inside_hopper.softmax_in_clusters, dtype, m, n, log)
    assert not {"STL", "LDL"} & {name.split(".")[0] for name in code}, "registers are spilled"
    loads = [name for name in code if name.startswith("LDG")]
    assert len(loads) == 2 and all(".128" in name for name in loads), loads
    assert sum(name.startswith("STAS") for name in code) == 1
    before, _, behind = ptx.partition("barrier.cluster.wait")
    assert "barrier.cluster.arrive" in before and "st.async" in behind, "a pair is sent to a room that is not open"
