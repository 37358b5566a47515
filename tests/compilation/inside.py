"""What the tests do in the process where Triton compiles: functions that take and return plain values."""

import dataclasses
import importlib.util
import sys
import textwrap
import unittest.mock

import small_kernels
from atlas import catalog
from atlas.compilation import compiled, inspection, listings, pool, space
from atlas.compilation.offline import compile_only
from atlas.compilation.resources import resources_of
from atlas.declaration import case
from atlas.host import gpus
from atlas.reading.config import load_gpus
from atlas.workers import pool as workers


def gpu_named(name, **changes):
    return dataclasses.replace(gpus.gpu(name, load_gpus()[name]), **changes)


def defaults_of(kernel, gpu_name, dtype):
    """Rows of a catalog kernel: each variant's default config, for the dtype's case with the most traffic.

    A kernel without that dtype shows the last of its own that this GPU takes; none where it takes none.
    """
    declaration, gpu = catalog.load(kernel), gpu_named(gpu_name)
    cases = declaration.cases(gpu)
    if dtype not in declaration.dtypes:
        taken = [case.dtype for case in cases if declaration.forward.preferred(case, gpu)]
        dtype = taken[-1] if taken else None
    cases = [case for case in cases if case.dtype == dtype]
    found = []
    for direction, work in declaration.passes.items():
        for variant in work.variants:
            taken = [case for case in cases if not variant.unsupported(case, gpu)]
            if taken:
                case = space.representative(work, taken)
                config = variant.default(case, gpu)
                row = compiled.compile_config(declaration, direction, variant.name, case, config, gpu).to_json()
                found.append((variant.name, row))
    return found


def dot(gpu_name, block=64, stages=3, registers=None, **changes):
    """The result of the small dot kernel."""
    declaration, gpu = small_kernels.dots(), gpu_named(gpu_name, **changes)
    problem = next(case for case in declaration.cases(gpu) if case["block"] == block)
    config = {"BLOCK": block, "stages": stages, "registers": registers}
    return compiled.compile_config(declaration, "forward", "dot", problem, config, gpu).to_json()


def spilling_default():
    """What becomes of a config that spills where it is the default."""
    declaration, gpu = small_kernels.dots(), gpu_named("a100")
    config = {"BLOCK": 64, "stages": 1, "registers": 32}
    (variant,) = declaration.forward.variants
    variant = dataclasses.replace(variant, default=lambda problem, gpu: config)
    declaration = dataclasses.replace(
        declaration, forward=dataclasses.replace(declaration.forward, variants=(variant,))
    )
    problem = declaration.cases(gpu)[0]
    return compiled.compile_config(declaration, "forward", "dot", problem, config, gpu).to_json()


def space_of_copies(gpu_name, largest=False):
    """The candidates of the copies as tuples, and the refusals."""
    declaration, gpu = small_kernels.copies(), gpu_named(gpu_name)
    return space.enumerate_space(declaration, gpu, declaration.cases(gpu), largest)


def sample_of_copies(gpu_name, further, seed=""):
    return space.sample(space_of_copies(gpu_name, largest=True), further, seed)


def compile_misfits(names):
    """The results of the named misfits, compiled on two processes; a second is all that the one that hangs is given."""

    def expect(self, seconds, expect=workers.Worker.expect):
        hangs = self.opened and self.index is not None and names[self.index] == "hang"
        expect(self, 1.0 if hangs else seconds)

    gpu = gpu_named("h200")
    (problem,) = small_kernels.misfits().cases(gpu)
    tasks = [pool.Task(small_kernels.misfits, "forward", name, problem, {"BLOCK": 128}, gpu) for name in names]
    with unittest.mock.patch.object(workers.Worker, "expect", expect):
        return {names[index]: result for index, result in pool.compile_all(tasks, 2)}


def state_around_compile_only(fail):
    """Driver, hooks and a kernel's compilations in memory before and after a context that may end in an exception."""
    import triton

    def state():
        return (
            triton.runtime.driver._active,
            triton.knobs.runtime.jit_cache_hook,
            triton.knobs.compilation.listener,
            triton.runtime.jit.JITFunction.run,
            id(small_kernels._copy_kernel.device_caches),
        )

    marker = object()
    triton.runtime.driver.set_active(marker)
    try:
        before = state()
        try:
            with compile_only(gpu_named("t4")):
                during = triton.runtime.driver.active.get_current_target().arch
                declaration = small_kernels.copies()
                problem = declaration.cases(None)[0]
                small_kernels._copy(**compiled.meta_inputs(declaration.forward, problem), config={"BLOCK": 128})
                if fail:
                    raise RuntimeError
        except RuntimeError:
            pass
        return during, before == state()
    finally:
        triton.runtime.driver.set_active(None)


def keys_asked_for(kernel, dtype, on_memory):
    """The compilations a catalog kernel's defaults ask for on its smallest cases, on meta tensors or on real ones."""
    import torch

    declaration, gpu = catalog.load(kernel), gpu_named("h200")
    dtype = dtype if dtype in declaration.dtypes else declaration.dtypes[-1]
    keys = []
    with compile_only(gpu, compiling=False) as requests:
        for work in declaration.passes.values():
            cases = [case for case in declaration.edge_cases if case.dtype == dtype and sum(work.bytes(case).values())]
            for case in sorted(cases, key=lambda case: sum(work.bytes(case).values()))[-3:]:
                for variant in work.variants:
                    if variant.unsupported(case, gpu):
                        continue
                    inputs = compiled.meta_inputs(work, case)
                    if on_memory:
                        inputs = work.inputs(case, "cpu", torch.Generator().manual_seed(0))
                    variant.launch(config=variant.default(case, gpu), **inputs)
        keys = [request.key for request in requests]
    return keys


def loops_of_a_carried_bound():
    """How many values each loop of the kernel carries, outer first, as Triton has it before LLVM."""
    import re

    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    signature = {"out_ptr": "*i32", "parts": "i32", "count": "i32"}
    source = ASTSource(fn=small_kernels.carried_bound_kernel, signature=signature)
    text = compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttgir"]
    return [len(re.findall("= ", carried)) for carried in re.findall(r"scf\.for.*iter_args\((.*?)\)", text)]


def compile_twice():
    """The compile seconds of one config, the first time and the second."""
    declaration, gpu = small_kernels.copies(), gpu_named("a100")
    arguments = declaration, "forward", "plain", declaration.cases(gpu)[0], {"BLOCK": 2048}, gpu
    return compiled.compile_config(*arguments).seconds, compiled.compile_config(*arguments).seconds


def interpreted():
    """What the context says where kernels are interpreted."""
    import os

    from atlas.errors import AtlasError

    os.environ["TRITON_INTERPRET"] = "1"
    try:
        with compile_only(gpu_named("t4")):
            return ""
    except AtlasError as error:
        return str(error)
    finally:
        del os.environ["TRITON_INTERPRET"]


SOURCE = """
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(x_ptr, BLOCK: tl.constexpr):
        offs = tl.arange(0, BLOCK)
        tl.store(x_ptr + offs, tl.exp(tl.load(x_ptr + offs)))
"""


def digests_of_one_source(folder, gpu_name, backend=None):
    """(digests, whether the text names the folder) of one source file that lies in ``folder``."""
    import torch

    folder.mkdir(parents=True)
    path = folder / "twin.py"
    path.write_text(textwrap.dedent(SOURCE))
    specification = importlib.util.spec_from_file_location("twin", path)
    module = importlib.util.module_from_spec(specification)
    sys.modules["twin"] = module
    specification.loader.exec_module(module)
    changes = {"backend": backend, "arch": "gfx942"} if backend else {}
    with compile_only(gpu_named(gpu_name, **changes)) as requests:
        module.kernel[(1,)](torch.empty(1024, device="meta"), BLOCK=1024)
    kernel = requests[0].kernel
    text = listings.assembly(kernel)
    digests = listings.sha256_of_text(text), listings.sha256_of_binary(kernel.kernel)
    return digests, str(folder) in text, str(folder) in listings.strip_debug(text), requests[0].cached


def launch_after_compiling():
    """On the GPU here: whether a launch found what was compiled ahead, and both sides' view of the kernel."""
    import ctypes

    import torch
    import triton
    from atlas.declaration import gpu_of

    declaration, gpu = catalog.load("vector_add"), gpu_of(torch.device("cuda"))
    case = next(case for case in declaration.cases(gpu) if case["n"] >= 2**20)
    config = declaration.forward.variants[0].default(case, gpu)
    ahead = compiled.compile_config(declaration, "forward", "blocks", case, config, gpu)
    hits, kernels = [], []
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
    run = triton.runtime.jit.JITFunction.run

    def keep(self, *args, **kwargs):
        kernels.append(run(self, *args, **kwargs))
        return kernels[-1]

    triton.runtime.jit.JITFunction.run = keep
    inputs = declaration.forward.inputs(case, "cuda", torch.Generator("cuda").manual_seed(0))
    out = declaration.forward.variants[0].launch(config=config, **inputs)
    torch.cuda.synchronize()
    blocks = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(blocks), ctypes.c_void_p(kernels[0].function), 32 * config["num_warps"], ctypes.c_size_t(0)
    )
    return {
        "right": torch.equal(out, inputs["x"] + inputs["y"]),
        "hits": hits,
        "registers": (ahead.kernels[0].resources.registers, kernels[0].n_regs),
        "occupancy": (ahead.kernels[0].occupancy, blocks.value * config["num_warps"] / gpu.warps_per_sm),
    }


def _instructions(kernel):
    """The names of a compiled kernel's instructions, in order."""
    import re

    return re.findall(r"^[^;\n]*?\s([A-Z][A-Z0-9_.]+)[^;\n]*;", kernel.asm["sass"], re.MULTILINE)


def layouts_of_few_rows(by_rows):
    """Layouts of what `few_rows` adds up across threads: 524 columns of 70 elements times 3 rows that are all alike."""
    import re

    import torch

    from kernels.matmul.few_rows import multiply_few_rows

    config = {"BLOCK_N": 32, "BLOCK_K": 128, "SPLITS": 1, "num_warps": 4, "num_stages": 3}
    a = torch.empty(70, 524, device="meta").t() if by_rows else torch.empty(524, 70, device="meta")
    with compile_only(gpu_named("h200")) as requests:
        multiply_few_rows(
            a, torch.empty(1, 3, device="meta").expand(70, 3), torch.empty(1, 524, 3, device="meta"), config=config
        )
    return re.findall(r"\}\) : \(tensor<[^#]*(#[^>]*)", requests[0].kernel.asm["ttgir"])


def hopper_attention(head_dim, value_dim, causal, config):
    """The machine code of the Gluon kernel for attention, as a list of instructions' names, in order."""
    import torch

    from kernels.attention.hopper_forward import launch_by_tma

    sizes = (4, head_dim), (2, head_dim), (2, value_dim)
    q, k, v = (torch.empty(1, heads, 512, d, dtype=torch.bfloat16, device="meta") for heads, d in sizes)
    with compile_only(gpu_named("h200")) as requests:
        launch_by_tma(q, k, v, causal, 0.125, config=config)
    return _instructions(requests[0].kernel)


def hopper_few_keys(head_dim, value_dim, queries, keys, packed):
    """The same of attention to few keys."""
    import torch

    from kernels.attention.hopper_few_keys import forward_few_keys, packed_few_keys

    with compile_only(gpu_named("h200")) as requests:
        if packed:
            q, k = (torch.empty(1000, heads, head_dim, dtype=torch.bfloat16, device="meta") for heads in (4, 2))
            ends, lse = torch.empty(9, dtype=torch.int32, device="meta"), torch.empty(4, 1000, device="meta")
            packed_few_keys(q, k, k, q, lse, ends, ends, queries, keys, True, 0.125)
        else:
            q = torch.empty(3, 4, queries, head_dim, dtype=torch.bfloat16, device="meta")
            k = torch.empty(3, 2, keys, head_dim, dtype=torch.bfloat16, device="meta")
            forward_few_keys(q, k, k[..., :value_dim], True, 0.125)
    return _instructions(requests[0].kernel)


def hopper_few_keys_backward(head_dim, keys, causal):
    """The same of its backward pass."""
    import torch

    from kernels.attention.hopper_few_keys_backward import backward_few_keys_by_tma

    q = torch.empty(3, 4, 3000, head_dim, dtype=torch.bfloat16, device="meta")
    k = torch.empty(3, 2, keys, head_dim, dtype=torch.bfloat16, device="meta")
    lse = torch.empty(3, 4, 3000, device="meta")
    with compile_only(gpu_named("h200")) as requests:
        backward_few_keys_by_tma(q, k, k, q, lse, q, lse, causal, 0.125)
    return _instructions(requests[0].kernel)


def hopper_whole_backward(head_dim, causal):
    """The same of tiles that hold all keys of a head."""
    import torch

    from kernels.attention.hopper_gradients import into_gradients

    q = torch.empty(30, 32, 86, head_dim, dtype=torch.bfloat16, device="meta")
    lse = torch.empty(30, 32, 86, device="meta")
    with compile_only(gpu_named("h200")) as requests:
        into_gradients((q, q, q, q, lse, q, None), (q, q, q), causal, 0.125, {"EVEN": True})
    return _instructions(requests[-1].kernel)


def hopper_packed_attention(head_dim, causal, config):
    """The same of packed sequences."""
    import torch

    from kernels.attention.hopper_packed import forward_packed

    q, k = (torch.empty(1000, heads, head_dim, dtype=torch.bfloat16, device="meta") for heads in (4, 2))
    ends, lse = torch.empty(5, dtype=torch.int32, device="meta"), torch.empty(4, 1000, device="meta")
    with compile_only(gpu_named("h200")) as requests:
        forward_packed(q, k, k, q, lse, ends, ends, 300, 300, causal, 0.125, config=config)
    return _instructions(requests[-1].kernel)


def hopper_attention_gradients(head_dim, heads_k, length, causal):
    """The same of each kernel of its backward pass for wide heads."""
    import torch

    from kernels.attention.hopper_wide import launch_wide

    q, k = (torch.empty(1, heads, length, head_dim, dtype=torch.bfloat16, device="meta") for heads in (4, heads_k))
    stats = torch.empty(2, 1, 4, 512, device="meta")
    with compile_only(gpu_named("h200")) as requests:
        launch_wide(q, k, k, q, stats, (q, k, k), causal, 0.125)
    return [_instructions(request.kernel) for request in requests]


def hopper_attention_fp8(head_dim, causal, config):
    """The same of attention of fp8 heads."""
    import torch

    from kernels.attention_fp8.hopper_forward import launch_by_tma

    q, k = (torch.empty(1, heads, 512, head_dim, dtype=torch.float8_e4m3fn, device="meta") for heads in (4, 2))
    q_scale, k_scale = (torch.empty(x.shape[:2], device="meta") for x in (q, k))
    with compile_only(gpu_named("h200")) as requests:
        launch_by_tma(q, k, k, q_scale, k_scale, k_scale, causal, 0.125, torch.bfloat16, config=config)
    return _instructions(requests[-1].kernel)  # the first transposes V


def hopper_fp32(layout, config, activation="relu"):
    """(names of instructions, bytes spilled, registers) of the Gluon kernel for fp32: act(A B + bias) + c, z kept."""
    import torch
    from atlas.compilation.resources import resources_of

    from kernels.matmul.hopper_fp32 import product

    a, b, c, z = (torch.empty(1024, 1024, device="meta") for _ in range(4))
    a, b = (x if name == "N" else x.t() for x, name in zip((a, b), layout, strict=True))
    with compile_only(gpu_named("h200")) as requests:
        product(a, b, c, bias=c[0], residual=c, z=z, activation=activation, config=config)
    kernel = requests[0].kernel
    resources = resources_of(kernel)
    return _instructions(kernel), resources.spill_bytes, resources.registers


def streamed(layout, m, n, k):
    """(names of instructions, bytes spilled) of the Gluon kernel for fp32 of few rows, in its default tile."""
    import torch
    from atlas.compilation.resources import resources_of

    from kernels.matmul.declaration import DECLARATION

    variant, gpu = DECLARATION.forward.variant("streamed"), gpu_named("h200")
    config = variant.default(case("fp32", m=m, n=n, k=k, layout=layout), gpu)
    a, b = (
        torch.empty(*shape, device="meta") if name == "N" else torch.empty(*reversed(shape), device="meta").t()
        for shape, name in zip(((m, k), (k, n)), layout, strict=True)
    )
    with compile_only(gpu) as requests:
        variant.launch(a, b, config=config)
    return _instructions(requests[0].kernel), resources_of(requests[0].kernel).spill_bytes


def hopper_product(layout, config):
    """Instructions of the Gluon kernel for 16-bit products, its last round in parts."""
    import torch

    from kernels.matmul.hopper import product

    def matrix(rows, columns, name):
        made = torch.empty(*((rows, columns) if name == "N" else (columns, rows)), dtype=torch.bfloat16, device="meta")
        return made if name == "N" else made.t()

    a, b = matrix(2176, 4096, layout[0]), matrix(4096, 4160, layout[1])
    c = torch.empty(2176, 4160, dtype=torch.bfloat16, device="meta")
    with compile_only(gpu_named("h200")) as requests:
        product(a, b, c, config=config, programs=132)
    return _instructions(requests[0].kernel)


def product_in_clusters(layout, m, n, k, config):
    """(instructions, PTX, all shared memory) of the kernel that multiplies few rows by clusters; nothing else runs."""
    import torch

    from kernels.matmul.clustered import launch_clustered

    def matrix(rows, columns, name):
        made = torch.empty(*((rows, columns) if name == "N" else (columns, rows)), dtype=torch.bfloat16, device="meta")
        return made if name == "N" else made.t()

    with compile_only(gpu_named("h200")) as requests:
        launch_clustered(matrix(m, k, layout[0]), matrix(k, n, layout[1]), config=config)
    (request,) = requests
    shared = resources_of(request.kernel).shared_bytes
    return _instructions(request.kernel), request.kernel.asm["ptx"], shared


def product_of_8_bits_in_clusters(dtypes, fast, config):
    """The same of 8 bits, 300 x 1040 x 2064: the two dtypes by torch's names, scales of rows but for int8."""
    import torch

    from kernels.matmul_8bit.clustered import launch_clustered

    def made(*shape, dtype="float32"):
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    a, b = made(300, 2064, dtype=dtypes[0]), made(1040, 2064, dtype=dtypes[1]).t()
    scales = (None, None, None) if dtypes[0] == "int8" else (made(300, 1), made(1, 1040), made(1040))
    with compile_only(gpu_named("h200")) as requests:
        launch_clustered(a, b, *scales, fast, config=config)
    (request,) = requests
    shared = resources_of(request.kernel).shared_bytes
    return _instructions(request.kernel), request.kernel.asm["ptx"], shared


def grouped_sums(variant, rows, compiling=False):
    """(name of the kernel, its instructions if it is compiled) that makes sums over 8 groups of ``rows``."""
    import torch

    from kernels.grouped_matmul import DECLARATION
    from kernels.grouped_matmul.sums import launch_sums

    gpu, problem = gpu_named("h200"), case("bf16", spread="even", groups=8, m=8 * rows, n=1024, k=512)
    variant = DECLARATION.backward.variant(variant)
    a, b = (torch.empty(8 * rows, size, dtype=torch.bfloat16, device="meta") for size in (512, 1024))
    offs = torch.empty(8, dtype=torch.int32, device="meta")
    with compile_only(gpu, compiling=compiling) as requests:
        launch_sums(a.t(), b, offs, config=variant.default(problem, gpu), **variant.launch.keywords)
    (request,) = requests
    return request.key.partition("[")[0].split(".")[-1], _instructions(request.kernel) if compiling else None


def hopper_columns(layout, config, rows_of_c):
    """Instructions of the Gluon kernel for tiles of 160 and 192 columns; C is ``rows_of_c`` long."""
    import torch

    from kernels.matmul.hopper_columns import product_by_columns

    def matrix(rows, columns, name):
        made = torch.empty(*((rows, columns) if name == "N" else (columns, rows)), dtype=torch.bfloat16, device="meta")
        return made if name == "N" else made.t()

    a, b = matrix(1024, 4000, layout[0]), matrix(4000, 2560, layout[1])[:, :rows_of_c]
    c = torch.empty(1024, rows_of_c, dtype=torch.bfloat16, device="meta")
    with compile_only(gpu_named("h200")) as requests:
        product_by_columns(a, b, c, config=config)
    return _instructions(requests[0].kernel)


def hopper_tf32(layout, config):
    """Instructions of the Gluon kernel for tf32."""
    import torch

    from kernels.matmul.hopper_tf32 import products

    a, b, c = (torch.empty(2, 1024, 1024, device="meta") for _ in range(3))
    a, b = (x if name == "N" else x.mT for x, name in zip((a, b), layout, strict=True))
    with compile_only(gpu_named("h200")) as requests:
        products(a, b, c, config=config, programs=132)
    return _instructions(requests[-1].kernel)  # where neither lies along K the first turns one


def shared_fragments(bits, config, rows=16, group=128):
    """Bytes spilled by `shared` of the products with packed weights, 1024 x 1024, for rows of x."""
    import torch
    from atlas.compilation.resources import resources_of

    from kernels.matmul_w4a16.shared import launch_shared

    x, scales = (
        torch.empty(*shape, dtype=torch.bfloat16, device="meta") for shape in ((rows, 1024), (64, 1024 // group, 16))
    )
    words = torch.empty(1024 * 1024 * bits // 32, dtype=torch.int32, device="meta")
    zeros = torch.empty(64, 1024 // group, 16, dtype=torch.uint8, device="meta") if bits == 4 else None
    with compile_only(gpu_named("a100")) as requests:
        launch_shared(bits, x, words, scales, zeros, 1024, group, config=config)
    return resources_of(requests[0].kernel).spill_bytes


def packed_on_hopper(bits, gradient, config):
    """Instructions of Hopper's product with packed weights, 1024 x 1024 in groups of 128, or of its gradient."""
    import torch

    from kernels.matmul_w4a16.hopper import specialized
    from kernels.matmul_w4a16.hopper_pull import pull_on_hopper

    x, y, scales = (
        torch.empty(*shape, dtype=torch.bfloat16, device="meta") for shape in ((64, 1024), (64, 1024), (64, 8, 16))
    )
    words = torch.empty(1024 * 1024 * bits // 32, dtype=torch.int32, device="meta")
    zeros = torch.empty(64, 8, 16, dtype=torch.uint8, device="meta") if bits == 4 else None
    with compile_only(gpu_named("h200")) as requests:
        if gradient:
            pull_on_hopper(bits, x, words, scales, zeros, y, 128, config=config)
        else:
            specialized(bits, x, words, scales, zeros, y, 128, config=config, programs=132)
    return _instructions(next(request.kernel for request in requests if "matmul" in request.kernel.name))


def packed_by_tma(bits, group, gradient, config):
    """Instructions of the product with packed weights, or its gradient, that has all operands by TMA, 1024 x 1024."""
    import torch

    from kernels.matmul_w4a16.hopper_direct import multiply_direct
    from kernels.matmul_w4a16.hopper_direct_pull import pull_direct

    groups = 1024 // group if group else 1
    x, y, scales = (
        torch.empty(*shape, dtype=torch.bfloat16, device="meta")
        for shape in ((512, 1024), (512, 1024), (64, groups, 16))
    )
    words = torch.empty(1024 * 1024 * bits // 32, dtype=torch.int32, device="meta")
    zeros = torch.empty(64, groups, 16, dtype=torch.uint8, device="meta") if bits == 4 else None
    with compile_only(gpu_named("h200")) as requests:
        launch = pull_direct if gradient else multiply_direct
        launch(bits, x, words, scales, zeros, y, group, config=config, programs=132)
    return _instructions(requests[0].kernel)


def packed_in_clusters(bits, group, gradient, config):
    """(instructions, PTX, bytes that a program is sent, all shared memory) of the same where clusters add parts.

    There are as many tiles as clusters of 6 run at once, or fewer, and nothing else is launched.
    """
    import torch

    from kernels.common.clusters import buffer_bytes
    from kernels.matmul_w4a16.hopper_direct import multiply_direct
    from kernels.matmul_w4a16.hopper_direct_pull import pull_direct

    rows, splits, (n, k) = config["BLOCK_M"], config["SPLITS"], (4096, 1024) if gradient else (1024, 4096)
    numbers = n // 16, k // group if group else 1, 16
    x, y, scales = (
        torch.empty(*shape, dtype=torch.bfloat16, device="meta") for shape in ((rows, 4096), (rows, 1024), numbers)
    )
    words = torch.empty(n * k * bits // 32, dtype=torch.int32, device="meta")
    zeros = torch.empty(numbers, dtype=torch.uint8, device="meta") if bits == 4 else None
    with compile_only(gpu_named("h200")) as requests:
        launch = pull_direct if gradient else multiply_direct
        launch(bits, x, words, scales, zeros, y, group, config=config, programs=132)
    (request,) = requests
    shared = resources_of(request.kernel).shared_bytes
    sent = config["W_GROUPS"] * buffer_bytes(64, rows, 4, splits)
    return _instructions(request.kernel), request.kernel.asm["ptx"], sent, shared


def packed_in_one_role(bits, group, config):
    """The same of the kernel for small products: (instructions, PTX, bytes that a program is sent, shared memory)."""
    import torch

    from kernels.common.clusters import buffer_bytes
    from kernels.matmul_w4a16.hopper_light import multiply_light

    rows, size, groups = config["BLOCK_M"], config["CLUSTER"], 4096 // group if group else 1
    x, y, scales = (
        torch.empty(*shape, dtype=torch.bfloat16, device="meta")
        for shape in ((rows, 4096), (rows, 1024), (64, groups, 16))
    )
    words = torch.empty(1024 * 4096 * bits // 32, dtype=torch.int32, device="meta")
    zeros = torch.empty(64, groups, 16, dtype=torch.uint8, device="meta") if bits == 4 else None
    with compile_only(gpu_named("h200")) as requests:
        multiply_light(bits, x, words, scales, zeros, y, group, config=config)
    (request,) = requests
    shared = resources_of(request.kernel).shared_bytes
    return _instructions(request.kernel), request.kernel.asm["ptx"], buffer_bytes(64, rows, 4, size), shared


def packed_in_shared_memory(bits, config):
    """Instructions of the kernel that converts blocks of packed weights, 1024 x 1024 in groups of 128."""
    import torch

    from kernels.matmul_w4a16.hopper_converted import multiply_converted

    a, c, scales = (
        torch.empty(*shape, dtype=torch.bfloat16, device="meta") for shape in ((512, 1024), (512, 1024), (64, 8, 16))
    )
    words = torch.empty(1024 * 1024 * bits // 32, dtype=torch.int32, device="meta")
    zeros = torch.empty(64, 8, 16, dtype=torch.uint8, device="meta") if bits == 4 else None
    with compile_only(gpu_named("h200")) as requests:
        multiply_converted(bits, a, words, scales, zeros, c, 1024, 128, config=config, programs=132)
    return _instructions(requests[0].kernel)


def accesses_of_rows(kernel, variants, sizes):
    """{kernel: its accesses of global memory} of a kernel's {direction: variant} in bf16, on an H200."""
    declaration, gpu = catalog.load(kernel), gpu_named("h200")
    problem, found = case("bf16", **sizes), {}
    for direction, name in variants.items():
        config = declaration.passes[direction].variant(name).default(problem, gpu)
        one = inspection.inspect(declaration, direction, name, problem, config, gpu, "", "")
        found |= {kernel["name"]: kernel["accesses"] for kernel in one.kernels}
    return found


def mask_reads(rows):
    """{kernel: its accesses of global memory} of attention under a mask of numbers, of so many keys, on an H200."""
    declaration, gpu = catalog.load("attention_masked"), gpu_named("h200")
    sizes = {"b": 1, "h": 4, "g": 2, "l": rows, "s": rows, "d": 64, "mask": "added", "left": 0, "right": 0}
    found = {}
    for direction, work in declaration.passes.items():
        problem, variant = case("bf16", **sizes), work.variant("descriptor")
        config = variant.default(problem, gpu)
        one = inspection.inspect(declaration, direction, variant.name, problem, config, gpu, "", "")
        found |= {kernel["name"]: kernel["accesses"] for kernel in one.kernels}
    return found
