"""Recordings: what is repeated equals what was launched, and what differs is recorded anew."""

import contextlib
import gc

import pytest
import torch
import triton
from atlas.operators import CustomOperator
from calls import test_aliases
from calls.table import BF16, CALLS, DIFFERENTIABLE, FP16, FP32, weighted

import kernels

pytestmark = pytest.mark.gpu


@contextlib.contextmanager
def watching():
    """While somebody watches nothing is repeated, in no thread: every launch goes through Triton, and tells."""
    seen, hook = [], triton.knobs.runtime.launch_enter_hook

    def see(metadata):
        seen.append(metadata)

    hook.add(see)
    try:
        yield seen
    finally:
        hook.remove(see)


def obstacles():
    """Why calls are not repeated, of every operator of this process that knows of a reason."""
    return {o.name: set(o.obstacles) for o in gc.get_objects() if isinstance(o, CustomOperator) and o.obstacles}


def assert_equal(found, expected):
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype and x.stride() == y.stride() and torch.equal(x, y)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.label)
def test_a_call_is_repeated_from_a_recording_that_equals_it_bit_by_bit(call, launches):
    inputs, others = call.draw("cuda"), call.draw("cuda", seed=1)
    for _ in range(3):
        call.run(inputs)
    with watching():
        expected, of_others = call.run(inputs), call.run(others)
    launches.clear()
    assert_equal(call.run(inputs), expected)
    assert_equal(call.run(others), of_others)
    assert launches == [], obstacles()


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=lambda call: call.label)
def test_gradients_are_repeated_from_recordings_that_equal_them_bit_by_bit(call, launches):
    def gradients(seed):
        inputs = call.leaves(call.draw("cuda", seed=seed))
        return torch.autograd.grad(weighted(call.run(inputs)), [inputs[name] for name in call.wanting])

    for _ in range(3):
        gradients(0)
    with watching():
        expected = gradients(1)
    launches.clear()
    assert_equal(gradients(1), expected)
    assert launches == [], obstacles()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.label)
def test_a_repeated_call_is_cheaper_to_the_host_than_a_launched_one(call, clock, figure):
    inputs = call.draw("cuda")
    with watching() as seen:
        call.run(inputs)
    if not seen:
        pytest.skip("launches no kernel of its own: plain torch")
    for _ in range(3):
        call.run(inputs)
    repeated = clock.call_us(lambda: call.run(inputs))
    with watching():
        launched = clock.call_us(lambda: call.run(inputs))
    figure(f"host time of a call: {call.label}: {repeated:.1f} us repeated, {launched:.1f} us launched")
    assert repeated < launched


def strided(*shape, dtype=FP32):
    return torch.randn(*shape, device="cuda").to(dtype)


def off_sixteen(rows, columns, dtype=FP32):
    """Contiguous, on an address that is no multiple of 16."""
    return strided(rows * columns + 1, dtype=dtype)[1:].view(rows, columns)


KINDS = {
    # what is drawn; all of one shape, so that nothing but the named thing differs
    "plain": lambda: strided(48, 64),
    "strides": lambda: strided(64, 48).t(),
    "rows apart": lambda: strided(48, 96)[:, :64],
    "fp16": lambda: strided(48, 64, dtype=FP16),
    "bf16": lambda: strided(48, 64, dtype=BF16),
    "alignment": lambda: off_sixteen(48, 64),
    "alignment of fp16": lambda: off_sixteen(48, 64, dtype=FP16),
    "another shape": lambda: strided(47, 64),
    "one row for all": lambda: strided(1, 64).expand(48, 64),
}
FUNCTIONS = {
    "softmax": (lambda x: kernels.softmax(x, -1), lambda x: torch.softmax(x, -1)),
    "silu": (kernels.silu, torch.nn.functional.silu),
    "sum": (lambda x: kernels.sum(x, -1), lambda x: torch.sum(x, -1)),
    "rms_norm": (lambda x: kernels.rms_norm(x, (64,), eps=1e-5),
                 lambda x: torch.nn.functional.rms_norm(x, (64,), eps=1e-5)),
    "matmul": (lambda x: kernels.matmul(x, torch.ones(64, 32, device="cuda", dtype=x.dtype)),
               lambda x: x @ torch.ones(64, 32, device="cuda", dtype=x.dtype)),
    "linear": (lambda x: kernels.linear(x, torch.ones(32, 64, device="cuda", dtype=x.dtype)),
               lambda x: x @ torch.ones(64, 32, device="cuda", dtype=x.dtype)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_differs_gets_a_recording_of_its_own(name, launches):
    """All kinds in turn, twice: a recording of one kind that served another would show in its values."""
    ours, torchs = FUNCTIONS[name]
    for turn in range(3):
        for kind, draw in KINDS.items():
            x = draw()
            launches.clear()
            found, expected = ours(x), torchs(x.double())
            most = {FP32: 1e-3, FP16: 2e-2, BF16: 0.1}[x.dtype] * max(1.0, float(expected.abs().max()))
            assert float((found - expected).abs().max()) < most, (kind, turn)
            assert launches == [] or turn < 2, (kind, obstacles())


@pytest.mark.parametrize("name", test_aliases.CASES)
def test_calls_with_inputs_that_share_memory_are_recorded(name, launches):
    function, _, dtype, aliased, plain = test_aliases.CASES[name]

    def draw(*shape):
        return torch.randn(*shape, device="cuda").to(dtype)

    for _ in range(3):
        function(*aliased(draw))
        function(*plain(draw))
    for shared in (aliased, plain):
        inputs = shared(draw)
        with watching():
            expected = function(*inputs)
        launches.clear()
        assert torch.equal(function(*inputs), expected)
        assert launches == [], obstacles()


@pytest.mark.parametrize("name", ["matmul of x and its transpose", "attention with k = v", "decode over one cache"])
def test_the_host_s_time_of_calls_with_inputs_that_share_memory(name, clock, figure):
    function, _, dtype, aliased, plain = test_aliases.CASES[name]

    def draw(*shape):
        return torch.randn(*shape, device="cuda").to(dtype)

    times = {}
    for kind, drawn in (("shared", aliased(draw)), ("apart", plain(draw))):
        for _ in range(3):
            function(*drawn)
        times[kind] = clock.call_us(lambda drawn=drawn: function(*drawn))
    figure(f"host time of a call: {name}: {times['shared']:.1f} us, {times['apart']:.1f} us where none is shared")
    assert times["shared"] < 2 * times["apart"]
