"""CUDA graphs: captured calls, replayed, compute with what then lies in the inputs' memory."""

import pytest
import torch
from calls.table import CALLS, DIFFERENTIABLE, assert_near, weighted

import kernels

from .capturing import captured

pytestmark = pytest.mark.gpu

CAPTURED = [call for call in CALLS if call.captured]


def renew(inputs, others):
    """Other values, in the memory of the first."""
    for name, x in inputs.items():
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype.itemsize > 1:
            x.detach().copy_(others[name])


def on_a_side_stream(run):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)


@pytest.mark.parametrize("call", CAPTURED, ids=lambda call: call.label)
def test_a_call_recorded_before_is_replayed_with_new_data(call):
    inputs, others = call.draw("cuda"), call.draw("cuda", seed=1)
    on_a_side_stream(lambda: call.run(inputs))
    graph, results = captured(lambda: call.run(inputs))
    for values in (others, call.draw("cuda")):
        renew(inputs, values)
        graph.replay()
        torch.cuda.synchronize()
        assert_near(results, call.run(values), call, call.dtype)


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_a_step_forward_and_backward_is_replayed_with_new_data(call):
    inputs, others = call.leaves(call.draw("cuda")), call.leaves(call.draw("cuda", seed=1))
    wanted = [inputs[name] for name in call.wanting]

    def step():
        return torch.autograd.grad(weighted(call.run(inputs)), wanted)

    on_a_side_stream(step)
    graph, found = captured(step)
    renew(inputs, others)
    graph.replay()
    torch.cuda.synchronize()
    expected = torch.autograd.grad(weighted(call.run(others)), [others[name] for name in call.wanting])
    assert_near(found, expected, call, call.dtype, "gradient")


FIRST = {
    # Sizes that no other test uses: neither a recording nor a compiled kernel of theirs is at hand.
    "vector_add": (lambda x: kernels.vector_add(x, x.clone()), lambda x: 2 * x),
    "softmax": (lambda x: kernels.softmax(x, -1), lambda x: torch.softmax(x, -1)),
    "matmul": (lambda x: kernels.matmul(x, x.mT.contiguous()), lambda x: x @ x.mT),
    "sum": (lambda x: kernels.sum(x, 0), lambda x: torch.sum(x, 0)),
}


@pytest.mark.parametrize("name", FIRST)
def test_a_first_call_within_a_capture_is_right_or_refused_and_harms_no_later_one(name):
    ours, torchs = FIRST[name]
    x = torch.randn(52, 68, device="cuda")
    on_a_side_stream(lambda: torchs(x))
    try:
        graph, found = captured(lambda: ours(x))
    except Exception as error:
        assert isinstance(error, RuntimeError) and "captur" in str(error).lower(), error
    else:
        x.copy_(torch.randn(52, 68))
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(found, torchs(x), rtol=1e-3, atol=1e-3)
    for _ in range(3):
        torch.testing.assert_close(ours(x), torchs(x), rtol=1e-3, atol=1e-3)


def test_a_recording_made_within_a_capture_serves_calls_outside_it():
    """It must hold nothing of the graph: neither its memory nor its stream."""
    x = torch.randn(60, 92, device="cuda")
    on_a_side_stream(lambda: kernels.silu(torch.randn(60, 96, device="cuda")))  # the kernel, not this shape's recording
    graph, _ = captured(lambda: [kernels.silu(x) for _ in range(3)])
    graph.reset()
    torch.cuda.empty_cache()
    for _ in range(3):
        x = torch.randn(60, 92, device="cuda")
        torch.testing.assert_close(kernels.silu(x), torch.nn.functional.silu(x))


def test_dropout_without_a_seed_repeats_the_seed_it_was_captured_with():
    x = torch.ones(4096, device="cuda")
    on_a_side_stream(lambda: kernels.dropout(x, 0.5))
    graph, found = captured(lambda: kernels.dropout(x, 0.5))
    graph.replay()
    torch.cuda.synchronize()
    once = found.clone()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(once, found) and 0.4 < float((found == 0).float().mean()) < 0.6
