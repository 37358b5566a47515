"""Forward variant `split`: several programs a row where rows are long and too few for all SMs.

A first kernel leaves a maximum m_p and a sum l_p of exp(x - m_p) of each part p of a row.  With m the largest m_p the
row's sum is the sum of l_p exp(m_p - m): a second kernel makes it in each program, and reads its part again, from L2.
"""

import torch
import triton
import triton.language as tl
from atlas.operators import launch
from triton.language.extra.cuda import gdc_wait

from kernels.common.early import launch_early
from kernels.common.rows import LOWEST

from .tiling import cut_row, edges, lane_shape, matrix_of


@triton.jit
def _own(body, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Where this program's part of a row's whole lanes begins and ends: whole blocks, of which the last may have none.

    The first part has the elements before and after whole lanes as well.
    """
    size = tl.cdiv(tl.cdiv(body, BLOCK), SPLITS) * BLOCK
    begin = tl.program_id(0) * size
    return begin, tl.minimum(begin + size, body)


@triton.jit
def _parts_kernel(
    x_ptr, parts_ptr, n, SPLITS: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Program (part, row): maximum and sum of exponentials of a part of a row, to parts[2, row, part].

    Lanes have a running maximum and sum each, as in `online`.
    """
    if ALIGNED:
        n = n // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    part, row, rows = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    first, head, body = cut_row(row, n, WIDTH)
    begin, end = _own(body, SPLITS, LANES * WIDTH)
    lane_0, columns = tl.arange(0, LANES)[:, None] * WIDTH, tl.arange(0, WIDTH)[None, :]
    m_i = tl.full([LANES], LOWEST, tl.float32)
    l_i = tl.zeros([LANES], tl.float32)
    for start in tl.range(begin, end, LANES * WIDTH):
        lane = start + lane_0
        x = tl.load(x_ptr + first + lane + columns, mask=lane < end, other=-float("inf"), eviction_policy="evict_last")
        x = x.to(tl.float32)
        m_new = tl.maximum(m_i, tl.max(x, axis=1))
        l_i = l_i * tl.exp(m_i - m_new) + tl.sum(tl.exp(x - m_new[:, None]), axis=1)
        m_i = m_new
    row_max = tl.max(m_i, axis=0)
    if not ALIGNED:
        offs_e, inside_e = edges(head, body, n, WIDTH)
        edge = tl.load(x_ptr + row * n + offs_e, mask=inside_e & (part == 0), other=-float("inf")).to(tl.float32)
        row_max = tl.maximum(row_max, tl.max(edge, axis=0))
    total = tl.sum(l_i * tl.exp(m_i - row_max), axis=0)
    if not ALIGNED:
        total += tl.sum(tl.exp(edge - row_max), axis=0)
    at = parts_ptr + row * SPLITS + part
    tl.store(at, row_max)
    tl.store(at + rows * SPLITS, total)


@triton.jit
def _scaled_kernel(
    x_ptr, parts_ptr, y_ptr, n, SPLITS: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
    LOG: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (part, row): softmax of a part of a row, or its logarithm.

    EARLY: it is launched while the kernel that writes the parts still runs, and waits for its end here.
    """
    if ALIGNED:
        n = n // WIDTH * WIDTH
    part, row, rows = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    first, head, body = cut_row(row, n, WIDTH)
    begin, end = _own(body, SPLITS, LANES * WIDTH)
    lane_0, columns = tl.arange(0, LANES)[:, None] * WIDTH, tl.arange(0, WIDTH)[None, :]
    if EARLY:
        gdc_wait()
    at = parts_ptr + row * SPLITS + tl.arange(0, SPLITS)
    maxima = tl.load(at)
    row_max = tl.max(maxima, axis=0)
    total = tl.sum(tl.load(at + rows * SPLITS) * tl.exp(maxima - row_max), axis=0)
    scale, shift = 1.0 / total, tl.log(total)
    for start in tl.range(begin, end, LANES * WIDTH):
        lane = start + lane_0
        offs = first + lane + columns
        x = tl.load(x_ptr + offs, mask=lane < end, other=0.0, eviction_policy="evict_first").to(tl.float32) - row_max
        y = x - shift if LOG else tl.exp(x) * scale
        tl.store(y_ptr + offs, y, mask=lane < end, cache_modifier=".cs")
    if not ALIGNED:
        offs_e, inside_e = edges(head, body, n, WIDTH)
        inside_e = inside_e & (part == 0)
        edge = tl.load(x_ptr + row * n + offs_e, mask=inside_e, other=0.0).to(tl.float32) - row_max
        y_e = edge - shift if LOG else tl.exp(edge) * scale
        tl.store(y_ptr + row * n + offs_e, y_e, mask=inside_e)


def launch_split(x, mask=None, log=False, causal=False, *, config):
    """As `online`, without a mask and not causal."""
    y = torch.empty_like(x)
    m, n, _ = matrix_of(x, causal)
    splits, lanes = config["SPLITS"], lane_shape(x, n, config)
    parts = torch.empty((2, m, splits), dtype=torch.float32, device=x.device)
    launch(_parts_kernel, (splits, m), x, parts, n, SPLITS=splits, **lanes)
    launch_early(_scaled_kernel, (splits, m), x.device, x, parts, y, n, SPLITS=splits, **lanes, LOG=log)
    return y
