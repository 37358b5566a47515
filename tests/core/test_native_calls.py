"""The extension in C++ at work: what it repeats of calls and gradients, and what is left to Python."""

import contextlib
import ctypes
import sys
import threading
import time
import types

import pytest
import torch
from atlas.declaration.products import fp32_precision
from atlas.operators import (
    CustomOperator,
    Differentiable,
    building,
    call,
    contiguous,
    direct,
    launch,
    native,
    plan,
    step,
)
from atlas.operators.native import Extension
from operator_doubles import Kernel, a_map, operator, replace


@pytest.fixture(scope="module")
def module():
    if building.compiler() is None:
        pytest.skip("no compiler for C++")
    return building.load(building.build())


@pytest.fixture
def extension(module, monkeypatch):
    """The extension, in use for CPU tensors until the test ends; operators are those that the test makes."""
    made = Extension()
    monkeypatch.setattr(sys.modules["atlas.operators.operator"], "extension", made)
    monkeypatch.setattr(native, "extension", made)
    monkeypatch.setattr(CustomOperator, "repeats_on", ("cpu",))
    monkeypatch.setattr(call, "_current_device", lambda: -1)
    active = types.SimpleNamespace(get_current_stream=lambda index: 5)
    monkeypatch.setattr(plan.triton, "runtime", types.SimpleNamespace(driver=types.SimpleNamespace(active=active)),
                        raising=False)  # fmt: skip
    made._started = threading.Thread()
    made.use(module, torch.device("cpu"), stream=lambda index: 5)
    return made


class Filling(Kernel):
    """A kernel that, repeated, writes twice what lies at its first address to its second."""

    arg_names = ("x_ptr", "out_ptr", "n", "seed")

    def _repeat(self, *words):
        super()._repeat(*words)
        x, out, n = words[9:12]
        given, found = ((ctypes.c_float * n).from_address(address) for address in (x, out))
        found[:] = [2 * value for value in given]

    def __getitem__(self, grid):
        def run(*args, **meta):
            self.launched.append((grid, args))
            args[1].copy_(2 * args[0])
            return types.SimpleNamespace(run=self._repeat, function="function", packed_metadata="metadata")

        return run


def doubling(kernel, **options):
    def run(x):
        out = torch.empty_like(x)
        launch(kernel, (3,), x, out, x.numel())
        return out

    return operator(run, **options)


def differentiable(back=None):
    forward, backward = Filling(), Filling()
    double, pull = doubling(forward), doubling(backward)
    pulled = []

    def pull_back(ctx, dy):
        pulled.append(dy)
        return back(ctx, dy, pull) if back else pull(contiguous(dy))

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    return Differentiable(double, keep, pull_back), pulled, backward


def gradient(twice, upstream=None):
    x = torch.randn(4, 6, requires_grad=True)
    y = twice(x)
    assert torch.equal(y.detach(), 2 * x.detach())
    (dx,) = torch.autograd.grad(y, x, torch.ones(4, 6) if upstream is None else upstream)
    return y.grad_fn, dx


@pytest.mark.slow
def test_a_gradient_in_python_is_made_without_it_once_it_has_been_watched(extension):
    twice, pulled, backward = differentiable()
    for number in range(6):
        node, dx = gradient(twice, torch.full((4, 6), float(number)))
        assert torch.equal(dx, torch.full((4, 6), 2.0 * number))
    assert type(node).__name__ == "CppFunction" and node.name().startswith("trial_")
    assert len(pulled) < 6 and len(backward.repeated) > len(pulled) - 2


@pytest.mark.slow
def test_what_torch_does_beside_is_repeated_as_a_step_and_else_by_python(extension):
    for beside, times in ((lambda dy: step(torch.neg, dy), range(2, 4)), (torch.neg, range(8, 9))):
        twice, pulled, _ = differentiable(lambda ctx, dy, pull, beside=beside: pull(beside(dy)))
        for _ in range(8):
            assert torch.equal(gradient(twice)[1], torch.full((4, 6), -2.0))
        assert len(pulled) in times


@pytest.mark.slow
def test_gradients_of_another_layout_are_watched_anew(extension):
    twice, pulled, _ = differentiable()
    for _ in range(4):
        gradient(twice)
    before = len(pulled)
    for _ in range(4):
        upstream = torch.randn(6, 4)
        assert torch.equal(gradient(twice, upstream.t())[1], 2 * upstream.t())
        assert torch.equal(gradient(twice, torch.ones(1, 1).expand(4, 6))[1], torch.full((4, 6), 2.0))
    assert before < len(pulled) < before + 8


@pytest.mark.slow
def test_results_that_are_views_and_gradients_that_are_passed_on_are_repeated(extension):
    twice, pulled, _ = differentiable(lambda ctx, dy, pull: pull(dy).view(2, 12).view(4, 6))
    other, passed, _ = differentiable(lambda ctx, dy, pull: dy)
    for _ in range(6):
        assert torch.equal(gradient(twice)[1], torch.full((4, 6), 2.0))
        assert torch.equal(gradient(other)[1], torch.ones(4, 6))
    assert len(pulled) < 6 and len(passed) < 6


@pytest.fixture
def precision():
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["precision", "deterministic"])
def test_a_gradient_asks_torchs_switches_as_they_stand_when_it_runs(extension, precision, switch):
    """It passes on what they say as a constant, which another forward and backward must not be given."""
    forward, plain, other = Filling(), Filling(), Filling()
    double = doubling(forward)

    def run(dy, switched):
        out = torch.empty_like(dy)
        launch(other if switched else plain, (3,), dy, out, dy.numel())
        return out

    pull = operator(run, "(Tensor dy, bool switched) -> Tensor", lambda dy, switched: torch.empty_like(dy))
    asked = {
        "precision": lambda: fp32_precision() == "tf32",
        "deterministic": torch.are_deterministic_algorithms_enabled,
    }
    turn = {"precision": lambda on: precision("high" if on else "highest"),
            "deterministic": torch.use_deterministic_algorithms}[switch]  # fmt: skip
    twice = Differentiable(
        double, lambda ctx, inputs, output: None, lambda ctx, dy: pull(contiguous(dy), asked[switch]())
    )
    try:
        for word in (True, True, True, True, False, False, False, True, False):
            x = torch.randn(4, 6, requires_grad=True)
            turn(True)
            y = twice(x)
            turn(word)
            counts = [len(kernel.launched) + len(kernel.repeated) for kernel in (plain, other)]
            torch.autograd.grad(y, x, torch.ones(4, 6))
            counts = [len(k.launched) + len(k.repeated) - n for k, n in zip((plain, other), counts, strict=True)]
            assert counts == [not word, word]
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.slow
def test_calls_of_other_threads_go_on_while_the_extension_arrives(extension, module):
    twice, _, _ = differentiable()
    double, failed, rounds = doubling(Filling()), [], [0, 0]
    until = time.monotonic() + 5

    def work(number):
        try:
            while time.monotonic() < until:
                upstream, x = torch.randn(4, 6), torch.randn(5, 7)
                assert torch.equal(gradient(twice, upstream)[1], 2 * upstream)
                assert torch.equal(double(x), 2 * x)
                rounds[number] += 1
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    times = 0
    while time.monotonic() < until:
        extension.use(module, torch.device("cpu"), stream=lambda index: 5)
        times += 1
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert not failed and times > 5 and min(rounds) > 5


@pytest.mark.slow
def test_a_graph_is_used_once_unless_it_is_kept(extension):
    twice, _, _ = differentiable()
    for _ in range(3):
        gradient(twice)
    x = torch.randn(4, 6, requires_grad=True)
    y = twice(x).sum()
    for _ in range(3):
        torch.autograd.grad(y, x, retain_graph=True)
    torch.autograd.grad(y, x)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(y, x)


@pytest.mark.slow
def test_a_saved_tensor_that_is_changed_in_its_place_is_told(extension):
    twice, _, _ = differentiable()
    for _ in range(3):
        gradient(twice)
    x = torch.randn(4, 6, requires_grad=True)
    y = twice(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.slow
def test_an_error_in_a_gradient_arrives_as_it_was_raised(extension):
    class Own(Exception):
        pass

    def failing(ctx, dy, pull):
        raise Own("here")

    twice, _, _ = differentiable(failing)
    for _ in range(4):
        with pytest.raises(Own, match="here"):
            gradient(twice)


@pytest.mark.slow
def test_calls_that_somebody_sees_are_left_to_python(extension):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    kernel, seen = Filling(), []
    double, x = doubling(kernel), torch.randn(4, 6)
    for _ in range(3):
        double(x)
    assert double._native(x) is not NotImplemented
    with Mode():
        assert double._native(x) is NotImplemented
        assert torch.equal(double(x), 2 * x) and double.op in seen
    assert double._native(x.as_subclass(torch.nn.Buffer)) is NotImplemented
    assert double._native(torch._neg_view(x)) is NotImplemented
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autograd.forward_ad.dual_level())
        assert double._native(x) is NotImplemented
    torch.func.vmap(lambda y: seen.append(double._native(x) is NotImplemented) or y)(x)
    assert seen[-1] is True


@pytest.mark.slow
def test_calls_of_the_dispatcher_are_repeated_without_python(extension):
    kernel, x = Filling(), torch.randn(4, 6)
    double = doubling(kernel)
    twice = Differentiable(double, lambda ctx, inputs, output: None, lambda ctx, dy: 2 * dy)
    for _ in range(3):
        double.op(x)
    double._plans.clear()
    for prepared in (contextlib.nullcontext, torch.no_grad, torch._C._AutoDispatchBelowAutograd, torch.inference_mode):
        before = len(kernel.launched), len(kernel.repeated)
        with prepared():
            assert torch.equal(double.op(x), 2 * x)
        assert (len(kernel.launched), len(kernel.repeated)) == (before[0], before[1] + 1)
    assert not double._plans and twice(x.requires_grad_()).requires_grad


@pytest.mark.slow
def test_calls_of_the_dispatcher_that_are_not_plain_are_python_s(extension):
    twice, pulled, _ = differentiable()
    double, x = twice.operator, torch.randn(4, 6)
    for _ in range(3):
        double.op(x)
    y = x.clone().requires_grad_()
    (dx,) = torch.autograd.grad(double.op(y), y, torch.ones(4, 6))
    assert torch.equal(dx, torch.full((4, 6), 2.0)) and pulled
    assert torch.equal(double.op(torch._neg_view(x)), -2 * x)
    assert double.op(x.to("meta")).is_meta
    compiled = torch.compile(lambda x: double.op(x) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), 2 * x + 1)
    torch.library.opcheck(double.op, (y,))


@pytest.mark.slow
def test_what_torch_computes_between_launches_is_repeated_without_python(extension, monkeypatch):
    told = []
    monkeypatch.setattr(
        sys.modules["atlas.operators.operator"], "direct", lambda *words: told.append(direct.direct(*words)) or told[-1]
    )

    def run(x, w, bias):
        parts = torch.empty((8, 10), dtype=x.dtype)
        torch.mm(x[:4], w.t(), out=parts[:4])
        torch.mm(x[4:], w.t(), out=parts[4:])
        total = parts.sum(dim=0, dtype=torch.float64)
        share = torch.addmm(bias, x, w.t(), beta=2, alpha=0.5)
        share.add_(parts)
        return share, total.to(torch.float32), x.new_zeros((3, 2))

    schema = "(Tensor x, Tensor w, Tensor bias) -> (Tensor, Tensor, Tensor)"
    linear = operator(run, schema, lambda x, w, bias: run(x, w, bias))
    for turn in range(4):
        whole = torch.randn(9, 6)
        given = whole[1:], torch.randn(10, 6), torch.randn(10)
        expected = run(*given)
        with torch.autocast("cpu", enabled=turn > 1), torch.inference_mode(turn == 3):
            found = linear(*given)
            again = linear._native(*given)
        assert again is not NotImplemented and len(told) == 1
        for results in (found, again):
            for x, y in zip(results, expected, strict=True):
                assert x.dtype == y.dtype and torch.equal(x, y)
    dropped = [number for _, _, gone in told[0][1] for number in gone]
    assert len(dropped) == len(set(dropped)) and {0, 1} <= set(dropped)
    assert not linear.obstacles


class Scaling(Filling):
    """Writes twice what lies at its first address in its place."""

    def _repeat(self, *words):
        Kernel._repeat(self, *words)
        x, _, n = words[9:12]
        found = (ctypes.c_float * n).from_address(x)
        found[:] = [2 * value for value in found]

    def __getitem__(self, grid):
        def run(*args, **meta):
            self.launched.append((grid, args))
            args[0].mul_(2)
            return types.SimpleNamespace(run=self._repeat, function="function", packed_metadata="metadata")

        return run


@pytest.mark.slow
def test_a_gradient_that_is_scaled_in_its_place_can_be_asked_for_once(extension):
    forward, scaling = Filling(), Scaling()
    double = doubling(forward)

    def scale(x, dy):
        launch(scaling, (3,), x, dy, x.numel())

    first, second = (operator(scale, "(Tensor(a!) x, Tensor dy) -> ()", lambda x, dy: None) for _ in range(2))
    pulled = []

    def pull(ctx, dy):
        pulled.append(dy)
        (y,) = ctx.saved_tensors
        for in_place in (first, second):
            in_place(y, dy)
            torch.autograd.graph.increment_version(y)
        return y.detach()

    twice = Differentiable(double, lambda ctx, inputs, output: ctx.save_for_backward(output), pull)
    for turn in range(8):
        if turn == 7:
            second._plans.clear()
            second._native.forget()  # so that Python makes both calls, and the first has not been made yet
        x = torch.randn(4, 6, requires_grad=True)
        y = twice(x)
        (dx,) = torch.autograd.grad(y, x, torch.ones(4, 6), retain_graph=True)
        assert torch.equal(dx, 8 * x.detach()) and torch.equal(y.detach(), dx)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(y, x, torch.ones(4, 6))
    assert len(pulled) < 6 and first._native(torch.ones(4, 6), torch.ones(4, 6)) is None


def with_driver(extension, module, monkeypatch, launched):
    """A call of the extension whose launches go to ``launched``."""
    functions = ctypes.cast(launched, ctypes.c_void_p).value, 0, 0, 0, ctypes.cast(replace, ctypes.c_void_p).value
    monkeypatch.setattr(native, "addresses", lambda: functions)
    extension.use(module, torch.device("cpu"), stream=lambda index: 5)
    return module.call("trial", 0b10, 0, None)


@pytest.mark.slow
def test_a_map_is_passed_with_the_address_of_the_call(extension, module, monkeypatch):
    seen = []

    @LAUNCH
    def launched(config, function, parameters, extra):
        given = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))
        seen.append((given[0] % 64, ctypes.string_at(given[0], 128), ctypes.string_at(given[2], 128)))
        return 0

    called = with_driver(extension, module, monkeypatch, launched)
    slots = ((4, 0, 0, 0), (3, 0, 0, 4), (4, 1, 0, 0))
    maps = (((0, 0, 8, 0), a_map(1)), ((1, 0, 4, 0), a_map(2)))
    one = (99, (1, 1, 1), 128, 0, False, False, 1, slots, maps)
    recording = ((((4, 7), (7, 1), torch.float16, False),), ((False, one, ()),),
                 ((0, True, (4, 7), (7, 1), 0),), True, ())  # fmt: skip
    assert called.learn((torch.randn(4, 6), 3), recording, True)
    for _ in range(3):
        x = torch.randn(4, 6)
        out = called(x, 1)
        assert seen[-1] == (0, a_map(x.data_ptr() + 8), a_map(out.data_ptr() + 4))


class Attribute(ctypes.Structure):
    """The driver's CUlaunchAttribute, of those whose value is a number or three."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16))


class Config(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = (("grid", ctypes.c_uint * 3), ("threads", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)),
                ("count", ctypes.c_uint))  # fmt: skip

    def told(self):
        attributes = {one.id: tuple(one.value[:3]) for one in self.attributes[: self.count]}
        return tuple(self.grid), tuple(self.threads), self.shared, self.stream, attributes


LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Config), *[ctypes.c_void_p] * 3)
COOPERATIVE, CLUSTER, SPREAD, EARLY = 2, 4, 5, 6
"""CU_LAUNCH_ATTRIBUTE_COOPERATIVE, _CLUSTER_DIMENSION, _CLUSTER_SCHEDULING_POLICY_PREFERENCE and
_PROGRAMMATIC_STREAM_SERIALIZATION of cuda.h."""
YES = (1, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cooperative", "early", "cluster", "attributes"),
    [(False, False, 1, {}), (True, False, 1, {COOPERATIVE: YES}), (False, True, 1, {EARLY: YES}),
     (False, False, 3, {CLUSTER: (3, 1, 1), SPREAD: YES}),
     (True, True, 2, {COOPERATIVE: YES, EARLY: YES, CLUSTER: (2, 1, 1), SPREAD: YES})],
    ids=["plain", "cooperative", "early", "in clusters", "all"],
)  # fmt: skip
def test_a_recording_in_numbers_is_allocated_and_launched(
    cooperative, early, cluster, attributes, extension, module, monkeypatch
):
    seen = []

    @LAUNCH
    def launched(config, function, parameters, extra):
        given = ctypes.cast(parameters, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))
        seen.append((function, *config[0].told(), [given[n][0] for n in range(4)]))
        return 0 if function == 99 else 7

    called = with_driver(extension, module, monkeypatch, launched)
    x = torch.randn(4, 6)
    for function in (99, 98):
        slots = ((0, 0, 8, 0), (1, 0, 4, 0), (2, 1, 0, 0), (3, 0, 0, 77))
        recording = ((((4, 7), (7, 1), torch.float16, False),),
                     ((False, (function, (6, 2, 1), 128, 512, cooperative, early, cluster, slots, ()), ()),),
                     ((0, False, (2, 7), (7, 1), 14), (0, True, (4, 7), (7, 1), 0)), False, ())  # fmt: skip
        assert called.learn((x, 3), recording, False) and not called.learn((x, 4), recording, False)
        if function == 98:
            with pytest.raises(RuntimeError, match="cuLaunchKernelEx failed: CUDA driver error 7"):
                called(x, 5)
            break
        part, whole = called(x, 12345)
        assert (part.shape, whole.shape, whole.dtype) == ((2, 7), (4, 7), torch.float16)
        assert part.data_ptr() == whole.data_ptr() + 28
        given = [x.data_ptr() + 8, whole.data_ptr() + 4, 12345, 77]
        assert seen == [(99, (6, 2, 1), (128, 1, 1), 512, 5, attributes, given)]
        called.forget()
        assert called(x, 1) is NotImplemented
