"""No call of a product describes to the copy engine what it cannot read: steps of public functions on a named GPU.

On meta tensors, launches that only compile choose and lay out as a call does there.  Nothing is compiled here: a
descriptor of rows off 16 bytes, or by columns, raises as it would on the GPU.
"""

import pytest

SCRIPT = """
import dataclasses, itertools, json, sys
import torch
import kernels
from atlas import catalog
from atlas.compilation.offline import compile_only
from atlas.declaration import case
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus

name, device_name = {gpu!r}
on = dataclasses.replace(gpu(name, load_gpus()[name]), device_name=device_name)
assert catalog.load("matmul").forward.variant("gluon").unsupported(case("bf16", m=4096, n=4096, k=4096), on) == ""
wrong, calls = [], 0


def laid(rows, columns, how, dtype, batch=()):
    if how == "T":
        x = torch.empty(*batch, columns, rows, dtype=dtype, device="meta").mT
    elif how == "every second":
        x = torch.empty(*batch, rows, 2 * columns, dtype=dtype, device="meta")[..., ::2]
    elif how == "one row for all":
        x = torch.empty(*batch, 1, columns, dtype=dtype, device="meta").expand(*batch, rows, columns)
    else:
        x = torch.empty(*batch, rows, columns, dtype=dtype, device="meta")
    return x.requires_grad_()


def stepped(what, function, *tensors):
    global calls
    calls += 1
    try:
        y = function(*tensors)
        torch.autograd.grad(y, tensors, torch.empty(y.shape, dtype=y.dtype, device="meta"))
    except Exception as error:
        wrong.append(f"{{what}}: {{type(error).__name__}}: {{error}}")


{body}
json.dump([calls, wrong], sys.stdout)
"""

STEPS = """
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}
SHAPES = {
    sizes
    for few in (1, 2, 7, 1023)
    for one, other in ((4096, 1280), (1280, 333))
    for sizes in ((few, one, other), (one, few, other), (one, other, few))
}


def activated(x, weight, bias, residual):
    return kernels.linear(x, weight, bias, activation="gelu", residual=residual)


with compile_only(on, compiling=False):
    for (dtype, kind), (m, n, k) in itertools.product(DTYPES.items(), sorted(SHAPES)):
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        for order in ("NN", "NT", "TN", "TT"):
            a, b = laid(m, k, order[0], kind), laid(k, n, order[1], kind)
            stepped(f"matmul {dtype} {m} {n} {k} {order}", kernels.matmul, a, b)
            a, b = laid(m, k, order[0], kind, (3,)), laid(k, n, order[1], kind, (3,))
            if dtype != "fp16":
                stepped(f"bmm {dtype} {m} {n} {k} {order}", kernels.bmm, a, b)
        x, weight, residual = laid(m, k, "N", kind), laid(n, k, "N", kind), laid(m, n, "N", kind)
        bias, scale = (torch.empty(size, dtype=kind, device="meta", requires_grad=True) for size in (n, k))
        stepped(f"linear {dtype} {m} {n} {k}", kernels.linear, x, weight, bias)
        stepped(f"linear with a residual {dtype} {m} {n} {k}", activated, x, weight, bias, residual)
        stepped(f"layer_norm_linear {dtype} {m} {n} {k}", kernels.layer_norm_linear, x, weight, bias, scale, scale)
"""

ORDERS = """
def added(x, weight, residual):
    return kernels.linear(x, weight, residual=residual)


with compile_only(on, compiling=False):
    orders = ("N", "T", "every second", "one row for all")
    for kind, of_x, of_w in itertools.product((torch.bfloat16, torch.float32), orders, orders):
        for m, n, k in ((2048, 2560, 1024), (2048, 2560, 1001), (1217, 1600, 2048), (33, 77, 1001), (2, 4096, 7)):
            x, weight = laid(m, k, of_x, kind), laid(n, k, of_w, kind)
            residual = laid(m, n, "N", kind)
            what = f"{kind} {m} {n} {k}, {of_x}, {of_w}"
            stepped(f"linear {what}", kernels.linear, x, weight)
            stepped(f"linear with a residual {what}", added, x, weight, residual)
            stepped(f"matmul {what}", kernels.matmul, x, laid(k, n, of_w, kind))
            if of_x != "one row for all":
                stepped(f"bmm {what}", kernels.bmm, laid(m, k, of_x, kind, (3,)), laid(k, n, of_w, kind, (3,)))
"""

VARIANTS = """
FLAGS = {
    "matmul": ({"layout": order} for order in ("NN", "NT", "TN", "TT")),
    "batched_matmul": ({"b": 3, "layout": order} for order in ("NN", "NT", "TN", "TT")),
    "matmul_epilogue": ({"activation": "gelu", "bias": True, "residual": added} for added in (True, False)),
}
SHAPES = ((4096, 1280, 2), (1280, 4096, 1023), (2, 4096, 1280), (4096, 333, 1024), (1217, 1600, 2048), (64, 64, 7))
with compile_only(on, compiling=False), torch.no_grad():
    for kernel, flags in FLAGS.items():
        declaration = catalog.load(kernel)
        for chosen, dtype, (m, n, k) in itertools.product(flags, declaration.dtypes, SHAPES):
            problem = case(dtype, **chosen, m=m, n=n, k=k)
            for variant in declaration.forward.variants:
                if variant.unsupported(problem, on):
                    continue
                calls += 1
                try:
                    inputs = declaration.forward.inputs(problem, "meta", None)
                    variant.launch(**inputs, config=variant.default(problem, on))
                except Exception as error:
                    wrong.append(f"{kernel} {variant.name} {problem}: {type(error).__name__}: {error}")
"""

H200, H100 = ("h200", "NVIDIA H200"), ("h100", "NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(
    ("gpu", "body"),
    [
        pytest.param(H200, STEPS, id="steps of small and odd sizes, h200"),
        pytest.param(H100, STEPS, id="steps of small and odd sizes, h100", marks=pytest.mark.slow),
        pytest.param(H200, ORDERS, id="operands in any strides"),
        pytest.param(H200, VARIANTS, id="each variant that takes the case, whatever is chosen"),
    ],
)
def test_no_step_describes_what_the_copy_engine_cannot_read(printed_apart, gpu, body):
    calls, wrong = printed_apart(SCRIPT.format(gpu=gpu, body=body))
    assert calls > 100
    assert wrong == []
