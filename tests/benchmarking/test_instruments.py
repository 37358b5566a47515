"""The survey's own kernels do the work they are timed for: on the interpreter, and in the code made for a GPU."""

import os
import re

import preloaded
from atlas import ROOT

_INTERPRETED = """
import torch
from atlas.survey import bandwidth, kernels
x = torch.randn(2**15)
y, z = torch.empty_like(x), torch.empty_like(x)
for how, run in bandwidth.copy_ways(x, y):
    y.zero_(); run(); assert torch.equal(x, y), how
for how, run in bandwidth.write_ways(y):
    y.fill_(7); run(); assert y.unique().numel() == 1 and y[0] != 7, how
for how, run in bandwidth.elementwise_ways(x, y, z):
    z.zero_(); run(); assert torch.equal(z, x + y), how
sums = torch.zeros(32)
kernels.read[(32,)](x, sums, BLOCK=1024)
assert torch.allclose(sums, x.view(32, -1).sum(1), atol=1e-4)
kernels.read_again[(2,)](x, sums, 4, 8, BLOCK=256)
assert torch.allclose(sums[:2], 2 * x[:1024].sum(), atol=1e-3)
a, b, out = torch.randn(64, 16), torch.randn(64, 16), torch.zeros(1)
import triton.language as tl
kernels.multiply[(1,)](a, b, out, 3, BLOCK_M=32, BLOCK_N=32, BLOCK_K=16, ACC=tl.float32)
wanted = 3 * ((a[:32] @ b[:32].T).sum() + (a[32:] @ b[32:].T).sum())
assert torch.allclose(out, wanted, rtol=1e-4, atol=1e-2), (out, wanted)
"""

_COMPILED = """
import re
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from atlas.survey import kernels
signature = {"a_ptr": "*bf16", "b_ptr": "*bf16", "sums_ptr": "*fp32", "steps": "i32"}
signature |= dict.fromkeys(("BLOCK_M", "BLOCK_N", "BLOCK_K", "ACC"), "constexpr")
constants = {(4,): 128, (5,): 256, (6,): 64, (7,): tl.float32}
source = ASTSource(fn=kernels.multiply, signature=signature, constexprs=constants)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
print(made.asm["ptx"])
"""


def python(code, **variables):
    usual = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment = usual | {"PYTHONPATH": f"{ROOT / 'workflow'}{os.pathsep}{ROOT}"} | variables
    done = preloaded.run(code, environment, ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_streams_and_products_compute_what_they_say():
    python(_INTERPRETED, TRITON_INTERPRET="1")


def test_the_loop_of_the_tensor_core_roof_holds_products_and_no_memory_traffic():
    loop = _loop(python(_COMPILED))
    assert loop.count("wgmma.mma_async") == 8  # two products, k = 64 in steps of 16
    assert not re.search(r"\b(ld|st)\.(global|shared|local)|ldmatrix", loop)


def _loop(ptx):
    """The text between a label and the last branch back to it."""
    for label in re.finditer(r"^(\$L__BB0_\d+):", ptx, re.M):
        back = [m.end() for m in re.finditer(rf"bra\s+{re.escape(label[1])};|bra\.uni\s+{re.escape(label[1])};", ptx)]
        if back and back[-1] > label.start():
            return ptx[label.start() : back[-1]]
    raise AssertionError("no loop in the code")
