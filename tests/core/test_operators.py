"""Operators: what is recorded of a call, when it is repeated, and what torch is told of it.

The kernel is a stand-in that remembers its launches, so that recordings can be made and repeated without a GPU; that
true kernels compute the same either way is validation's to say.
"""

import contextvars
import shutil
import sys
import types

import pytest
import torch
from atlas.operators import CustomOperator, Differentiable, call, constant_result, descriptors, launch, launching, plan
from torch.overrides import TorchFunctionMode
from triton.backends.nvidia import driver as nvidia
from triton.tools.tensor_descriptor import TensorDescriptor


class Parameter(types.SimpleNamespace):
    is_constexpr = False
    do_not_specialize = False
    annotation_type = None


class Kernel:
    """Computes nothing; keeps how it was launched as a kernel, and how repeated from a recording."""

    pre_run_hooks = ()
    arg_names = ("x_ptr", "out_ptr", "n", "seed")

    def __init__(self, **seed):
        self.params = [*(Parameter(name=name) for name in self.arg_names[:3]), Parameter(name="seed", **seed)]
        self.launched, self.repeated = [], []

    @staticmethod
    def fn(x_ptr, out_ptr, n, seed=0):
        pass

    def __getitem__(self, grid):
        def run(*args, **meta):
            self.launched.append((grid, args))
            return types.SimpleNamespace(run=self._repeat, function="function", packed_metadata="metadata")

        return run

    def _repeat(self, *words):
        self.repeated.append(words)


VARYING = {"do_not_specialize": True, "annotation_type": "i64"}


@pytest.fixture(autouse=True)
def a_cpu_that_counts_as_a_gpu(monkeypatch):
    monkeypatch.setattr(CustomOperator, "repeats_on", ("cpu",))
    monkeypatch.setattr(call, "_current_device", lambda: -1)
    driver = types.SimpleNamespace(active=types.SimpleNamespace(get_current_stream=lambda index: "stream"))
    monkeypatch.setattr(plan.triton, "runtime", types.SimpleNamespace(driver=driver), raising=False)


_count = iter(range(1000))


def operator(run, schema="(Tensor x) -> Tensor", fake=torch.empty_like, **options):
    return CustomOperator(f"trial_{next(_count)}", schema, run=run, fake=fake, **options)


def doubling(kernel):
    def run(x):
        out = torch.empty_like(x)
        launch(kernel, (3,), x, out, x.numel())
        return out

    return run


def test_a_second_call_repeats_the_launch_with_its_own_tensors():
    kernel = Kernel()
    double = operator(doubling(kernel))
    first, x = torch.randn(4, 6), torch.randn(4, 6)
    double(first)
    out = double(x)
    assert len(kernel.launched) == 1
    assert kernel.repeated == [
        (3, 1, 1, "stream", "function", "metadata", None, None, None, x.data_ptr(), out.data_ptr(), 24, 0)
    ]
    assert out.shape == x.shape and out.data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    "other",
    [
        torch.randn(4, 7),
        torch.randn(6, 4).t(),  # the same shape with other strides
        torch.randn(4, 6).to(torch.float16),
        torch.randn(25)[1:].view(4, 6),  # no longer on 16 bytes: kernels are compiled for that
    ],
    ids=["shape", "strides", "dtype", "alignment"],
)
def test_tensors_of_another_kind_are_recorded_anew(other):
    kernel = Kernel()
    double = operator(doubling(kernel))
    double(torch.randn(4, 6))
    double(other)
    assert len(kernel.launched) == 2 and not kernel.repeated


def test_what_a_launcher_reads_of_torchs_state_is_part_of_what_a_recording_is_of():
    kernel, state = Kernel(), types.SimpleNamespace(value="ieee")
    double, x = operator(doubling(kernel), state=lambda x: state.value), torch.randn(4, 6)
    for state.value in ("tf32", "ieee", "tf32"):
        double(x)
    assert len(kernel.launched) == 2 and len(kernel.repeated) == 1


def test_scalars_are_part_of_what_a_recording_is_of():
    kernel = Kernel()

    def run(x, seed):
        out = torch.empty_like(x)
        launch(kernel, (1,), x, out, x.numel(), seed=seed)
        return out

    scaled = operator(run, "(Tensor x, int seed) -> Tensor", fake=lambda x, seed: torch.empty_like(x))
    x = torch.randn(8)
    for seed in (1, 2, 1):
        scaled(x, seed)
    assert len(kernel.launched) == 2 and [words[-1] for words in kernel.repeated] == [1]


def varying(kernel):
    def run(x, seed):
        out = torch.empty_like(x)
        launch(kernel, (1,), x, out, x.numel(), seed)
        return out

    return operator(run, "(Tensor x, int seed) -> Tensor", lambda x, seed: torch.empty_like(x), varying=("seed",))


def test_a_varying_argument_is_passed_on_and_not_recorded():
    kernel = Kernel(**VARYING)
    drop, x = varying(kernel), torch.randn(8)
    for seed in (5, 6, 7):
        drop(x, seed)
    assert len(kernel.launched) == 1 and [words[-1] for words in kernel.repeated] == [6, 7]


def test_a_kernel_compiled_for_values_of_what_varies_is_not_repeated():
    kernel = Kernel()  # seed 16 would be compiled as a multiple of 16, and 1 as a constant
    drop, x = varying(kernel), torch.randn(8)
    for seed in (16, 5, 1):
        drop(x, seed)
    assert len(kernel.launched) == 3
    assert "do_not_specialize" in " ".join(drop.obstacles)


def test_arithmetic_on_what_varies_is_refused_while_recording():
    def run(x, seed):
        return torch.empty_like(x), seed + 1

    drop = operator(run, "(Tensor x, int seed) -> Tensor", lambda x, seed: torch.empty_like(x), varying=("seed",))
    with pytest.raises(TypeError, match="varies"):
        drop(torch.randn(3), 1)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (lambda x, out: out.mul_(2), "mul_"),
        (lambda x, out: x.sum().item(), "sum"),
        (lambda x, out: x, "did not allocate"),
    ],
    ids=["arithmetic", "reading data", "returning an input"],
)
def test_a_launcher_that_does_more_is_run_each_time_and_says_why(more, said):
    kernel = Kernel()

    def run(x):
        out = torch.empty_like(x)
        launch(kernel, (1,), x, out, x.numel())
        result = more(x, out)
        return result if isinstance(result, torch.Tensor) else out

    careless = operator(run)
    for _ in range(5):
        careless(torch.randn(8))
    assert len(kernel.launched) == 5
    assert said in " ".join(careless.obstacles)


def test_what_torch_computes_between_launches_is_repeated_in_its_order():
    """Products, into views of what is allocated, too; neither gradients nor autocast get in between."""
    kernel = Kernel()

    def run(x, w):
        both = torch.empty((2, 4, 8))
        torch.mm(x[:4], w.t(), out=both[0])
        launch(kernel, (1,), both[0], both[1], 1)
        both[1].copy_(both[0])
        product = torch.addmm(w.sum(dim=1), x[4:], w.t())
        launch(kernel, (1,), product, both, 1)
        return both.to(torch.float16), product.view(2, -1), x.new_empty(0)

    fake = lambda x, w: (x.new_empty(2, 4, 8, dtype=torch.float16), x.new_empty(2, 16), x.new_empty(0))  # noqa: E731
    mixed = operator(run, "(Tensor x, Tensor w) -> (Tensor, Tensor, Tensor)", fake)
    for _ in range(3):
        x, w = torch.randn(8, 6), torch.randn(8, 6, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            found = mixed(x, w)
        torch.testing.assert_close(found[0], (x[:4] @ w.t()).half().expand(2, 4, 8))
        torch.testing.assert_close(found[1], (w.sum(1) + x[4:] @ w.t()).detach().view(2, 16))
        assert found[2].shape == (0,) and not any(y.requires_grad for y in found)
    assert not mixed.obstacles and len(kernel.launched) == 2 and len(kernel.repeated) == 4


@pytest.mark.parametrize(
    "run",
    [lambda x, y: x.add_(y), lambda x, y: torch.mm(x, torch.ones(4, 4)), lambda x, y: x.view(torch.int32) @ y],
    ids=["on an input", "with a tensor of its own", "of another dtype"],
)
def test_what_torch_computes_with_other_memory_is_not_repeated(run):
    own = operator(lambda x, y: run(x, y).clone(), "(Tensor x, Tensor y) -> Tensor", lambda x, y: torch.empty_like(x))
    x, y = torch.zeros(4, 4), torch.zeros(4, 4, dtype=torch.int32)
    for _ in range(3):
        own(x, y)
    assert own.obstacles


def test_views_scratch_and_several_outputs_are_told_by_their_memory():
    kernel = Kernel()

    def run(x):
        both = torch.empty((2, *x.shape), dtype=torch.float32)
        scratch = torch.empty(16, dtype=torch.int32)
        launch(kernel, (1,), x[1:], both[1], 1)
        launch(kernel, (2, 3), scratch, both, 1)
        return both.view(-1), both[1]

    split = operator(
        run, "(Tensor x) -> (Tensor, Tensor)", lambda x: (x.new_empty(2 * x.numel()), x.new_empty(x.shape))
    )
    split(torch.randn(4, 6))
    x = torch.randn(4, 6)
    flat, second = split(x)
    assert flat.shape == (48,) and second.shape == (4, 6)
    assert second.data_ptr() == flat.data_ptr() + 96
    one, two = kernel.repeated
    assert one[9:11] == (x.data_ptr() + 24, second.data_ptr())
    assert two[:3] == (2, 3, 1) and two[10] == flat.data_ptr()
    assert two[9] not in (x.data_ptr(), flat.data_ptr())


def test_inputs_that_share_memory_are_told_apart_by_where_they_begin():
    kernel = Kernel()

    def run(gate, up):
        out = torch.empty(gate.shape)
        launch(kernel, (1,), gate, up, 1)
        return out

    glu = operator(run, "(Tensor gate, Tensor up) -> Tensor", lambda gate, up: torch.empty(gate.shape))
    for _ in range(2):
        both = torch.randn(4, 16)
        gate, up = both.chunk(2, dim=1)
        glu(gate, up)
    assert kernel.repeated[0][9:11] == (gate.data_ptr(), up.data_ptr())


def adding(kernel, *parts):
    """An operator whose kernel reads these ``parts`` of x and y, functions of one tensor."""

    def run(x, y):
        out = torch.empty(x.shape)
        launch(kernel, (1,), *(part(tensor) for part, tensor in zip(parts, (x, y), strict=True)), 1)
        return out

    return operator(run, "(Tensor x, Tensor y) -> Tensor", lambda x, y: torch.empty(x.shape))


def test_one_tensor_given_twice_has_a_recording_of_its_own():
    kernel = Kernel()
    add, x, y = adding(kernel, lambda x: x, lambda y: y), torch.randn(8), torch.randn(8)
    for pair in ((x, x), (x, x), (x, y), (x, y), (y, y)):
        add(*pair)
    assert not add.obstacles and len(kernel.launched) == 2
    assert [words[9:11] for words in kernel.repeated] == [
        (x.data_ptr(), x.data_ptr()), (x.data_ptr(), y.data_ptr()), (y.data_ptr(), y.data_ptr()),
    ]  # fmt: skip


def test_views_of_one_memory_are_told_apart_by_the_input_that_they_are_of():
    """Where two inputs share memory, an address says nothing of which one a later call has there."""
    kernel = Kernel()
    add = adding(kernel, lambda x: x, lambda y: y[4:])
    shared = torch.randn(20)
    add(shared[4:12], shared[:8])  # y[4:] begins where x does
    x, y = torch.randn(8), torch.randn(8)
    add(x, y)
    assert not add.obstacles and len(kernel.launched) == 1
    assert kernel.repeated[0][9:11] == (x.data_ptr(), y.data_ptr() + 16)


class Launcher:
    """Takes descriptors as Triton's launcher for CUDA does, in Triton's own code, and keeps what comes of them."""

    global_scratch_size = 0

    def __init__(self, kept, metadata):
        signature = {"x_ptr": "tensordesc<fp32[4,4]>", "out_ptr": "tensordesc<fp32[4,4]>", "n": "i32", "seed": "i32"}
        # Triton 3.6 hands a kernel's arguments over after 13 others, 3.7 as one, the last
        self.spread = hasattr(nvidia, "_BASE_ARGS_FORMAT")
        self.launch = nvidia.wrap_handle_tensordesc(
            lambda *words: kept.append(tuple(words[13:] if self.spread else words[-1])), signature, metadata
        )

    def __call__(self, *words):
        arguments = words[9:]
        self.launch(*words[:9], *[None] * 4, *(arguments if self.spread else (arguments,)))


class DescriptorKernel(Kernel):
    def __init__(self, metadata):
        super().__init__()
        self.run = Launcher(self.repeated, metadata)

    def __getitem__(self, grid):
        def run(*args, **meta):
            self.launched.append((grid, args))
            return types.SimpleNamespace(run=self.run, function="function", packed_metadata="metadata")

        return run


def described(kernel):
    def run(x):
        out = torch.empty_like(x)
        rows = x[2:]
        launch(kernel, (3,), TensorDescriptor.from_tensor(rows, [4, 4]), TensorDescriptor.from_tensor(out, [4, 4]), 7)
        return out

    return operator(run)


MAP = {"swizzle": 3, "elem_size": 4, "elem_type": 7, "block_size": [4, 4], "fp4_padded": False}


@pytest.fixture
def filled(monkeypatch):
    """The maps that are filled: addresses, shapes and strides of what they are of."""
    maps = []

    def fill(address, swizzle, size, dtype, block, shape, strides, padding):
        maps.append((address, tuple(shape), tuple(strides)))
        return f"map of {address}"

    utils = types.SimpleNamespace(fill_tma_descriptor=fill, fill_tma_descriptor_tiled=fill)
    monkeypatch.setattr(plan.triton.runtime.driver.active, "utils", utils, raising=False)
    return maps


def test_a_descriptor_is_repeated_over_the_new_tensors_and_its_map_filled_once_for_each_address(filled):
    kernel = DescriptorKernel([MAP, MAP])
    copied, x = described(kernel), torch.randn(6, 8)
    copied(torch.randn(6, 8))
    for _ in range(3):
        out = copied(x)
        rows = x.data_ptr() + 64
        assert kernel.repeated[-1] == (
            f"map of {rows}", 4, 8, 8, 1, f"map of {out.data_ptr()}", 6, 8, 8, 1, 7, 0
        )  # fmt: skip
    assert len(kernel.launched) == 1 and filled.count((x.data_ptr() + 64, (4, 8), (8, 1))) == 1


def test_a_descriptor_that_the_kernel_reads_through_an_address_is_repeated_as_one():
    kernel = DescriptorKernel(None)
    copied, x = described(kernel), torch.randn(6, 8)
    copied(torch.randn(6, 8))
    copied(x)
    words = kernel.repeated[-1]
    assert len(kernel.launched) == 1
    assert words[:5] == (x.data_ptr() + 64, 4, 8, 8, 1) and words[-2:] == (7, 0)


def test_maps_of_addresses_that_never_return_do_not_fill_the_memory():
    made = []
    maps = descriptors.Maps(lambda address: made.append(address) or address)
    for address in range(3 * descriptors._MOST_MAPS):
        assert maps[address] == address == maps[address]
    assert len(made) == 3 * descriptors._MOST_MAPS and len(maps) <= descriptors._MOST_MAPS


def test_a_launcher_that_takes_descriptors_in_an_unknown_way_is_run_each_time():
    kernel = DescriptorKernel(None)
    kernel.run = types.SimpleNamespace(launch=lambda *words: None)
    copied = described(kernel)
    for _ in range(3):
        copied(torch.randn(6, 8))
    assert len(kernel.launched) == 3 and "TensorDescriptor" in " ".join(copied.obstacles)


def test_kernels_get_scratch_unless_the_caller_has_an_allocator_and_it_is_not_recorded():
    kernel = Kernel()
    mine = object()

    def check():
        launching.allow_scratch()
        assert launching._allocation._allocator.get() is launching._scratch
        plan.triton.set_allocator(mine)
        launching.allow_scratch()
        assert launching._allocation._allocator.get() is mine

    contextvars.Context().run(check)

    class Scratching(Kernel):
        def __getitem__(self, grid):
            torch.empty(99)
            return super().__getitem__(grid)

    kernel = Scratching()
    double = operator(doubling(kernel))
    double(torch.randn(8))
    x = torch.randn(8)
    out = double(x)
    assert kernel.repeated[0][9:11] == (x.data_ptr(), out.data_ptr())


def test_somebody_who_watches_allocations_sees_them():
    kernel = Kernel()
    double, x = operator(doubling(kernel)), torch.randn(8)
    double(x)

    class Watch(TorchFunctionMode):
        seen = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            Watch.seen += function is torch.empty_like
            return function(*args, **(kwargs or {}))

    with Watch():
        double(x)
    assert Watch.seen == 1 and not kernel.repeated


def test_a_default_device_watches_nothing():
    """It is a mode of torch functions as well; whoever sets one must not pay for the launcher at every call."""
    kernel = Kernel()
    double, x = operator(doubling(kernel)), torch.randn(8)
    with torch.device("cpu"):
        double(x)
        double(x)
    assert len(kernel.launched) == len(kernel.repeated) == 1


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
def test_inductor_knows_operators_of_both_passes_before_it_meets_them(monkeypatch):
    from torch._inductor import config
    from torch._inductor.lowering import FALLBACK_ALLOW_LIST

    double, back = operator(real), operator(real)
    twice = Differentiable(double, lambda ctx, inputs, output: None, lambda ctx, grad: back(grad.contiguous()))
    # Without this it refuses what it does not know; with it torch before 2.13 takes minutes for a deep network.
    monkeypatch.setattr(config, "implicit_fallbacks", False)
    monkeypatch.setattr(config, "force_disable_caches", True)  # what lies in them from another run is not traced
    x = torch.randn(4, 6, requires_grad=True)
    # Nothing but the two: what inductor writes itself goes through a C++ compiler, 12 s of a processor.
    torch.compile(lambda x: twice(x), fullgraph=True, backend="inductor")(x).backward(torch.full((4, 6), 3.0))
    torch.testing.assert_close(x.grad, torch.full((4, 6), 6.0))
    assert {double.name, back.name} <= FALLBACK_ALLOW_LIST


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
