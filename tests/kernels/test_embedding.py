"""Embedding on the interpreter: semantics of its arguments, indices that name no row, gradients, torch.compile."""

import pytest
import torch
from atlas.declaration import case
from atlas.declaration.hardware import INTERPRETER
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.problems import Problem
from defaults_under_test import assert_defaults_fit

from kernels.embedding import DECLARATION, embedding, lookup, sorting
from kernels.embedding import gradient as module

CPU = torch.device("cpu")
GPUS = {name: gpu(name, block) for name, block in load_gpus().items() if block.get("build", "match" in block)}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
reference = torch.nn.functional.embedding


def table(v, n, dtype=torch.float32, seed=0):
    return torch.randn(v, n, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tokens(*shape, v, seed=0):
    return torch.randint(v, shape, generator=torch.Generator().manual_seed(seed))


def gradient(function, index, weight, dy, **arguments):
    weight = weight.detach().clone().requires_grad_()
    return torch.autograd.grad(function(index, weight, **arguments), weight, dy)[0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 1, 3)], ids=str)
def test_indices_of_any_shape_give_the_rows_themselves(shape, kind, dtype):
    weight, index = table(9, 24, dtype), tokens(*shape, v=9).to(kind)
    assert torch.equal(embedding(index, weight), reference(index, weight))  # a copy: not a bit differs


def test_layouts_that_are_not_contiguous_are_read_through_their_strides():
    wide, index = table(9, 48), tokens(6, 4, v=9)
    for weight in (wide[:, :24], wide[:, 8:40], wide[:, ::2], wide.t()[:, :9].t(), wide[:1].expand(9, 48)):
        assert torch.equal(embedding(index, weight), reference(index, weight))
    for view in (index.t(), index[::2], index[:, 1:3], index[0].expand(3, 4)):
        assert torch.equal(embedding(view, wide), reference(view, wide))


def test_an_index_outside_the_table_reads_nothing_gives_nan_and_adds_to_no_gradient():
    # Guards around the table would not be enough: the rows read for -1 and v + 3 may lie anywhere.
    weight, index = table(5, 12), torch.tensor([3, -1, 0, 5, 8, -(2**40), 2**40, 3])
    out = embedding(index, weight)
    known = (index >= 0) & (index < 5)
    assert torch.equal(out[known], weight[index[known]])
    assert out[~known].isnan().all()
    dy = table(8, 12, seed=1)
    assert torch.equal(gradient(embedding, index, weight, dy), gradient(reference, index[known], weight, dy[known]))


def test_no_indices_give_an_empty_result_and_a_gradient_of_zeros():
    weight = table(4, 8)
    for shape in ((0,), (2, 0)):
        index = torch.empty(shape, dtype=torch.int64)
        assert torch.equal(embedding(index, weight), reference(index, weight))
        assert not gradient(embedding, index, weight, torch.empty(*shape, 8)).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("m", "v"),
    [
        (3, 40),  # nearly all rows unseen
        (40, 3),  # runs longer than a tile of 16
        (100, 30),  # two chunks to merge
    ],
)
def test_gradients_agree_with_float64_autograd(m, v, dtype):
    weight, index, dy = table(v, 20, dtype), tokens(m, v=v), table(m, 20, dtype, seed=1)
    expected = gradient(reference, index, weight.double(), dy.double())
    found = gradient(embedding, index, weight, dy)
    assert found.dtype == dtype
    tolerance = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]  # the interpreter truncates
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("split", [16, 64])
def test_one_row_named_by_all_tokens_is_summed_whatever_the_number(split, monkeypatch):
    # Every boundary of a run with a tile and a chunk of 64, by turns; integers, so the sum is exact.
    monkeypatch.setattr(module, "SPLITS", ((float("inf"), split),))
    for m in {16: (15, 16, 17, 48, 65, 80), 64: (64, 150)}[split]:
        dy = torch.arange(m, dtype=torch.float32)[:, None].expand(m, 8)
        found = gradient(embedding, torch.ones(m, dtype=torch.int64), table(3, 8), dy)
        assert (found[1] == m * (m - 1) // 2).all() and not found[0].any() and not found[2].any(), m


def test_a_run_of_more_tiles_than_are_looked_at_together_is_found_whole(monkeypatch):
    monkeypatch.setattr(module, "TILES_SEARCHED", 2)
    dy = torch.arange(130, dtype=torch.float32)[:, None].expand(130, 8)  # nine tiles
    found = gradient(embedding, torch.tensor([0] + 127 * [1] + 2 * [2]), table(4, 8), dy)
    assert found[:, 0].tolist() == [0, 127 * 64, 128 + 129, 0]


def sort_tokens(index, v, chunk, share=0):
    """Rows and tokens in order, flags, and a gradient of NaN of which ``share`` rows a launch were cleared."""
    dweight = torch.full((v, 1), float("nan"))
    rows, order, named = sorting.sorted_tokens(index, -1, chunk, sorting.Zeros(dweight, share, 1))
    return rows[: index.numel()], order[: index.numel()], named[:v].bool(), dweight[:, 0]


@pytest.mark.parametrize(
    ("m", "chunk", "fan", "merges"),
    [
        (30, 64, 16, 0),  # one chunk, whose program flags the rows
        (130, 256, 16, 0),
        (1030, 256, 16, 1),  # five chunks, the last nearly empty
        (300, 64, 2, 3),  # five chunks become three, two, one
        (600, 64, 4, 2),  # ten chunks become three: the last is of two
    ],
)
def test_tokens_are_sorted_in_chunks_and_those_of_a_row_keep_their_order(m, chunk, fan, merges, monkeypatch):
    monkeypatch.setattr(sorting, "FANS", ((float("inf"), fan),))
    monkeypatch.setattr(sorting, "FLAGS", 16)
    assert sorting.merges(m, chunk) == merges
    index = tokens(m, v=50)
    rows, order, named, dweight = sort_tokens(index, 50, chunk, share=5)
    expected = torch.sort(index, stable=True)
    assert torch.equal(rows, expected[0].int()) and torch.equal(order, expected[1].int())
    assert torch.equal(named, torch.bincount(index, minlength=50) > 0)
    cleared = 5 * (1 + merges if merges else sorting.ONLY_CHUNK)
    assert dweight[:-cleared].isnan().all() and (dweight[-cleared:] == 0).all()


def test_few_tokens_of_a_large_table_are_one_chunk(monkeypatch):
    monkeypatch.setattr(sorting, "HIDING", 300 * 8 * 4)
    chunks = {m: [sorting.chunk_of(m, torch.empty(v, 8)) for v in (299, 300)] for m in (1, 65, 1033, 2049)}
    assert chunks == {1: [64, 64], 65: [64, 128], 1033: [256, 2048], 2049: [256, 256]}
    index, dy, weight = tokens(100, v=300), table(100, 8, seed=1), table(300, 8)
    expected = gradient(reference, index, weight.double(), dy.double())
    torch.testing.assert_close(gradient(embedding, index, weight, dy).double(), expected, rtol=4e-6, atol=4e-6)


def test_a_table_too_long_to_pack_into_32_bits_is_sorted_in_64(monkeypatch):
    # The sorting alone, and few programs for the flags: the interpreter has no time for the rows of such a table.
    monkeypatch.setattr(sorting, "FLAGS", 2**20)
    v = 2**25  # times a chunk of 64: 2^31
    rows, order, *_ = sort_tokens(torch.tensor([v - 1, 0, v - 1, 2**24]), v, 64)
    assert rows.tolist() == [0, 2**24, v - 1, v - 1] and order.tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("share", [0, 3, 12], ids=lambda share: f"{share} rows a launch")
def test_rows_cleared_before_they_are_summed_hold_their_sums(share, monkeypatch):
    # Named rows at both ends and between; with 12 rows each no launch but the sums' has more than 12 of 48.
    monkeypatch.setattr(module, "BEHIND", share * 8 * 4)
    index = torch.tensor([0, 47, 47, 20, 5, 30, 46, 0] * 5)
    dy, weight = table(40, 8, seed=1), table(48, 8)
    expected = gradient(reference, index, weight.double(), dy.double())
    torch.testing.assert_close(gradient(embedding, index, weight, dy).double(), expected, rtol=4e-6, atol=4e-6)


def test_every_config_gives_the_same_bits():
    # One order of additions whatever the blocks: a tuned config changes no result.
    problem = case("fp16", m=50, v=7, n=300)
    drawn = Problem(DECLARATION, "backward", problem, CPU, seed=2)
    variant = DECLARATION.backward.variant("runs")
    shapes = {tuple(c[k] for k in ("GROUP", "BLOCK_N")): c for c in variant.configs(problem, INTERPRETER)}
    assert len(shapes) > 3
    results = [variant.launch(**drawn.inputs, config=config) for config in shapes.values()]
    assert not drawn.judge(results[0]).reason
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("padding_idx", [2, -1], ids=str)
def test_the_padding_row_is_read_and_gets_no_gradient(padding_idx):
    weight, index, dy = table(5, 8), tokens(30, v=5), table(30, 8, seed=1)
    assert torch.equal(embedding(index, weight, padding_idx), reference(index, weight, padding_idx))
    found = gradient(embedding, index, weight, dy, padding_idx=padding_idx)
    assert not found[padding_idx].any()
    torch.testing.assert_close(found, gradient(reference, index, weight, dy, padding_idx=padding_idx))


def test_second_derivatives_agree_with_torch():
    index, v = tokens(6, v=4), table(4, 8, seed=2)

    def second(function):
        weight, dy = table(4, 8).requires_grad_(), table(6, 8, seed=1).requires_grad_()
        (first,) = torch.autograd.grad(function(index, weight), weight, dy, create_graph=True)
        return torch.autograd.grad(first, dy, v)[0]

    assert torch.equal(second(embedding), second(reference))


def test_under_torch_compile_forward_and_backward_are_one_graph():
    weight, index, dy = table(9, 16).requires_grad_(), tokens(3, 4, v=9), table(12, 16, seed=1).view(3, 4, 16)
    compiled = torch.compile(lambda i, w: embedding(i, w, padding_idx=3) * 2, fullgraph=True, backend="aot_eager")
    out = compiled(index, weight)
    torch.testing.assert_close(out, 2 * reference(index, weight))
    found = torch.autograd.grad(out, weight, dy)[0]
    torch.testing.assert_close(found, gradient(reference, index, weight, 2 * dy, padding_idx=3))


def test_the_operators_keep_torchs_rules():
    index, weight = tokens(5, v=6), table(6, 8).requires_grad_()
    torch.library.opcheck(torch.ops.kernel_atlas.embedding_forward.default, (index, weight, -1))
    torch.library.opcheck(torch.ops.kernel_atlas.embedding_backward.default, (table(5, 8), index, 6, 1))


def test_what_is_not_supported_is_refused_by_name():
    weight, index = table(4, 8), tokens(3, v=4)
    with pytest.raises(TypeError, match="float64"):
        embedding(index, weight.double())
    with pytest.raises(TypeError, match="int16"):
        embedding(index.short(), weight)
    with pytest.raises(ValueError, match="two dimensions"):
        embedding(index, weight[None])
    for padding_idx in (4, -5):
        with pytest.raises(ValueError, match=f"padding_idx {padding_idx}"):
            embedding(index, weight, padding_idx)
    for arguments in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}):
        with pytest.raises(NotImplementedError, match=next(iter(arguments))):
            embedding(index, weight, **arguments)


TILES = {
    # by the rounds that tiles of four warps take on an H200: (case, tokens, columns and warps of a tile by default)
    "begin a second one": (case("bf16", m=3036, v=49152, n=2880), (64, 128, 2)),
    "fill most of a second one": (case("bf16", m=4096, v=128256, n=3584), (64, 128, 2)),
    "of narrow rows begin a second one": (case("fp16", m=70000, v=50257, n=64), (64, 128, 2)),
    "fill little of one": (case("bf16", m=1205, v=50257, n=2560), (32, 256, 4)),
    "take ten": (case("bf16", m=16384, v=32000, n=5120), (32, 256, 4)),
    "take four, in 32 bits": (case("fp32", m=4096, v=32000, n=4096), (32, 128, 4)),
    "begin a second one, in 32 bits": (case("fp32", m=3036, v=49152, n=1440), (16, 128, 1)),
    "fill nearly one, by single elements": (case("bf16", m=6000, v=50257, n=777), (16, 256, 1)),
    "take two, by single elements": (case("fp16", m=20000, v=32000, n=333), (16, 256, 1)),
    "fill little of one, by single elements": (case("fp32", m=500, v=50257, n=333), (32, 128, 4)),
    "begin a second one, of few long rows": (case("bf16", m=20, v=500, n=300_000), (16, 256, 1)),
}


@pytest.mark.parametrize("name", TILES)
def test_tiles_are_of_fewer_warps_where_those_of_four_leave_sms_idle(name):
    problem, tile = TILES[name]
    variant = DECLARATION.forward.variant("tiles")
    config = variant.default(problem, GPUS["h200"])
    assert (config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]) == tile
    assert config in list(variant.configs(problem, GPUS["h200"]))


def test_writes_are_streaming_where_the_cache_cannot_hold_them():
    for variant in DECLARATION.forward.variants:
        streaming = [
            variant.default(case("bf16", m=m, v=32000, n=4096), GPUS["h200"])["STREAM"] for m in (4096, 12000, 16384)
        ]
        assert streaming == [False, False, True], variant.name


@pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streaming"])
@pytest.mark.parametrize("places", [32, 64])
@pytest.mark.parametrize("name", ["tiles", "rows"])
def test_places_of_either_width_and_writes_of_either_kind_give_the_rows(name, places, streaming, monkeypatch):
    monkeypatch.setattr(lookup, "FAR", 0 if places == 64 else lookup.FAR)
    launch = DECLARATION.forward.variant(name).launch
    config = {"BLOCK_M": 4, "BLOCK_N": 128, "num_warps": 1, "KEPT": False, "STREAM": streaming}
    for m, n in ((8, 256), (7, 200), (5, 33)):
        weight, index = table(9, n), tokens(m, v=9)
        assert torch.equal(launch(index, weight, -1, config=config), reference(index, weight))


@pytest.mark.parametrize("name", GPUS)
def test_defaults_are_points_of_the_space_that_fit(name):
    assert_defaults_fit(DECLARATION, GPUS[name])
