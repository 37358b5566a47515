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


def instructions(kernel):
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
