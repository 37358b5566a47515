"""Small kernels, each with one property that a build must see; and launchers that do what compilers do at worst."""

import os
import time

import torch
import triton
import triton.language as tl
from atlas.declaration import Capability, Declaration, Pass, Variant, case, eager, torch_dtype


@triton.jit
def _dot_kernel(a_ptr, b_ptr, c_ptr, K, BLOCK: tl.constexpr, DEEP: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    offs_k = tl.arange(0, DEEP)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, DEEP):
        a = tl.load(a_ptr + offs[:, None] * K + (k + offs_k)[None, :])
        b = tl.load(b_ptr + (k + offs_k)[:, None] * BLOCK + offs[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + offs[:, None] * BLOCK + offs[None, :], acc.to(c_ptr.dtype.element_ty))


@triton.jit
def _copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=offs < n), mask=offs < n)


@triton.jit
def _broken_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK) + tl.arange(0, 2 * BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs))


@triton.jit
def carried_bound_kernel(out_ptr, parts, count):
    """Counts to ``parts * count`` in parts; where one begins is carried to it, and is a loop's bound alone."""
    begin = 0
    total = 0
    for _ in range(parts):
        end = begin + count
        for i in range(begin, end):
            total += i
        begin = end
    tl.store(out_ptr, total)


def _dot(a, b, *, config):
    c = torch.empty(config["BLOCK"], config["BLOCK"], dtype=a.dtype, device=a.device)
    options = {"num_warps": 4, "num_stages": config["stages"]}
    if config["registers"]:
        options["maxnreg"] = config["registers"]
    _dot_kernel[(1,)](a, b, c, a.shape[1], BLOCK=config["BLOCK"], DEEP=32, **options)
    return c


def _copy(x, *, config):
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), config["BLOCK"]) * config.get("WAVES", 1),)
    _copy_kernel[grid](x, out, x.numel(), BLOCK=config["BLOCK"])
    return out


def _broken(x, *, config):
    _broken_kernel[(1,)](x, torch.empty_like(x), x.numel(), BLOCK=config["BLOCK"])


def _crash(x, *, config):
    os.abort()


def _hang(x, *, config):
    time.sleep(600)


def _vector(problem, device, generator):
    return {"x": torch.randn(problem["n"], dtype=torch_dtype(problem.dtype), device=device, generator=generator)}


def _matrices(problem, device, generator):
    def draw(*shape):
        return torch.randn(shape, dtype=torch_dtype(problem.dtype), device=device, generator=generator)

    return {"a": draw(problem["block"], problem["k"]), "b": draw(problem["k"], problem["block"])}


def _declare(name, variants, cases, inputs, traffic, dtypes=("fp16",)):
    return Declaration(
        name=name,
        family="test",
        summary="",
        function=lambda **inputs: None,
        call=lambda function, inputs: function(**inputs),
        dtypes=dtypes,
        cases=lambda gpu: list(cases),
        edge_cases=tuple(cases),
        forward=Pass(
            inputs=inputs,
            reference=lambda **inputs: None,
            outputs=("out",),
            variants=tuple(variants),
            peers={"torch": eager(lambda **inputs: None)},
            bytes=traffic,
            flops=lambda problem: {},
        ),
    )


def dots():
    """One product of BLOCK x BLOCK; with 32 registers a thread it spills, its sums alone are that many."""
    variant = Variant(
        name="dot",
        launch=_dot,
        space={"BLOCK": (64, 128), "stages": (1, 3), "registers": (None, 32)},
        default=lambda problem, gpu: {"BLOCK": 64, "stages": 3, "registers": None},
        fits=lambda config, problem, gpu: "" if config["BLOCK"] == problem["block"] else "another block",
    )
    cases = [case("fp16", block=block, k=512) for block in (64, 128)]
    return _declare("dots", [variant], cases, _matrices, lambda c: {"a": c["block"] * c["k"]})


def copies():
    """A copy whose WAVES change nothing but the grid; a variant for TMA; one for short vectors only."""

    def copy(name, **properties):
        return Variant(
            name=name,
            launch=_copy,
            space={"BLOCK": (128, 256, 512, 1024), "WAVES": (1, 2)},
            default=lambda problem, gpu: {"BLOCK": 256 if problem["n"] < 1000 else 512, "WAVES": 1},
            **properties,
        )

    variants = [
        copy("plain"),
        copy("descriptors", needs=frozenset({Capability.TENSOR_DESCRIPTORS})),
        copy("short", handles=lambda problem, gpu: "" if problem["n"] < 1000 else "more than 1000 elements"),
    ]
    # 512, 4096 and 65536 are multiples of 16 and 4099 is not: two specialisations.
    cases = [case(dtype, n=n) for dtype in ("fp16", "fp32") for n in (512, 4096, 65536, 4099)]
    return _declare("copies", variants, cases, _vector, lambda c: {"x": c["n"]}, ("fp16", "fp32"))


def misfits():
    """Launchers that fail: a kernel that does not compile, a compiler that crashes, one that hangs; and a good one."""
    variants = [
        Variant(name=name, launch=launch, space={"BLOCK": (128,)}, default=lambda problem, gpu: {"BLOCK": 128})
        for name, launch in (("broken", _broken), ("crash", _crash), ("hang", _hang), ("good", _copy))
    ]
    return _declare("misfits", variants, [case("fp16", n=4096)], _vector, lambda c: {"x": c["n"]})
