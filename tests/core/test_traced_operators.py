"""Operators under torch.compile and autograd: one graph, the gradients of eager calls, no second registration."""

import shutil
import sys
import types

import pytest
import torch
from atlas.operators import Differentiable, constant_result
from operator_doubles import Kernel, a_cpu_that_counts_as_a_gpu, doubling, operator  # noqa: F401 - the fixture is of each test


def test_torch_compile_sees_one_operator_without_a_graph_break():
    kernel = Kernel()
    double = operator(doubling(kernel))
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compile(lambda x: double(x) + 1, fullgraph=True, backend=keep)(torch.randn(8))
    called = [str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    assert sum(double.name.replace("::", ".") in name for name in called) == 1


def real(x):
    return x * 2


def test_the_gradient_is_the_same_eager_and_compiled():
    double = operator(real)
    twice = Differentiable(double, lambda ctx, inputs, output: None, lambda ctx, grad: double(grad.contiguous()))
    expected = torch.full((3, 5), 6.0)
    for function in (
        lambda x: twice(x) * 3,
        torch.compile(lambda x: twice(x) * 3, fullgraph=True, backend="aot_eager"),
    ):
        x = torch.randn(3, 5, requires_grad=True)
        function(x).sum().backward()
        torch.testing.assert_close(x.grad, expected)
    torch.library.opcheck(double.op, (torch.randn(4, requires_grad=True),))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_repeats_recordings_in_both_passes(backend):
    forward, backward = Kernel(), Kernel()
    double, back = operator(doubling(forward)), operator(doubling(backward))
    twice = Differentiable(double, lambda ctx, inputs, output: None, lambda ctx, grad: back(grad.contiguous()))
    compiled = torch.compile(lambda x: twice(x) * 3, fullgraph=True, backend=backend)
    for _ in range(4):
        compiled(torch.randn(4, 6, requires_grad=True)).sum().backward()
    assert [(len(kernel.launched), len(kernel.repeated)) for kernel in (forward, backward)] == [(1, 3), (1, 3)]


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor compiles for the CPU by g++, which is not here")
def test_inductor_knows_operators_of_both_passes_before_it_meets_them():
    from torch._inductor import config
    from torch._inductor.lowering import FALLBACK_ALLOW_LIST

    double, back = operator(real), operator(real)
    twice = Differentiable(double, lambda ctx, inputs, output: None, lambda ctx, grad: back(grad.contiguous()))
    x = torch.randn(4, 6, requires_grad=True)
    # Without implicit_fallbacks it refuses what it does not know; with it torch before 2.13 takes minutes for a deep
    # network.  What lies in caches from another run is not traced.
    with config.patch(implicit_fallbacks=False, force_disable_caches=True):
        # Nothing but the two: what inductor writes itself goes through a C++ compiler, 12 s of a processor.
        torch.compile(lambda x: twice(x), fullgraph=True, backend="inductor")(x).backward(torch.full((4, 6), 3.0))
    torch.testing.assert_close(x.grad, torch.full((4, 6), 6.0))
    assert {double.name, back.name} <= FALLBACK_ALLOW_LIST


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor compiles for the CPU by g++, which is not here")
def test_what_inductor_computes_for_several_operators_lies_in_memory_once_and_as_it_was_traced():
    """It pads rows, to 128 bytes here, of which a launcher knows nothing whose public function asked for none."""
    from torch._inductor import config

    given = []

    def noted(x):
        given.append((x.data_ptr(), x.stride()))
        return x * 2

    def function(x, y):
        rows = (x + y).view(12, 1030)
        return [double(rows) for double in doubles]

    doubles, (x, y) = [operator(noted) for _ in range(2)], torch.randn(2, 4, 3, 1030)
    with config.patch(force_disable_caches=True, disable_padding_cpu=False):
        found = torch.compile(function, fullgraph=True, backend="inductor")(x, y)
    torch.testing.assert_close(found, 2 * [2 * (x + y).view(12, 1030)])
    assert given[0] == given[1] and given[0][1] == (1030, 1)


def test_an_inductor_without_a_list_of_operators_to_call_is_told_none(monkeypatch):
    """As one that another thread is importing, which lies there without its names."""
    double = operator(real)
    monkeypatch.setitem(sys.modules, "torch._inductor.lowering", types.ModuleType("lowering"))
    assert double.op(torch.empty(3, device="meta")).shape == (3,)


def test_without_a_gradient_asked_for_none_is_kept():
    twice = Differentiable(operator(real), lambda ctx, inputs, output: None, lambda ctx, grad: grad)
    x = torch.randn(3, requires_grad=True)
    assert twice(x).requires_grad
    with torch.no_grad():
        assert not twice(x).requires_grad
    assert not twice(x.detach()).requires_grad


def test_a_file_loaded_under_another_name_registers_operators_of_its_own():
    source = (
        "from atlas.operators import CustomOperator\n"
        "import torch\n"
        "op = CustomOperator('same_name', '(Tensor x) -> Tensor', run=lambda x: x + 1, fake=torch.empty_like)\n"
    )
    modules = []
    for name in ("kernels.trial", "atlas_planted_trial"):
        scope = {"__name__": name}
        exec(source, scope)
        modules.append(scope["op"])
    assert [module.name for module in modules] == [
        "kernel_atlas::same_name", "kernel_atlas__atlas_planted_trial::same_name",
    ]  # fmt: skip


def test_a_constant_result_is_marked_as_torch_marks_it_and_traced_once():
    answers = iter((2, 3))

    @constant_result
    def answer():
        return next(answers)

    assert vars(answer) == vars(torch.compiler.assume_constant_result(lambda: 0))
    compiled = torch.compile(lambda x: x * answer(), fullgraph=True, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(())) == 2
