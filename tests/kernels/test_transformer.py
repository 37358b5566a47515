"""A small transformer of kernels.nn trains as its twin of torch's modules does, also under torch.compile."""

import collections
import dataclasses
import threading
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

import kernels
from kernels import nn
from proofs.models import decoder as transformer


def curves(steps, compiled=False):
    plain, ours = transformer.twins(transformer.SMALL)
    data = transformer.batches(transformer.SMALL, steps)
    step = torch.compile(ours, fullgraph=True, backend="aot_eager") if compiled else ours
    return transformer.train(plain, plain, data, 1e-2), transformer.train(step, ours, data, 1e-2)


def test_it_trains_to_the_loss_curve_of_its_torch_twin():
    expected, found = curves(16)
    assert expected[-1] < expected[0] - 0.8  # it learns, so that there is a curve
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=0, atol=1e-4)


def test_under_torch_compile_it_is_one_graph_and_trains_alike():
    expected, found = curves(2, compiled=True)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=0, atol=1e-4)


def operators_traced(layers, steps):
    """(graphs that the model was traced into, operators of this project in each of its two passes)."""
    torch._dynamo.reset()
    graphs, passes = [], []

    def keep(graph, inputs):
        nodes = collections.Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        passes.append(sum(count for name, count in nodes.items() if name.startswith("kernel_atlas.")))
        return graph.forward

    def backend(graph, inputs):
        graphs.append(graph)
        return aot_autograd(fw_compiler=keep)(graph, inputs)

    sizes = dataclasses.replace(transformer.SMALL, layers=layers)
    ours = transformer.twins(sizes)[1]
    step = torch.compile(ours, fullgraph=True, backend=backend)
    transformer.train(step, ours, transformer.batches(sizes, steps), 1e-2)
    return len(graphs), passes


def test_torch_compile_traces_it_once_whatever_the_steps_and_a_layer_adds_the_same_operators_each_time():
    (once, one), (again, two), (third, three) = (operators_traced(layers, 2) for layers in (1, 2, 3))
    assert once == again == third == 1 and len(one) == 2
    added = [[b - a for a, b in zip(less, more, strict=True)] for less, more in ((one, two), (two, three))]
    assert added == [[10, 10], [10, 10]], "few rows: both gradients of a linear layer are one operator"


def test_parts_that_are_not_named_are_torchs():
    _, mixed = transformer.twins(transformer.SMALL, parts=("RMSNorm", "attention"))
    assert isinstance(mixed.norm, nn.RMSNorm) and not isinstance(mixed.embedding, nn.Embedding)
    assert mixed.blocks[0].attention is kernels.scaled_dot_product_attention


def test_whoever_takes_long_is_shown_where_he_stands_and_for_how_long(capfd, monkeypatch):
    shown, show, times = threading.Event(), transformer.show_threads, iter((7.0, 7.3))

    def waits():
        shown.wait()

    def tell():
        show()
        shown.set()

    monkeypatch.setattr(transformer, "show_threads", tell)
    monkeypatch.setattr(transformer, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    with transformer.told("a pass", 0.05, waits):
        pass
    said = capfd.readouterr()
    assert said.out.splitlines()[0] == "a pass: …" and "a pass: 0.3 s" in said.out
    assert "in waits" in said.err


def test_its_state_dict_is_that_of_its_torch_twin():
    plain, ours = transformer.twins(transformer.SMALL)
    assert plain.state_dict().keys() == ours.state_dict().keys()


@pytest.mark.parametrize(
    ("name", "arguments", "shapes"),
    [
        ("LayerNorm", (12,), [(5, 12)]),
        ("RMSNorm", (12,), [(5, 12)]),
        ("GELU", (), [(5, 12)]),
        ("GELU", ("tanh",), [(5, 12)]),
        ("SiLU", (), [(5, 12)]),
        ("Softmax", (-1,), [(5, 12)]),
        ("LogSoftmax", (0,), [(5, 12)]),
        ("Dropout", (0.0,), [(5, 12)]),
    ],
    ids=str,
)
def test_a_module_gives_what_torchs_does_with_the_same_state_dict(name, arguments, shapes):
    ours, torchs = getattr(nn, name)(*arguments), getattr(torch.nn, name)(*arguments)
    assert isinstance(ours, type(torchs))
    assert repr(ours) == repr(torchs)
    generator = torch.Generator().manual_seed(0)
    for parameter in torchs.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    ours.load_state_dict(torchs.state_dict())
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    torch.testing.assert_close(ours(*inputs), torchs(*inputs))


def test_embedding_and_losses_give_what_torchs_do():
    tokens, x = torch.tensor([[1, 3], [0, 3]]), torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    ours, torchs = nn.Embedding(5, 6, padding_idx=3), torch.nn.Embedding(5, 6, padding_idx=3)
    ours.load_state_dict(torchs.state_dict())
    assert torch.equal(ours(tokens), torchs(tokens))
    expected = torch.nn.CrossEntropyLoss(label_smoothing=0.1)(x, tokens.flatten())
    torch.testing.assert_close(nn.CrossEntropyLoss(label_smoothing=0.1)(x, tokens.flatten()), expected)
    fused = nn.LinearCrossEntropyLoss(6, 5, out_features=(), bias=True, weight=None, options=None)  # torch's defaults
    logits = torch.nn.functional.linear(x, fused.linear.weight, fused.linear.bias)
    torch.testing.assert_close(fused(x, tokens.flatten()), torch.nn.functional.cross_entropy(logits, tokens.flatten()))


@pytest.mark.parametrize("name", ["out_features", "weight", "options"])
def test_a_fused_loss_says_which_of_torchs_arguments_it_lacks(name):
    with pytest.raises(NotImplementedError, match=name):
        nn.LinearCrossEntropyLoss(6, 5, **{name: torch.ones(5)})


def test_a_fused_layer_norm_and_linear_have_the_state_dict_of_their_sequence():
    ours = nn.LayerNormLinear(8, 12)
    sequence = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 12))
    sequence.load_state_dict(ours.state_dict())
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x), sequence(x), rtol=1e-4, atol=1e-5)


def test_rotary_tables_stay_fp32_whatever_the_model_is_cast_to():
    rotary = nn.RotaryEmbedding(8, 16)
    cos = rotary.cos.clone()
    assert torch.equal(rotary.to(torch.bfloat16).cos, cos) and not rotary.state_dict()
    x = torch.randn(2, 6, 3, 8, generator=torch.Generator().manual_seed(0))
    expected, _ = transformer._TorchRotary(8, 16)(x, x)
    torch.testing.assert_close(rotary(x), expected)
    later = rotary(x[:, 2:], positions=torch.arange(2, 6))
    torch.testing.assert_close(later, expected[:, 2:])


def test_rotary_tables_are_made_when_a_model_comes_from_the_meta_device():
    with torch.device("meta"):
        rotary = nn.RotaryEmbedding(8, 16)
    model = torch.nn.Sequential(rotary).to_empty(device="cpu")
    assert torch.equal(model[0].cos, nn.RotaryEmbedding(8, 16).cos)
    assert torch.equal(model[0].sin, nn.RotaryEmbedding(8, 16).sin)


def test_what_a_module_does_not_do_is_refused():
    for name in ("Dropout", "SiLU"):
        with pytest.raises(NotImplementedError, match="inplace"):
            getattr(nn, name)(inplace=True)
    for name in ("Softmax", "LogSoftmax"):
        with pytest.raises(ValueError, match="dimension"):
            getattr(nn, name)()
    with pytest.raises(ValueError, match="odd"):
        nn.RotaryEmbedding(7, 16)
    with pytest.raises(ValueError, match="16 positions"):
        nn.RotaryEmbedding(8, 16)(torch.zeros(1, 17, 1, 8))
