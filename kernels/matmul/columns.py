"""The variant `columns` of 16-bit products: one round of tiles of 128 rows and 160 or 192 columns.

Tiles of other variants have powers of 2 columns.  1024 x 2560 are 160 of 128 x 128, one round of 132 SMs and a bit, and
120 of 192 x 128, each as long as the round.  128 of 128 x 160 fill it as well, and take less: 31.9 us for 34.3 where k
is 4000 (H200).
"""

import functools

from atlas.declaration import GPU, Capability, Case, Config, Variant

from kernels.common.counting import cdiv
from kernels.common.padded import padded
from kernels.common.products import layout_of

from .hopper_spaces import microseconds_of_gluon, multiplies_by_groups
from .less_waste import few_tiles
from .rounds import microseconds_of_rounds
from .spaces import SPACE
from .tiled import empty_product, launch_pointers, tiled_kernel

COLUMNS_SPACE = {"BESIDE": (32, 64), "BLOCK_K": (64,), "GROUP_M": (8,), "STAGES": (5, 6)}
"""BESIDE: columns of a tile beyond 128."""

_STAGES = {32: 6, 64: 5}
"""As many as there is room for, by BESIDE."""

# Microseconds on an H200: fitted to three timings of each.
_MULTIPLY = {32: 3.42e-7, 64: 3.0e-7}
"""Of an SM for one multiplication-addition, by BESIDE: 32 columns take tensor cores longer than half of 64."""
_ROUND, _CALL = 0.85, 3.0
"""What a round takes beyond its products, and a call beyond its rounds."""
_PAYS = 0.98
"""The share of another variant's time from which on this one is left out."""
_NEAR = 1.04
"""How much longer than the best a tile may take by the estimate and be worth a trial."""


def launch_columns(a, b, tf32=False, *, config):
    """Launch the kernel in Gluon; operands that no descriptor can describe are copied first."""
    from .hopper_columns import product_by_columns

    c = empty_product(a, b)
    if a.element_size() != 2 or not (c.numel() and a.shape[1]):
        plain = dict(zip(SPACE, (128, 128, 32, config["GROUP_M"], 8, 3), strict=True))
        return launch_pointers(tiled_kernel, a, b, tf32, config=plain)
    product_by_columns(padded(a), padded(b), c, config=config)
    return c


def columns(launch) -> Variant:
    """The variant for a pass that multiplies [m, k] by [k, n]."""
    return Variant(
        name="columns",
        summary="as `gluon`, one round of tiles of 160 or 192 columns, the last 32 or 64 with sums of their own",
        launch=launch,
        space=COLUMNS_SPACE,
        default=_default,
        fits=_fits,
        handles=_handles,
        needs=frozenset({Capability.TENSOR_DESCRIPTORS, Capability.WGMMA}),
        follows="gluon",
    )


def _handles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case."""
    if reason := multiplies_by_groups(problem, gpu) or few_tiles(problem, gpu):
        return reason
    # 1032 x 2504 x 4104 NT takes 53.9 us so, 50.7 by tiles of powers of 2; rows off 16 bytes are copied to whole lines.
    if layout_of(problem)[1] == "T" and problem["k"] % 8 == 0 and problem["k"] % 64:
        return "rows of B along K are off 128 bytes: a third box for each block is further lines"
    own = _best(problem, gpu)[0]
    if own == float("inf"):
        return "tiles of 128 x 192 are more than SMs"
    others = min(microseconds_of_gluon(problem, gpu), microseconds_of_rounds(problem, gpu))
    return "" if own + _CALL < _PAYS * (others + _CALL) else "tiles of `gluon` take as little time, or `rounds`"


def _microseconds(beside: int, problem: Case, gpu: GPU) -> float:
    """About how long one round takes; infinite where tiles are more than SMs."""
    if cdiv(problem["m"], 128) * cdiv(problem["n"], 128 + beside) > gpu.sms:
        return float("inf")
    return 128 * (128 + beside) * problem["k"] * _MULTIPLY[beside] + _ROUND


@functools.lru_cache(maxsize=4096)
def _best(problem: Case, gpu: GPU) -> tuple[float, int]:
    """The shortest time by the estimate, and its BESIDE."""
    return min((_microseconds(beside, problem, gpu), beside) for beside in COLUMNS_SPACE["BESIDE"])


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best; ``""`` for one worth a trial."""
    if config["STAGES"] != _STAGES[config["BESIDE"]]:
        return "not as many stages as there is room for"
    late = _microseconds(config["BESIDE"], problem, gpu) > _NEAR * _best(problem, gpu)[0]
    return "more tiles than SMs, or larger ones than need be" if late else ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    beside = _best(problem, gpu)[1]
    return dict(zip(COLUMNS_SPACE, (beside, 64, 8, _STAGES[beside]), strict=True))
