"""What the tests of Hopper's kernels compile, in the process where Triton does; plain values come back."""

from atlas.compilation.offline import compile_only
from atlas.compilation.resources import resources_of
from atlas.declaration import case, torch_dtype
from inside import gpu_named, instructions


def hopper_attention(head_dim, value_dim, causal, config):
    """The machine code of the Gluon kernel for attention, as a list of instructions' names, in order."""
    import torch

    from kernels.attention.hopper_forward import launch_by_tma

    sizes = (4, head_dim), (2, head_dim), (2, value_dim)
    q, k, v = (torch.empty(1, heads, 512, d, dtype=torch.bfloat16, device="meta") for heads, d in sizes)
    with compile_only(gpu_named("h200")) as requests:
        launch_by_tma(q, k, v, causal, 0.125, config=config)
    return instructions(requests[0].kernel)


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
            k, v = (torch.empty(3, 2, keys, d, dtype=torch.bfloat16, device="meta") for d in (head_dim, value_dim))
            forward_few_keys(q, k, v, True, 0.125)
    return instructions(requests[0].kernel)


def hopper_few_keys_backward(head_dim, keys, causal):
    """The same of its backward pass."""
    import torch

    from kernels.attention.hopper_few_keys_backward import backward_few_keys_by_tma

    q = torch.empty(3, 4, 3000, head_dim, dtype=torch.bfloat16, device="meta")
    k = torch.empty(3, 2, keys, head_dim, dtype=torch.bfloat16, device="meta")
    lse = torch.empty(3, 4, 3000, device="meta")
    with compile_only(gpu_named("h200")) as requests:
        backward_few_keys_by_tma(q, k, k, q, lse, q, lse, causal, 0.125)
    return instructions(requests[0].kernel)


def hopper_whole_backward(head_dim, causal):
    """The same of tiles that hold all keys of a head."""
    import torch

    from kernels.attention.hopper_gradients import into_gradients

    q = torch.empty(30, 32, 86, head_dim, dtype=torch.bfloat16, device="meta")
    lse = torch.empty(30, 32, 86, device="meta")
    with compile_only(gpu_named("h200")) as requests:
        into_gradients((q, q, q, q, lse, q, None), (q, q, q), causal, 0.125, {"EVEN": True})
    return instructions(requests[-1].kernel)


def hopper_packed_attention(head_dim, causal, config):
    """The same of packed sequences."""
    import torch

    from kernels.attention.hopper_packed import forward_packed

    q, k = (torch.empty(1000, heads, head_dim, dtype=torch.bfloat16, device="meta") for heads in (4, 2))
    ends, lse = torch.empty(5, dtype=torch.int32, device="meta"), torch.empty(4, 1000, device="meta")
    with compile_only(gpu_named("h200")) as requests:
        forward_packed(q, k, k, q, lse, ends, ends, 300, 300, causal, 0.125, config=config)
    return instructions(requests[-1].kernel)


def hopper_attention_gradients(head_dim, heads_k, length, causal):
    """The same of each kernel of its backward pass for wide heads."""
    import torch

    from kernels.attention.hopper_wide import launch_wide

    q, k = (torch.empty(1, heads, length, head_dim, dtype=torch.bfloat16, device="meta") for heads in (4, heads_k))
    stats = torch.empty(2, 1, 4, 512, device="meta")
    with compile_only(gpu_named("h200")) as requests:
        launch_wide(q, k, k, q, stats, (q, k, k), causal, 0.125)
    return [instructions(request.kernel) for request in requests]


def hopper_attention_fp8(head_dim, causal, config):
    """The same of attention of fp8 heads."""
    import torch

    from kernels.attention_fp8.hopper_forward import launch_by_tma

    q, k = (torch.empty(1, heads, 512, head_dim, dtype=torch.float8_e4m3fn, device="meta") for heads in (4, 2))
    q_scale, k_scale = (torch.empty(x.shape[:2], device="meta") for x in (q, k))
    with compile_only(gpu_named("h200")) as requests:
        launch_by_tma(q, k, k, q_scale, k_scale, k_scale, causal, 0.125, torch.bfloat16, config=config)
    return instructions(requests[-1].kernel)  # the first transposes V


def hopper_fp32(layout, config, activation="relu"):
    """(names of instructions, bytes spilled, registers) of the Gluon kernel for fp32: act(A B + bias) + c, z kept."""
    import torch

    from kernels.matmul.hopper_fp32 import product

    a, b, c, z = (torch.empty(1024, 1024, device="meta") for _ in range(4))
    a, b = (x if name == "N" else x.t() for x, name in zip((a, b), layout, strict=True))
    with compile_only(gpu_named("h200")) as requests:
        product(a, b, c, bias=c[0], residual=c, z=z, activation=activation, config=config)
    kernel = requests[0].kernel
    resources = resources_of(kernel)
    return instructions(kernel), resources.spill_bytes, resources.registers


def streamed(layout, m, n, k):
    """(names of instructions, bytes spilled) of the Gluon kernel for fp32 of few rows, in its default tile."""
    import torch

    from kernels.matmul.declaration import DECLARATION

    variant, gpu = DECLARATION.forward.variant("streamed"), gpu_named("h200")
    config = variant.default(case("fp32", m=m, n=n, k=k, layout=layout), gpu)
    a, b = (
        torch.empty(*shape, device="meta") if name == "N" else torch.empty(*reversed(shape), device="meta").t()
        for shape, name in zip(((m, k), (k, n)), layout, strict=True)
    )
    with compile_only(gpu) as requests:
        variant.launch(a, b, config=config)
    return instructions(requests[0].kernel), resources_of(requests[0].kernel).spill_bytes


def shifted(columns):
    """(names of instructions, bytes spilled) of the kernel for few rows times a matrix of odd rows."""
    import torch

    from kernels.matmul.shifted import launch_shifted

    a, b = (torch.empty(*shape, dtype=torch.bfloat16, device="meta") for shape in ((5, 2048), (2048, 50257)))
    with compile_only(gpu_named("h200")) as requests:
        launch_shifted(a, b, config={"BLOCK_N": columns, "SPLITS": 1, "num_warps": 4})
    return instructions(requests[0].kernel), resources_of(requests[0].kernel).spill_bytes


def staggered(rows, columns, copies):
    """The same of odd rows along K."""
    import torch
    from atlas.compilation.resources import resources_of

    from kernels.matmul.staggered import STAGGERED_SPACE, launch_staggered

    a, b = (torch.empty(count, 2047, dtype=torch.bfloat16, device="meta") for count in (rows, 50257))
    with compile_only(gpu_named("h200")) as requests:
        launch_staggered(a, b.t(), config=dict(zip(STAGGERED_SPACE, (columns, 128, 1, copies, 4), strict=True)))
    return instructions(requests[-1].kernel), resources_of(requests[-1].kernel).spill_bytes


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
    return instructions(requests[0].kernel)


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
    return instructions(request.kernel), request.kernel.asm["ptx"], shared


def softmax_in_clusters(dtype, m, n, log):
    """(instructions, PTX) of softmax by the default of ``clustered``; nothing else runs."""
    import torch

    from kernels.softmax import DECLARATION

    gpu, variant = gpu_named("h200"), DECLARATION.forward.variant("clustered")
    problem = case(dtype, m=m, n=n)
    assert not variant.unsupported(problem, gpu)
    x = torch.empty(m, n, dtype=torch_dtype(dtype), device="meta")
    with compile_only(gpu) as requests:
        variant.launch(x, log=log, config=variant.default(problem, gpu))
    (request,) = requests
    return instructions(request.kernel), request.kernel.asm["ptx"]


def batches_in_clusters(layout, b, m, n, k, shared, config):
    """The same of products in batches; those ``shared`` of "ab" are one matrix for all."""
    import torch

    from kernels.batched_matmul.clustered import launch_clustered

    def batch(rows, columns, order, name):
        shape = (rows, columns) if order == "N" else (columns, rows)
        made = torch.empty(1 if name in shared else b, *shape, dtype=torch.bfloat16, device="meta").expand(b, *shape)
        return made if order == "N" else made.mT

    with compile_only(gpu_named("h200")) as requests:
        launch_clustered(batch(m, k, layout[0], "a"), batch(k, n, layout[1], "b"), config=config)
    (request,) = requests
    shared_bytes = resources_of(request.kernel).shared_bytes
    return instructions(request.kernel), request.kernel.asm["ptx"], shared_bytes


def product_through_registers(layout, dtype, m, n, k, values):
    """(instructions, registers) of a batch of 64 products of fp32 or tf32 by `staged`, with a config's values."""
    import torch

    from kernels.batched_matmul.staged import STAGED_SPACE, launch_staged

    def batch(rows, columns, order):
        made = torch.empty(64, *((rows, columns) if order == "N" else (columns, rows)), device="meta")
        return made if order == "N" else made.mT

    with compile_only(gpu_named("h200")) as requests:
        config = dict(zip(STAGED_SPACE, values, strict=True))
        launch_staged(batch(m, k, layout[0]), batch(k, n, layout[1]), dtype == "tf32", config=config)
    (request,) = requests
    return instructions(request.kernel), resources_of(request.kernel).registers


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
    return instructions(request.kernel), request.kernel.asm["ptx"], shared


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
    return request.key.partition("[")[0].split(".")[-1], instructions(request.kernel) if compiling else None


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
    return instructions(requests[0].kernel)


def hopper_tf32(layout, config):
    """Instructions of the Gluon kernel for tf32."""
    import torch

    from kernels.matmul.hopper_tf32 import products

    a, b, c = (torch.empty(2, 1024, 1024, device="meta") for _ in range(3))
    a, b = (x if name == "N" else x.mT for x, name in zip((a, b), layout, strict=True))
    with compile_only(gpu_named("h200")) as requests:
        products(a, b, c, config=config, programs=132)
    return instructions(requests[-1].kernel)  # where neither lies along K the first turns one


def shared_fragments(bits, config, rows=16, group=128):
    """Bytes spilled by `shared` of the products with packed weights, 1024 x 1024, for rows of x."""
    import torch

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
    return instructions(next(request.kernel for request in requests if "matmul" in request.kernel.name))


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
    return instructions(requests[0].kernel)


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
    return instructions(request.kernel), request.kernel.asm["ptx"], sent, shared


def packed_in_one_role(bits, group, gradient, config):
    """The same of the kernel for small products, or their gradient.

    (instructions, PTX, bytes that a program is sent, shared memory)
    """
    import torch

    from kernels.common.clusters import buffer_bytes
    from kernels.matmul_w4a16.hopper_light import multiply_light
    from kernels.matmul_w4a16.hopper_light_pull import pull_light

    rows, size, (n, k) = config["BLOCK_M"], config["CLUSTER"], (4096, 1024) if gradient else (1024, 4096)
    numbers = n // 16, k // group if group else 1, 16
    x, y, scales = (
        torch.empty(*shape, dtype=torch.bfloat16, device="meta") for shape in ((rows, 4096), (rows, 1024), numbers)
    )
    words = torch.empty(n * k * bits // 32, dtype=torch.int32, device="meta")
    zeros = torch.empty(numbers, dtype=torch.uint8, device="meta") if bits == 4 else None
    with compile_only(gpu_named("h200")) as requests:
        launch = pull_light if gradient else multiply_light
        launch(bits, x, words, scales, zeros, y, group, config=config)
    (request,) = requests
    shared, sent = resources_of(request.kernel).shared_bytes, buffer_bytes(config.get("COLUMNS", 64), rows, 4, size)
    return instructions(request.kernel), request.kernel.asm["ptx"], sent, shared


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
    return instructions(requests[0].kernel)
