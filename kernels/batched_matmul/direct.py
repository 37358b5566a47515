"""The variant `direct`: a program a tile, several on an SM, where that ends sooner than `persistent`."""

from collections.abc import Callable

from atlas.declaration import GPU, Capability, Case, Config, Variant

from .estimates import SMALL, WIDE, are_few, count, direct_microseconds, direct_tile, persistent_microseconds
from .spaces import copies, default_persistent

DIRECT_SPACE = {
    "BLOCK_M": (64,),
    "BLOCK_N": (64, 128),
    "BLOCK_K": (64,),
    "GROUP_M": (8,),
    "num_warps": (4,),
    "num_stages": (2, 3, 4),
}

_PAYS = 0.96
"""The share of the time of `persistent` from which on the variant is left out."""
_SHORT = 128
"""Elements of K up to which few tiles end sooner so: 12 of 1024, 128, 96 NT take 4.7 us, 5.2 by `persistent`, 64 of 80,
96, 64 take 3.3, 3.9 (H200)."""
_LONG, _LONGEST = 640, 1024
"""Elements of K: of more few shapes were timed (12 of 333 x 512 x 1024 NT 14.4 us, 20.4 by `persistent`, 12 of 577 x
333 x 1024 TN 31.1, 35.7; H200), and none."""
_PAYS_LONG = 0.9
"""`_PAYS` of long sums."""


def direct(launch: Callable) -> Variant:
    return Variant(
        name="direct",
        summary="as `persistent`, but a program a tile and several on an SM, of which one writes while others load",
        launch=launch,
        space=DIRECT_SPACE,
        default=_default,
        fits=_fits,
        handles=_handles,
        needs=frozenset({Capability.TENSOR_DESCRIPTORS}),
        follows="persistent",
    )


def _handles(problem: Case, gpu: GPU) -> str:
    """Why the variant does not take a case: 24 of 768, 512, 256 take 20.5 us so, 16.7 by `persistent` (H200)."""
    if problem.dtype not in ("fp16", "bf16"):
        return "for fp16 and bf16"
    if gpu.functional:
        return ""
    if Capability.WGMMA not in gpu.capabilities:
        return "timed on Hopper alone"
    if reason := copies(problem, gpu):
        return reason
    if problem["k"] <= _SHORT and are_few(problem, gpu):
        return ""
    long = problem["k"] > _LONG
    if long and count(SMALL, problem) <= gpu.sms:
        return "few tiles of long sums, of which `persistent` has deep blocks"
    tile = tuple(default_persistent(problem, gpu).values())
    pays = _PAYS_LONG if long else _PAYS
    late = direct_microseconds(problem, gpu) > pays * persistent_microseconds(tile, problem, gpu)
    return "`persistent` should end no later" if problem["k"] > _LONGEST or late else ""


def _default(problem: Case, gpu: GPU) -> dict[str, int]:
    return _config(direct_tile(problem, gpu), problem)


def _config(tile: tuple[int, int], problem: Case) -> dict[str, int]:
    stages = 2 if problem["k"] <= 128 else {SMALL: 4, WIDE: 3}[tile]
    return dict(zip(DIRECT_SPACE, (*tile, 64, 8, 4, stages), strict=True))


def _fits(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config cannot be the best; ``""`` for one worth a trial."""
    tile = (config["BLOCK_M"], config["BLOCK_N"])
    if tile == WIDE and problem["n"] <= SMALL[1]:
        return "half of each tile would be empty"
    return "" if config == _config(tile, problem) else "as many blocks under way as leave room for other programs"
