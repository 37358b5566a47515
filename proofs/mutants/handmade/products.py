"""Faults in products of matrices that no mutation operator makes."""

from __future__ import annotations

from atlas.declaration import Capability

from ..planting import CERTIFICATE, Edit, Mutant
from .checks import FUNCTION, GRADIENTS, NAN_INF, NON_CONTIGUOUS, VALUES, WRITTEN

# fmt: off
MUTANTS = (
    Mutant("matmul", "the first part added again and again", "wrong partial sum", (Edit("parts_ptr += size", ""),),
        VALUES, "forward", "split"),
    Mutant("matmul", "sum rounded after each block", "16-bit accumulation",
        (Edit("tl.dot(a, b, acc, input_precision=PRECISION)",
        "tl.dot(a, b, acc, input_precision=PRECISION).to(a.dtype).to(tl.float32)", "multiply_tile"),), VALUES,
        "forward", "naive", "fp16"),
    Mutant("matmul", "fp32 rounded to fp16 at the end", "wrong dtype of the store", (Edit("c_ptr.dtype.element_ty",
        "tl.float16", "store_tile"),), VALUES, "forward", "tiled", "fp32"),
    Mutant("matmul", "last group taken for full", "unwritten tail", (Edit("min(tiles_m - first_m, GROUP_M)",
        "GROUP_M", "grouped_tile"),), WRITTEN, "forward", "tiled"),
    Mutant("matmul", "K taken for even", "config-dependent", (
        Edit("even_k = k % config['BLOCK_K'] == 0", "even_k = k % 16 == 0"),),
        CERTIFICATE, "forward", "tiled", "bf16",
        config={"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 8, "num_warps": 4, "num_stages": 2}),
    Mutant("matmul", "gradient of B divided by the rows", "wrong gradient of one input",
        (Edit("product_2d(a.t(), dc, tf32)", "product_2d(a.t(), dc, tf32) / dc.shape[0]"),), GRADIENTS, "backward",
        "public"),
    Mutant("matmul", "tf32 in the place of fp32", "reduced precision",
        (Edit("tf32 and a.dtype == torch.float32 and (Capability.TF32 in gpu_of(a.device).capabilities)",
        "a.dtype == torch.float32 and Capability.TF32 in gpu_of(a.device).capabilities"),), VALUES, "forward", "tiled",
        "fp32", gpu_only="tf32 is one of the tensor cores' formats", needs=frozenset({Capability.TF32})),
    Mutant("matmul", "coordinates of a descriptor swapped", "swapped strides",
        (Edit("b_desc.load([k, n])", "b_desc.load([n, k])"),), VALUES, "forward", "descriptor",
        "fp16", gpu_only="the variant needs the copy engine (TMA)",
        needs=frozenset({Capability.TENSOR_DESCRIPTORS})),
    Mutant("matmul", "tiles beyond the first of a program left out", "unwritten tail",
        (Edit("tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True)",
        "tl.range(tl.program_id(0), tl.minimum(tiles, 4), tl.num_programs(0), flatten=True)"),), WRITTEN, "forward",
        "persistent", "fp16"),
    Mutant("batched_matmul", "tiles counted for one product", "unwritten tail",
        (Edit("batch * triton.cdiv(m, config['BLOCK_M'])", "triton.cdiv(m, config['BLOCK_M'])"),), WRITTEN, "forward",
        "tiled"),
    Mutant("batched_matmul", "the first B for all products", "wrong tile", (Edit("0 if B_SHARED else batch", "0"),),
        VALUES, "forward", "persistent", "bf16"),
    Mutant("batched_matmul", "the order of tiles from the position in all products", "wrong tile",
        (Edit("position % tiles", "position"),), WRITTEN, "forward", "persistent", "fp16"),
    Mutant("batched_matmul", "gradient of A from B as it is", "wrong gradient of one input", (Edit("b.transpose(1, 2)",
        "b.reshape(b.shape[0], b.shape[2], -1)", "_backward"),), GRADIENTS, "backward", "public"),
    Mutant("batched_matmul", "matrices taken for contiguous", "non-contiguous input misread",
        (Edit("launch(_tiled_kernel, (tiles_of(c, config),), a, b, c, *c.shape[1:], k, *a.stride(), *b.stride(), "
        "EVEN_K=k % config['BLOCK_K'] == 0, PRECISION=precision, **config)",
        "launch(_tiled_kernel, (tiles_of(c, config),), a, b, c, *c.shape[1:], k, c.shape[1] * k, k, 1, "
        "*b.stride(), EVEN_K=k % config['BLOCK_K'] == 0, PRECISION=precision, **config)"),), NON_CONTIGUOUS, "forward",
        "public"),
    Mutant("grouped_matmul", "last block of a sum not masked", "missing mask",
        (Edit("tl.load(a_ptrs, mask=offs_k[None, :] < end - k, other=0.0)", "tl.load(a_ptrs)"),
        Edit("tl.load(b_ptrs, mask=offs_k[:, None] < end - k, other=0.0)", "tl.load(b_ptrs)"),), VALUES, "backward",
        "tiled"),
    Mutant("grouped_matmul", "gradient of the matrices averaged over groups", "wrong gradient of one input",
        (Edit("_sums(a.t(), dc, offs, name)", "_sums(a.t(), dc, offs, name) / offs.shape[0]"),), GRADIENTS, "backward",
        "public"),
    Mutant("grouped_matmul", "last block of an alternating sum not cleared", "missing mask",
        (Edit("gl.where(some, count, BLOCK_K)", "gl.maximum(gl.cdiv(count, BLOCK_K), 1) * BLOCK_K", "alternate"),),
        VALUES, "backward", "gluon", "bf16", gpu_only="Gluon is not interpreted",
        needs=frozenset({Capability.WGMMA})),
    Mutant("matmul_8bit", "scale of the row for the column", "swapped operands",
        (Edit("tl.load(scale_b_ptr + offs_n, mask=offs_n < N, other=0.0)",
        "tl.load(scale_a_ptr + offs_n, mask=offs_n < M, other=0.0)"),), VALUES, "forward", "tiled", "fp8e5m2"),
    Mutant("matmul_8bit", "bias before the scales", "wrong order of operations",
        (Edit("if SCALES == 'row':\n    acc = acc * tl.load(scale_a_ptr + offs_m, mask=offs_m < M, other=0.0)[:, "
        "None]\n    acc = acc * tl.load(scale_b_ptr + offs_n, mask=offs_n < N, other=0.0)[None, :]\nelse:\n    "
        "acc = acc * number_a * number_b",
        "if bias_ptr is not None:\n    acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, "
        "other=0.0).to(tl.float32)[None, :]\n    bias_ptr = None\nif SCALES == 'row':\n    acc = acc * "
        "tl.load(scale_a_ptr + offs_m, mask=offs_m < M, other=0.0)[:, None]\n    acc = acc * "
        "tl.load(scale_b_ptr + offs_n, mask=offs_n < N, other=0.0)[None, :]\nelse:\n    acc = acc * number_a * "
        "number_b"),), VALUES, "forward", "tiled", "fp8e4m3"),
    Mutant("matmul_8bit", "sums of int8 in 16 bits", "overflow of the accumulator",
        (Edit("return tl.dot(a, b, acc, out_dtype=acc.dtype)",
        "acc = tl.dot(a, b, acc, out_dtype=acc.dtype)\nreturn acc.to(tl.int16).to(tl.int32) if acc.dtype == "
        "tl.int32 else acc"),), VALUES, "forward", "tiled", "int8"),
    Mutant("matmul_8bit", "A not masked past K", "missing mask",
        (Edit("tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)", "tl.load(a_ptrs)"),
        Edit("tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)", "tl.load(b_ptrs)"),), VALUES, "forward",
        "tiled", "int8"),
    Mutant("matmul_8bit", "last group taken for full", "unwritten tail", (Edit("min(tiles_m - first_m, GROUP_M)",
        "GROUP_M", "grouped_tile"),), WRITTEN, "forward", "tiled", "fp8e4m3"),
    Mutant("matmul_8bit", "B taken for columns", "non-contiguous input misread",
        (Edit("launch(_tiled_kernel, (triton.cdiv(m, config['BLOCK_M']) * triton.cdiv(n, config['BLOCK_N']),), a, b, "
        "c, scale_a, scale_b, bias, m, n, k, *a.stride(), *b.stride(), EVEN_K=k % config['BLOCK_K'] == 0, " "**meta)",
        "launch(_tiled_kernel, (triton.cdiv(m, config['BLOCK_M']) * triton.cdiv(n, config['BLOCK_N']),), a, b, "
        "c, scale_a, scale_b, bias, m, n, k, *a.stride(), 1, k, EVEN_K=k % config['BLOCK_K'] == 0, **meta)"),),
        NON_CONTIGUOUS, "forward", "public"),
    Mutant("matmul_8bit", "scales of one number read as rows", "out-of-bounds load",
        (Edit("(scale_a.reshape(()), scale_b.reshape(()))", "(scale_a.reshape(1, 1), scale_b.reshape(1, 1))"),),
        FUNCTION, "forward", "public", "fp8e4m3"),
    Mutant("matmul_8bit", "partial sums left to the tensor cores", "reduced precision",
        (Edit("0 if integers or fast else min(_PROMOTED, config['BLOCK_K'])", "0"),), VALUES, "forward", "tiled",
        "fp8e4m3", gpu_only="the interpreter sums in fp32", needs=frozenset({Capability.WGMMA})),
    Mutant("matmul_8bit", "the warps that multiply told to sum all of k", "reduced precision", (Edit("not fast",
        "fast"),), VALUES, "forward", "specialized", "fp8e4m3", gpu_only="Gluon is not interpreted",
        needs=frozenset({Capability.WGMMA})),
    Mutant("matmul_epilogue", "relu by maximum", "NaN lost", (Edit("tl.where(z < 0, 0.0, z)",
        "tl.where(z > 0, z, 0.0)"),), NAN_INF, "forward", "tiled"),
    Mutant("matmul_epilogue", "residual added before the activation", "wrong order of operations",
        (Edit("y = _activated(z, ACTIVATION, ACCURATE)",
        "if residual_ptr is not None:\n    z += tl.load(residual_ptr + offs, mask=inside, "
        "other=0.0).to(tl.float32)", "finish_tile"),
        Edit("if residual_ptr is not None:\n    y += tl.load(residual_ptr + offs, mask=inside, "
        "other=0.0).to(tl.float32)", "y = _activated(z, ACTIVATION, ACCURATE)", "finish_tile"),), VALUES, "forward",
        "tiled"),
    Mutant("matmul_epilogue", "act(z) kept for backward", "wrong gradient of one input", (Edit("z.to",
        "_activated(z, ACTIVATION, ACCURATE).to", "finish_tile"),), GRADIENTS, "backward", "public"),
    Mutant("matmul_epilogue", "last group taken for full", "unwritten tail",
        (Edit("min(tiles_m - first_m, GROUP_M)", "GROUP_M", "grouped_tile"),), WRITTEN,
        "forward", "tiled"),
    Mutant("matmul_w4a16", "one scale for a packed tile", "config-dependent", (Edit("word // 2", "word // 4"),),
        VALUES, "forward", "tiles"),
    Mutant("matmul_w4a16", "gradient without zero points", "wrong gradient of one input",
        (Edit("ctx.save_for_backward(words, scales, zeros)", "ctx.save_for_backward(words, scales, None)",
        "linear_operator"),),
        GRADIENTS, "backward", "public"),
    Mutant("matmul_w4a16", "x not masked past K", "missing mask", (Edit("config['BLOCK_K']", "32", "launch_tiles"),),
        VALUES, "forward", "tiles"),
    Mutant("matmul_w8a16", "gradient by weights of 4 bits", "wrong gradient of one input",
        (Edit("linear_operator(DECLARATION, 8)", "linear_operator(DECLARATION, 4)"),), GRADIENTS, "backward", "public"),
    Mutant("matmul_w8a16", "group size not handed on", "argument ignored", (Edit("packed",
        "packed._replace(group_size=0)", "linear_w8a16"),), FUNCTION, "forward", "public"),
    Mutant("matmul_8bit", "second half of the columns over the first", "unwritten part",
        (Edit("n + HALF", "n", "_store_parts"), Edit("_PART_BYTES = 32768", "_PART_BYTES = 4096")), WRITTEN,
        "forward", "descriptor", "fp8e4m3"),
)
