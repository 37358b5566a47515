"""The variant `separate`: a kernel that writes the normalised matrix, then torch's product."""

import torch
import triton
from atlas.declaration import GPU, Case, Config, case

from kernels.layer_norm.forward import launch_one_pass
from kernels.layer_norm.spaces import fits_one_pass

from .statistics import launch_normalize

SEPARATE_SPACE = {"BLOCK_M": (1, 2), "num_warps": (1, 2, 4, 8)}

_LONGEST = 8192
"""Rows up to here are held in registers by `separate`."""


def launch_separate(x, weight, bias, eps, w, c=None, *, config):
    if x.shape[1] <= _LONGEST:
        out = launch_one_pass(x, weight, bias, eps, config={"LATE": False} | config, rest=True)[0]
    else:
        out = torch.empty_like(x)
        launch_normalize(x, weight, bias, out, eps, config["num_warps"])
    return torch.nn.functional.linear(out, w, c)


def fits_separate(config: Config, problem: Case, gpu: GPU) -> str:
    rows_of_x = case(problem.dtype, m=problem["m"], n=problem["k"])
    if problem["k"] > _LONGEST:
        return "long rows are streamed one by one" if config["BLOCK_M"] > 1 or config["num_warps"] < 4 else ""
    elements = config["BLOCK_M"] * problem["k"] // (32 * config["num_warps"])
    if elements < 8 and config["num_warps"] > 1:
        return f"{elements} elements a thread: fewer warps do"
    return fits_one_pass({"LATE": False} | config, rows_of_x, gpu)


def separate_default(problem: Case, gpu: GPU) -> Config:
    """About 16 elements a thread, one row a program."""
    warps = max(1, min(8, triton.next_power_of_2(problem["k"]) // 512))
    configs = [{"BLOCK_M": 1, "num_warps": warps}, {"BLOCK_M": 1, "num_warps": 8}, {"BLOCK_M": 1, "num_warps": 1}]
    return next((config for config in configs if not fits_separate(config, problem, gpu)), configs[-1])
