"""What the peers of products and attention do that no validation checks: it knows the one named torch alone."""

import importlib

import pytest
import torch
from atlas.declaration import GPU, Pass, Peer, case
from atlas.host.runtime import as_tuple, draw
from torch.nn.attention import flex_attention

from kernels.attention_decode.declaration import DECLARATION as DECODE
from kernels.common.peers import by_cublaslt
from kernels.grouped_matmul import cases as grouped
from kernels.matmul_epilogue import cases as linear

H200 = GPU("h200", "cuda", 90, 132, 232448, 141 * 2**30, 60 * 2**20)
SEARCHED = (
    "matmul", "matmul_epilogue", "batched_matmul", "grouped_matmul", "matmul_w4a16", "matmul_w8a16", "matmul_8bit",
    "layer_norm_linear", "linear_cross_entropy", "attention", "attention_decode", "attention_fp8",
)  # fmt: skip


@pytest.mark.parametrize("kernel", SEARCHED)
def test_torch_tunes_its_own_kernels_in_two_cases_of_every_kernel_of_products_at_least(kernel):
    declaration = importlib.import_module(f"kernels.{kernel}").DECLARATION
    peers = [peer for peer in declaration.forward.peers.values() if peer.searches]
    for peer in peers:
        assert sum(not peer.handles(one) for one in declaration.cases(H200)) >= 2
    assert peers


def test_the_loop_on_known_lengths_is_a_product_for_each_group_and_zero_for_rows_of_none():
    problem = case("fp32", spread="ragged", groups=7, m=80, n=24, k=32)
    given = grouped.backward_inputs(problem, torch.device("cpu"), torch.Generator().manual_seed(0))
    dc = given.pop("dc")
    torch.testing.assert_close(grouped.prepare_loop(**given)(), grouped.reference(**given))
    found, expected = grouped.prepare_backward_loop(**given, dc=dc)(), grouped.backward_reference(**given, dc=dc)
    torch.testing.assert_close(found, expected)


def test_the_loop_says_that_it_has_no_gradient():
    a, b = torch.ones(4, 8, requires_grad=True), torch.ones(1, 8, 8)
    with pytest.raises(NotImplementedError, match="no gradient"):
        grouped.prepare_loop(a, b, torch.tensor([4]))


@pytest.mark.parametrize(
    ("dtype", "n", "taken"), [("bf16", 64, True), ("fp16", 64, False), ("fp32", 64, False), ("bf16", 65, False)]
)
def test_torchs_own_grouped_product_is_left_out_where_it_would_refuse(dtype, n, taken):
    peer = grouped.only_bf16(Peer(lambda **inputs: None, compiles=True))
    assert peer.compiles
    assert (peer.handles(case(dtype, spread="even", groups=2, m=16, n=n, k=64)) == "") == taken


def test_cublaslts_product_adds_nothing_and_is_no_peer_for_one_row():
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    torch.testing.assert_close(by_cublaslt(a, b)(), a @ b)
    with pytest.raises(NotImplementedError, match="one row"):
        by_cublaslt(a[:1], b)


@pytest.mark.parametrize(
    ("activation", "bias"), [("relu", True), ("relu", False), ("gelu_tanh", False), ("none", False)]
)
def test_cublaslts_linear_takes_zeros_where_there_is_no_bias(activation, bias):
    problem = case("fp32", activation=activation, bias=bias, residual=False, m=6, n=8, k=16)
    given = linear.inputs(problem, torch.device("cpu"), torch.Generator().manual_seed(0))
    atol = 1e-3 if activation == "gelu_tanh" else 1e-5  # on a CPU torch computes that by erf
    torch.testing.assert_close(linear.prepare_cublaslt(**given)(), linear.reference(**given), rtol=1e-4, atol=atol)


@pytest.mark.parametrize("refused", [{"activation": "silu"}, {"residual": True}, {"activation": "none", "bias": True}])
def test_cublaslts_linear_leaves_out_what_it_cannot_or_what_torch_does_by_itself(refused):
    problem = case(
        "fp32", **({"activation": "relu", "bias": False, "residual": False, "m": 6, "n": 8, "k": 16} | refused)
    )
    given = linear.inputs(problem, torch.device("cpu"), torch.Generator().manual_seed(0))
    with pytest.raises(NotImplementedError):
        linear.prepare_cublaslt(**given)


def decode(name, **sizes):
    return DECODE.forward.peers[name], next(
        one for one in DECODE.cases(H200) if all(dict(one.sizes)[key] == value for key, value in sizes.items())
    )


@pytest.mark.parametrize("masked", [{"queries": 4}, {"ragged": True}])
def test_where_decodings_torch_needs_a_mask_there_is_a_peer_without_one(masked):
    peer, one = decode("torch.varlen", **masked)
    assert not peer.handles(one)
    peer, one = decode("flex_attention", **masked)
    assert not peer.handles(one)


@pytest.mark.parametrize(
    ("kernel", "direction", "dtype", "sizes"),
    [
        ("matmul_w4a16", "forward", "bf16", {"m": 5, "n": 40, "k": 96, "group": 32}),
        ("matmul_w8a16", "forward", "bf16", {"m": 12, "n": 40, "k": 160}),
        ("linear_cross_entropy", "forward", "fp32", {"m": 37}),
        ("attention", "forward", "fp32", {"l": 50}),
        ("attention_fp8", "forward", "fp8e4m3", {"l": 50}),
        ("attention_decode", "forward", "bf16", {"queries": 4}),
        ("grouped_matmul", "backward", "bf16", {"groups": 2}),
    ],
)
def test_what_torch_tunes_is_the_peer_named_torch_compiled(kernel, direction, dtype, sizes, monkeypatch):
    asked = []

    def uncompiled(function, dynamic=None, mode=None):
        asked.append(mode)
        return function

    declaration = importlib.import_module(f"kernels.{kernel}").DECLARATION
    one = next(
        one
        for one in declaration.edge_cases
        if one.dtype == dtype and all(dict(one.sizes)[key] == value for key, value in sizes.items())
    )
    work = getattr(declaration, direction)
    given = draw(work, one, torch.device("cpu"), 0)
    monkeypatch.setattr(torch, "compile", uncompiled)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    (searching,) = (peer for peer in work.peers.values() if peer.searches)
    found, expected = as_tuple(searching.prepare(**given)()), as_tuple(work.peers["torch"].prepare(**given)())
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    assert asked == ["max-autotune-no-cudagraphs"]


def test_a_peer_that_is_weak_must_be_one_of_the_peers():
    with pytest.raises(ValueError, match="weak names flash, but the peers are torch"):
        Pass(None, None, (), (), {"torch": Peer(None)}, None, None, weak={"flash": "in bf16"})
