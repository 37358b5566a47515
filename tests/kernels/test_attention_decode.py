"""decode_attention on the interpreter: lengths, tokens tried at once, layouts of the cache, what is refused."""

import dataclasses
import math

import pytest
import torch
from atlas.declaration import GPU, case, gpu_of
from atlas.validation.certification import certifying_cases

from kernels import decode_attention
from kernels.attention_decode import DECLARATION, decode_operator, even
from kernels.attention_decode.chunks import launch_chunks, rows_of_chunk
from kernels.attention_decode.declaration import reference
from kernels.attention_decode.even import launch_even
from kernels.attention_decode.reading import prepared

CONFIG = {"BLOCK_N": 32, "PROGRAMS": 2, "num_warps": 4, "num_stages": 2}
H200 = GPU("h200", "cuda", 90, sms=132, shared_bytes=232448, memory_bytes=141 * 2**30, l2_bytes=60 * 2**20)


def drawn(batch=2, heads=4, kv_heads=2, queries=1, seq=90, head_dim=32, dtype=torch.float16):
    generator = torch.Generator().manual_seed(0)
    shapes = ((heads, queries), (kv_heads, seq), (kv_heads, seq))
    return [torch.randn(batch, *s, head_dim, generator=generator).to(dtype) for s in shapes]


def expected(q, k, v, lens=None, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return reference(q.double(), k.double(), v.double(), lens, scale)


def assert_close(found, reference):
    torch.testing.assert_close(found.double(), reference, rtol=2e-3, atol=2e-3)


def test_one_token_agrees_with_torch_and_so_does_the_reference():
    q, k, v = drawn()
    torchs = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)
    torch.testing.assert_close(expected(q, k, v)[0], torchs)
    assert_close(decode_attention(q, k, v), torchs)
    found = decode_attention(q, k, v, scale=0.5)
    assert_close(found, expected(q, k, v, scale=0.5)[0])


def test_each_sequence_has_its_length_and_rows_behind_it_may_be_anything():
    q, k, v = drawn(batch=3)
    lens = torch.tensor([90, 33, 1], dtype=torch.int32)
    reference, lse = expected(q, k, v, lens)
    for sequence, length in enumerate(lens.tolist()):  # a cache comes as it was allocated
        k[sequence, :, length:] = math.nan
        v[sequence, :, length:] = math.nan
    found, found_lse = decode_attention(q, k, v, lens, return_lse=True)
    assert_close(found, reference)
    assert_close(found_lse, lse)
    assert found_lse.dtype is torch.float32 and found_lse.shape == (3, 4, 1)


def test_a_length_beyond_the_cache_counts_as_all_of_it_and_nothing_gives_zero():
    q, k, v = drawn()
    found, lse = decode_attention(q, k, v, torch.tensor([1000, 0], dtype=torch.int32), return_lse=True)
    assert_close(found[:1], expected(q[:1], k[:1], v[:1])[0])
    assert not found[1].any() and (lse[1] == -math.inf).all()


def test_of_several_tokens_each_sees_the_rows_up_to_its_own():
    q, k, v = drawn(queries=3, seq=66)
    lens = torch.tensor([65, 2], dtype=torch.int32)  # a border of a block between the tokens; fewer rows than tokens
    found = decode_attention(q, k, v, lens)
    for sequence, token in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2)):
        seen = int(lens[sequence]) - 2 + token
        one = [x[sequence : sequence + 1] for x in (q[:, :, token : token + 1], k[:, :, :seen], v[:, :, :seen])]
        assert_close(found[sequence : sequence + 1, :, token : token + 1], expected(*one)[0])
    assert not found[1, :, 0].any(), "the first of three tokens in a cache of two rows was never stored"


def test_a_cache_with_tokens_before_heads_goes_in_transposed():
    q, k, v = drawn()
    laid = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
    assert laid[0].stride() != k.stride()
    torch.testing.assert_close(decode_attention(q, *laid), decode_attention(q, k, v), rtol=0, atol=0)


def test_a_query_in_any_layout_is_read():
    q, k, v = drawn()
    apart = torch.stack((q, q), -1)[..., 0]
    assert apart.stride(3) == 2
    torch.testing.assert_close(decode_attention(apart, k, v), decode_attention(q, k, v), rtol=0, atol=0)


@pytest.mark.parametrize(("head_dim", "width"), [(64, 8), (72, 8), (68, 4), (66, 2), (65, 1)])
def test_kernels_know_how_many_elements_of_a_row_can_be_read_at_once(head_dim, width):
    q, k, v = drawn(head_dim=head_dim)
    assert prepared(q, k, v, 1.0, CONFIG)[3]["WIDTH"] == width
    apart = torch.cat((k, k), 3)[..., 1 : 1 + head_dim]
    assert prepared(q, apart, v, 1.0, CONFIG)[3]["WIDTH"] == width
    one = k[:1, :1, :, :].as_strided((1, 1, 90, head_dim), (1, 1, head_dim, 1))  # strides that no row is found by
    assert prepared(q[:1, :1], one, one, 1.0, CONFIG)[3]["WIDTH"] == width


@pytest.mark.parametrize(("head_dim", "rows"), [(72, 128), (68, 64), (65, 32)])
def test_rows_off_16_bytes_are_read_in_smaller_blocks(head_dim, rows):
    problem = case("bf16", batch=16, heads=32, kv_heads=8, seq=4096, queries=1, head_dim=head_dim, ragged=False)
    assert DECLARATION.forward.variant("whole").default(problem, H200)["BLOCK_N"] == rows


@pytest.mark.parametrize("lens", [None, [1090], [1]])
@pytest.mark.parametrize("launch", [launch_chunks, launch_even])
def test_the_number_of_parts_changes_no_more_than_rounding(launch, lens):
    q, k, v = drawn(batch=1, heads=2, kv_heads=1, seq=1100)
    lens = None if lens is None else torch.tensor(lens, dtype=torch.int32)
    # 16 programs an SM make 35 parts, which are joined 32 at a time.
    outputs = [launch(q, k, v, lens, 0.2, config=CONFIG | {"PROGRAMS": programs}) for programs in (1, 2, 16)]
    outputs.append(launch_chunks(q, k, v, lens, 0.2, config={n: x for n, x in CONFIG.items() if n != "PROGRAMS"}))
    reference = expected(q, k, v, lens, 0.2)
    for found in outputs:
        for one, other in zip(found, reference, strict=True):
            assert_close(one, other)


@pytest.mark.parametrize(
    ("pairs", "seq", "programs", "chunk"),
    [
        (8, 16384, 264, 512),  # 33 chunks of 496 would do, and 8 blocks of 64 are 512
        (1024, 4096, 264, 4096),  # more caches than programs: none is split
        (1, 100, 264, 64),  # no chunk is less than a block
        (1, 0, 264, 64),
    ],
)
def test_chunks_are_whole_blocks_and_about_as_many_as_asked_for(pairs, seq, programs, chunk):
    assert rows_of_chunk(pairs, seq, programs, 64) == chunk


@pytest.mark.parametrize("programs", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("lens", [None, [96, 0, 500, 33, 1]])
def test_programs_share_all_caches_wherever_one_ends(monkeypatch, programs, lens):
    """Caches within a share, across two and across several, of as many programs as there are blocks, or fewer."""
    gpu = dataclasses.replace(gpu_of(torch.device("cpu")), sms=programs)
    monkeypatch.setattr(even, "gpu_of", lambda device: gpu)
    q, k, v = drawn(batch=5, heads=6, kv_heads=2, queries=2, seq=100)
    lens = None if lens is None else torch.tensor(lens, dtype=torch.int32)
    out, lse = launch_even(q, k, v, lens, 0.2, config=CONFIG | {"PROGRAMS": 1})
    known, known_lse = expected(q, k, v, lens, 0.2)
    assert_close(out, known.nan_to_num())
    assert_close(lse, known_lse)


def test_torch_compile_keeps_one_graph():
    q, k, v = drawn(seq=40)
    lens = torch.tensor([40, 7], dtype=torch.int32)

    def step(q, k, v, lens):
        return decode_attention(q * 2, k, v, lens) + 1

    found = torch.compile(step, fullgraph=True, backend="aot_eager")(q, k, v, lens)
    torch.testing.assert_close(found, step(q, k, v, lens), rtol=0, atol=0)


def test_the_operator_keeps_torch_s_rules_and_needs_no_gradient():
    q, k, v = drawn(seq=8)
    torch.library.opcheck(decode_operator.op, (q, k, v, torch.tensor([8, 3], dtype=torch.int32), 0.2))
    assert not decode_attention(q.requires_grad_(), k, v).requires_grad


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda q, k, v: (q.float(), k, v), TypeError, "one dtype"),
        (lambda q, k, v: (q, k[:1], v[:1]), ValueError, "one b and d"),
        (lambda q, k, v: (q, k, v[:, :, 1:]), ValueError, "one b and d"),
        (lambda q, k, v: (q[:, :3], k, v), ValueError, "multiple of the cache's heads"),
        (lambda q, k, v: (q.repeat(1, 1, 40, 1), k, v), ValueError, "up to 64"),
        (lambda q, k, v: (q, k.mT.contiguous().mT, v), ValueError, "contiguous"),
        (lambda q, k, v: (q, k, v, torch.tensor([9, 9])), ValueError, "int32"),
        (lambda q, k, v: (q, k, v, torch.tensor([9], dtype=torch.int32)), ValueError, "int32"),
    ],
)
def test_what_it_does_not_take_is_an_error_that_says_so(change, error, words):
    with pytest.raises(error, match=words):
        decode_attention(*change(*drawn()))


def test_nothing_to_do_gives_nothing():
    q, k, v = drawn()
    assert decode_attention(q[:0], k[:0], v[:0]).shape == (0, 4, 1, 32)
    assert decode_attention(q[:, :, :0], k, v).shape == (2, 4, 0, 32)


def test_heads_of_no_elements_weigh_all_rows_alike():
    q, k, v = drawn(queries=2, seq=5, head_dim=0)
    out, lse = decode_attention(q, k, v, torch.tensor([5, 1], dtype=torch.int32), return_lse=True)
    assert out.shape == q.shape and decode_attention(q, k, v).shape == q.shape
    torch.testing.assert_close(lse.exp(), torch.tensor([[4.0, 5.0], [0.0, 1.0]])[:, None].expand(2, 4, 2))


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf])
def test_a_scale_that_is_no_number_makes_no_weights(scale):
    out, lse = decode_attention(*drawn(), scale=scale, return_lse=True)
    assert out.isnan().all() and lse.isnan().all()


def test_a_query_of_infinity_over_an_empty_cache_gives_nothing():
    q, k, v = drawn(seq=0)
    out, lse = decode_attention(q * math.inf, k, v, return_lse=True)
    assert not out.any() and (lse == -math.inf).all()


def test_traffic_counts_what_is_filled():
    sizes = {"batch": 4, "heads": 8, "kv_heads": 2, "seq": 100, "queries": 1, "head_dim": 64}
    full, ragged = (DECLARATION.forward.bytes(_case(**sizes, ragged=r))["k"] for r in (False, True))
    assert full == 4 * 2 * 100 * 64 * 2
    assert ragged == (100 + 75 + 50 + 25) * 2 * 64 * 2


def _case(**sizes):
    return type(DECLARATION.edge_cases[0])("bf16", tuple(sizes.items()))


@pytest.mark.parametrize(
    ("sizes", "name", "config"),
    [
        ({"batch": 2, "seq": 256}, "whole", (128, 4, 3)),  # a second kernel would cost more than it spares
        ({"batch": 16, "seq": 16384}, "whole", (128, 4, 3)),  # 128 caches for 132 SMs
        ({"batch": 64, "seq": 679}, "whole", (64, 2, 2)),  # four on an SM, all at once
        ({"batch": 64, "seq": 2558, "ragged": True}, "whole", (128, 4, 2)),
        ({"batch": 8, "seq": 4096}, "split", (64, 2, 4, 3)),
        ({"batch": 8, "seq": 16384, "ragged": True}, "even", (64, 2, 4, 3)),  # lengths differ
        ({"batch": 64, "seq": 16384, "ragged": True}, "even", (64, 2, 4, 3)),  # and by much
        ({"batch": 40, "seq": 16384}, "even", (64, 2, 4, 3)),  # 2.4 caches an SM
    ],
)
def test_what_a_call_runs_untuned_goes_by_how_many_sms_have_a_cache(sizes, name, config):
    shape = {"heads": 32, "kv_heads": 8, "queries": 1, "head_dim": 128, "ragged": False}
    problem = case("bf16", **shape | sizes)
    variant = DECLARATION.forward.preferred(problem, H200)
    assert (variant.name, tuple(variant.default(problem, H200).values())) == (name, config)
    assert not variant.fits(variant.default(problem, H200), problem, H200)


def test_configs_are_certified_by_a_case_of_which_every_query_sees_every_key():
    # a planted infinity behind a sequence's end is 0 times infinity to the reference, and unread by the kernels
    forward = DECLARATION.forward
    for variant in forward.variants:
        config = variant.default(DECLARATION.edge_cases[0], H200)
        hard = certifying_cases(DECLARATION, forward, variant, config, "bf16", H200)[0][0]
        assert (hard["ragged"], hard["queries"]) == (False, 1)
