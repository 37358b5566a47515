"""The gradient of x for few rows: dx[m, k] = dy[m, n] W[n, k]; weights are brought to 16 bits between load and dot.

With few rows to write W out in 16 bits, and to read it again, would be most of the work.  Programs share n, in parts,
since dx has few tiles.  Hopper has kernels of its own, see :mod:`.pull_space`.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import Capability, gpu_of
from atlas.operators import launch

from kernels.common.parts import sum_parts

from .pull_space import FEW_ROWS, best_direct_pull, best_few_pull, best_light_pull, pulls_directly, pulls_lightly
from .tiles import block_of_weights, operand_of

_ROWS, _FMA_ROWS = 64, 16
"""The most rows of dy of plain Triton's kernel, with tensor cores and without, where more spill."""


def pulls(dy, k):
    """Whether ``launch_pull`` is for dy [m, n] and weights [n, k]; else to write them all out costs less."""
    m, n = dy.shape
    if _on_hopper(dy):
        sizes = m, n, k, gpu_of(dy.device).sms
        return m <= FEW_ROWS or pulls_lightly(*sizes) or pulls_directly(*sizes)
    return m <= (_ROWS if Capability.TENSOR_CORES in gpu_of(dy.device).capabilities else _FMA_ROWS)


def _on_hopper(dy):
    """Whether Hopper's own kernel takes dy [m, n]: TMA reads rows of whole 16 bytes."""
    return Capability.WGMMA in gpu_of(dy.device).capabilities and dy.shape[1] % 8 == 0


@triton.jit
def _pull_kernel(
    dy_ptr, words_ptr, scales_ptr, zeros_ptr, dx_ptr, M, N, K, groups, N_PART,
    GROUP: tl.constexpr, BITS: tl.constexpr, OPERAND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Program (block of k, part of n) owns all rows of BLOCK_K columns of dx[part]."""
    first_k = tl.program_id(0) * BLOCK_K
    begin = tl.program_id(1) * N_PART
    offs_m, offs_n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    dy_ptrs = dy_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for n in range(begin, min(begin + N_PART, N), BLOCK_N):
        dy = tl.load(dy_ptrs + n, mask=(offs_m[:, None] < M) & (offs_n[None, :] < N - n), other=0.0)
        w = block_of_weights(words_ptr, scales_ptr, zeros_ptr, n, first_k, N, K, groups,
                             GROUP, BITS, BLOCK_N, BLOCK_K, dy_ptr.dtype.element_ty)  # fmt: skip
        acc = tl.dot(dy.to(OPERAND), w.to(OPERAND), acc, input_precision="ieee")
    offs_k = first_k + tl.arange(0, BLOCK_K)
    dx_ptrs = dx_ptr + (tl.program_id(1) * M + offs_m).to(tl.int64)[:, None] * K + offs_k[None, :]
    tl.store(dx_ptrs, acc.to(dx_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_k[None, :] < K))


def pull_config(m, n, k, sms):
    """Blocks and parts of n: about four programs for each SM, of two blocks at least."""
    config = {"BLOCK_M": max(16, triton.next_power_of_2(m)), "BLOCK_N": 32, "BLOCK_K": 64, "num_warps": 4,
              "num_stages": 4}  # fmt: skip
    blocks = triton.cdiv(n, config["BLOCK_N"])
    parts = triton.cdiv(4 * sms, triton.cdiv(k, config["BLOCK_K"]))
    return config | {"SPLITS": max(1, min(parts, blocks // 2, 16))}


def launch_pull(bits, dy, words, scales, zeros, n, k, group):
    """dx [m, k] for dy [m, n], of few enough rows for ``pulls``."""
    m, sms = dy.shape[0], gpu_of(dy.device).sms
    dx = torch.empty((m, k), dtype=dy.dtype, device=dy.device)
    if _on_hopper(dy):
        _launch_on_hopper(bits, dy, words, scales, zeros, dx, group, sms)
        return dx
    config = pull_config(m, n, k, sms)
    splits = config.pop("SPLITS")
    part = triton.cdiv(triton.cdiv(n, config["BLOCK_N"]), splits) * config["BLOCK_N"]
    splits = triton.cdiv(n, part)
    parts = dx if splits == 1 else torch.empty((splits, m, k), dtype=torch.float32, device=dy.device)
    launch(
        _pull_kernel, (triton.cdiv(k, config["BLOCK_K"]), splits),
        dy, words, scales, zeros, parts, m, n, k, k // group if group else 1, part,
        GROUP=group, BITS=bits, OPERAND=operand_of(dy), **config,
    )  # fmt: skip
    if splits > 1:
        sum_parts(parts, dx)
    return dx


def _launch_on_hopper(bits, dy, words, scales, zeros, dx, group, sms):
    """The same by the kernel of Hopper's that should end first."""
    (m, n), k = dy.shape, dx.shape[1]
    sizes, operands = (m, n, k, sms), (bits, dy, words, scales, zeros, dx, group)
    if pulls_lightly(*sizes):
        from .hopper_light_pull import pull_light

        pull_light(*operands, config=best_light_pull(*sizes)[1])
    elif m > FEW_ROWS:
        from .hopper_direct_pull import pull_direct

        pull_direct(*operands, config=best_direct_pull(*sizes)[1], programs=sms)
    else:
        from .hopper_pull import pull_on_hopper

        pull_on_hopper(*operands, config=best_few_pull(*sizes)[1])
