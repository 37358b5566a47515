"""Which configs of products of 8 bits are worth a trial, which is each variant's default, and what none can take."""

import functools

import triton
from atlas.declaration import GPU, Capability, Case, Config
from atlas.declaration.products import reads_shared_memory

from kernels.common.products import tile_count


def handles(problem: Case, gpu: GPU) -> str:
    """Why no variant takes a case on a GPU: without such tensor cores ``tl.dot`` of these dtypes does not compile."""
    needed = Capability.INT8_DOT if problem.dtype == "int8" else Capability.FP8
    return "" if gpu.functional or needed in gpu.capabilities else f"{gpu.name} has no {needed}"


def describes(problem: Case, gpu: GPU) -> str:
    """Why the variants with descriptors do not take a case."""
    row_bytes = problem["n"] * (4 if problem["scales"] == "none" else 2)
    aligned = problem["k"] % 16 == 0 and row_bytes % 16 == 0
    return handles(problem, gpu) or ("" if aligned else "rows of A, B or C are not aligned to 16 bytes")


def persists(problem: Case, gpu: GPU) -> str:
    """Why ``persistent`` does not take a case: alone on its SM it adds partial sums while the tensor cores wait.

    Of seven cases with sums in fp32 it takes 1.01 to 1.19 of the time of ``descriptor`` (H200).
    """
    waits = Capability.WGMMA in gpu.capabilities and promotes(problem)
    if reason := describes(problem, gpu) or _described_alone(problem, gpu):
        return reason
    return "partial sums are added while tensor cores wait" if waits else ""


_SHORT = {True: 2560, False: 4096}
"""Elements of K up to which `descriptor` has tiles of 64 x 128, by whether sums stay in tensor cores."""


def small_tiles_make_a_round(problem: Case, gpu: GPU) -> str:
    """Why `descriptor` alone takes a case: of 64 x 128 all tiles run at a time, of 128 x 128 there are more than SMs.

    An SM has room for three programs of the former.  254 x 12288 x 1280 take 10.8 us so, 11.3 by `alternating`, and
    11.2 for 13.1 of `specialized` with sums in fp32; at 256 x 9216 x 4096 25.8 and 24.3, and 27.6 and 28.6 (H200).
    """
    if problem.dtype == "int8" or problem["m"] <= 64 or Capability.WGMMA not in gpu.capabilities:
        return ""
    if problem["k"] > _SHORT[not promotes(problem)] or describes(problem, gpu):
        return ""
    one = _tiles_of(128, 128, problem) > gpu.sms and _tiles_of(64, 128, problem) <= 3 * gpu.sms
    return "tiles of 64 x 128, three on an SM, are one round" if one else ""


# Microseconds on an H200 of a step along K, by BLOCK_M, BLOCK_N, BLOCK_K, num_stages; by whether sums stay in tensor
# cores.  Of four stages of 64 x 128 x 128 an SM has room for two programs.
_STEPS = {
    True: {(64, 64, 256, 5): 0.28, (64, 128, 256, 4): 0.42},
    False: {(64, 64, 256, 5): 0.49, (64, 128, 128, 4): 0.42},
}
_ADD_UP = {True: 3.3, False: 4.1}
"""Microseconds of the kernel that adds parts of K up."""


def _has_few_tiles(problem: Case, gpu: GPU) -> bool:
    """Whether tiles of 128 x 128 leave SMs idle, or their last rows empty; a long sum is cut where that ends sooner.

    256 x 2048 x 2560 takes 6.3 us by 128 whole tiles of 64 x 64, 10.6 by parts of 128 x 128; 112 x 6144 x 5120 15.6 by
    96 of 64 x 128, and 18.2; 384 x 1536 x 1024 4.8 by 72 of 64 x 128, 6.0 by `persistent`; with sums in fp32 384 x 1536
    x 4096 12.5 by three parts of 64 x 128; of int8 488 x 2048 x 2880 13.8 and 17.2.  192 x 5120 x 5120 take 18.7 by 120
    of 64 x 128, one for most SMs, and 21.6 by 80 of 128 x 128 (H200).
    """
    if problem["m"] <= 64 or Capability.WGMMA not in gpu.capabilities:
        return False
    if problem["k"] < (2048 if problem.dtype == "int8" else 1024):  # as were timed
        return False
    small_fit = not promotes(problem) and _tiles_of(64, 128, problem) <= gpu.sms
    few = small_fit or 2 * _tiles_of(128, 128, problem) <= gpu.sms
    return few and not describes(problem, gpu)


@functools.lru_cache(maxsize=4096)
def _best_of_few(problem: Case, gpu: GPU) -> tuple[tuple[int, ...], int]:
    """The tile that ends first by the estimate, and its parts of K: all of them run at a time."""
    fast = not promotes(problem)

    def microseconds(tile, parts):
        return triton.cdiv(triton.cdiv(problem["k"], tile[2]), parts) * _STEPS[fast][tile] + (parts > 1) * _ADD_UP[fast]

    def runs(tile, parts):
        room = gpu.sms * (1 if tile[2] == 256 else 2)
        return parts * _tiles_of(*tile[:2], problem) <= room and (parts == 1 or problem["k"] >= 2 * parts * tile[2])

    every = [(tile, parts) for tile in _STEPS[fast] for parts in (1, *SPLIT_SPACE["SPLITS"]) if runs(tile, parts)]
    return min(every, key=lambda found: microseconds(*found))


def _whole_tile(problem: Case, gpu: GPU) -> tuple[int, ...] | None:
    """The tile by which `descriptor` takes few tiles and does not cut K; None where others do."""
    if not _has_few_tiles(problem, gpu):
        return None
    tile, parts = _best_of_few(problem, gpu)
    return tile if parts == 1 else None


def _described_alone(problem: Case, gpu: GPU) -> str:
    """Why `descriptor` alone takes a case."""
    if _whole_tile(problem, gpu):
        return "a round of small tiles ends sooner than a kernel that adds parts up"
    return small_tiles_make_a_round(problem, gpu)


def _multiplies_by_groups(problem: Case, gpu: GPU) -> str:
    """Why no variant in Gluon takes a case."""
    if gpu.functional:
        return "Gluon is not interpreted"
    if reason := describes(problem, gpu):
        return reason
    if reason := _described_alone(problem, gpu):
        return reason
    tiles = _tiles_of(128, 128, problem)
    # 32 x 1152 x 1600 takes 9.1 us by `persistent`, 11.3 by groups; 1024 each way 9.5 and 9.8; with sums in fp32 40 x
    # 3584 x 1600 11.6 by `descriptor`, 12.8 by groups (H200).
    idle = problem["m"] <= 64 or (not promotes(problem) and 2 * tiles <= gpu.sms)
    return f"{tiles} tiles of 128 x 128 leave half of C's rows or of {gpu.sms} SMs" if idle else ""


def specializes(problem: Case, gpu: GPU) -> str:
    """Why ``specialized`` does not take a case."""
    if reason := _multiplies_by_groups(problem, gpu):
        return reason
    sooner = not alternates(problem, gpu) and _alternating_seconds(problem, gpu) < _specialized(problem, gpu)[0]
    return "the last round of `alternating` is cut, and ends sooner" if sooner else ""


def alternates(problem: Case, gpu: GPU) -> str:
    """Why the variant whose groups have tiles of their own does not take a case."""
    if promotes(problem):
        return "two sets of sums of such a tile are more than a group has registers for"
    return _multiplies_by_groups(problem, gpu)


def _tiles_of(rows: int, columns: int, problem: Case) -> int:
    return triton.cdiv(problem["m"], rows) * triton.cdiv(problem["n"], columns)


def promotes(problem: Case) -> bool:
    """Whether the tensor cores' sums go to further registers on their way."""
    return problem.dtype != "int8" and not problem["fast"]


def _buffers(config: Config, problem: Case, gpu: GPU) -> int:
    """How many blocks of A and of B lie in shared memory at a time, as Triton 3.6 and 3.7 allocate them."""
    stages = config["num_stages"]
    return stages if reads_shared_memory(problem, gpu) else max(1, stages - 1)


def _shared_bytes(config: Config, problem: Case, gpu: GPU, persistent: bool) -> int:
    """Of the stages of A and B, and in a persistent kernel beside them a part of C."""
    stages = _buffers(config, problem, gpu) * (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"]
    tile_bytes = config["BLOCK_M"] * config["BLOCK_N"] * (4 if problem["scales"] == "none" else 2)
    return stages + persistent * tile_bytes // parts_of_tile(tile_bytes)


_PART_BYTES = 32768
"""Shared memory for C: beside four stages of the largest tile there is no room for more."""


def parts_of_tile(tile_bytes):
    """In how many parts a tile of C of so many bytes goes through shared memory."""
    return max(1, tile_bytes // _PART_BYTES)


def fits(config: Config, problem: Case, gpu: GPU, persistent: bool = False) -> str:
    """Why a config cannot launch, or cannot be the best for this problem; ``""`` for one worth a trial."""
    if config == _whole_config(problem, gpu):
        return ""
    shared = _shared_bytes(config, problem, gpu, persistent)
    if shared > gpu.shared_bytes - 1024 * persistent:  # and some barriers
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    rows, columns, warps = config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]
    # Partial sums take as many registers as the sums, and on sm_80 operands take some (Triton 3.7.1).
    most = 64 if promotes(problem) or not reads_shared_memory(problem, gpu) else 128
    accumulators = rows * columns // (32 * warps)
    if accumulators > most:
        return f"{accumulators} accumulators a thread in {warps} warps: registers spill"
    if warps > 4 and (rows < 128 or accumulators <= most // 2):
        return "too little work for 8 warps"
    return _fits_problem(config, problem, gpu) or _fits_depth(config, problem, gpu)


def _fits_problem(config: Config, problem: Case, gpu: GPU) -> str:
    rows, columns = config["BLOCK_M"], config["BLOCK_N"]
    if rows >= max(128, 2 * problem["m"]) or columns >= max(128, 2 * problem["n"]):
        return "a tile twice as large as C"
    if max(rows, columns) > 2 * min(rows, columns):
        return "of two tiles of one area, the one nearer to square reads less"
    tiles = tile_count(config, problem)
    if rows * columns > 64 * 64 and 2 * tiles < gpu.sms:
        return f"{tiles} tiles leave half of {gpu.sms} SMs idle"
    # 48 x 9728 x 2560 takes 21.3 us by 152 tiles of 64 x 64, 16.6 by 76 of 64 x 128 (H200).
    long = _thin(problem) and reads_shared_memory(problem, gpu)  # so that a program has the SM's shared memory
    if long and rows * columns == 64 * 64 and tiles > gpu.sms >= _tiles_of(64, 128, problem):
        return f"{tiles} tiles take a second round, of 64 x 128 there is one"
    full = _full(problem, gpu)
    if full and rows * columns < (64 * 128 if promotes(problem) else 128 * 128):
        return "reads more from L2 than a larger tile, of which there are enough"
    if promotes(problem) and rows > 64:
        return "partial sums want tiles that several programs of an SM have room for"
    if config["GROUP_M"] != 8 and not (full and (rows, columns) == (128, 256)):
        return "an order that matters to large products alone"
    return ""


def _fits_depth(config: Config, problem: Case, gpu: GPU) -> str:
    block_k, stages = config["BLOCK_K"], config["num_stages"]
    if _narrow(problem):
        fits = block_k == 32 and stages == 2 and config["BLOCK_M"] == config["BLOCK_N"] == 64
        return "" if fits else "elements that are read one by one take registers, and no stages"
    if not reads_shared_memory(problem, gpu):
        fits = block_k in (64, 128) and 2 < stages < 5
        return "" if fits else "too few bytes under way to hide latency, or more than that needs"
    if block_k != (256 if _thin(problem) else 128):
        return "shared memory is swizzled in rows of 128 bytes; more than that is for thin products"
    if (config["BLOCK_M"], config["BLOCK_N"], config["num_warps"]) == (128, 128, 4) and _full(problem, gpu):
        return "" if stages == 3 else "three stages leave room for a second program on the SM"
    least, most = (4, 6) if _thin(problem) else (3, 4)
    return "" if least <= stages <= most else "too few bytes under way to hide latency, or more than that needs"


def _thin(problem: Case) -> bool:
    """Whether a product reads B and little else."""
    return problem["m"] <= 64 and problem["k"] >= 1024


def _narrow(problem: Case) -> bool:
    """Whether operands are read element by element, through registers, and the loop is not pipelined."""
    return problem["k"] % 16 != 0


def _full(problem: Case, gpu: GPU) -> bool:
    """Whether C has two of the largest tiles for every SM."""
    return problem["m"] * problem["n"] >= 2 * gpu.sms * 128 * 256


SPACE = {
    "BLOCK_M": (64, 128, 256),
    "BLOCK_N": (64, 128, 256),
    "BLOCK_K": (32, 64, 128, 256),
    "GROUP_M": (8, 16),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5, 6),
}

# (BLOCK_M, BLOCK_N, num_warps): the share of its best rate that an H200 reaches with such tiles on every SM.  Of the
# smaller ones two programs share an SM, and one multiplies while the other writes; a persistent program is alone.
_TILES = {(128, 128, 4): 1.0, (128, 128, 8): 0.95, (64, 128, 4): 0.75, (64, 64, 4): 0.6}
_PERSISTENT_TILES = {(128, 256, 8): 1.0, (128, 128, 4): 0.92, (128, 128, 8): 0.85, (64, 128, 4): 0.7, (64, 64, 4): 0.5}
_PROMOTING_TILES = {(64, 128, 4): 1.0, (64, 64, 4): 0.7}


def default(problem: Case, gpu: GPU, persistent: bool = False) -> dict[str, int]:
    """Of a few tiles the one that ends first if all SMs take tiles in step."""
    if not persistent and (whole := _whole_config(problem, gpu)):
        return whole
    if not persistent and small_tiles_make_a_round(problem, gpu):
        # Four stages leave room for two programs: 254 x 8448 x 1600, 264 tiles, take 10.1 us so, 11.3 by three (H200).
        stages = 3 if _tiles_of(64, 128, problem) > 2 * gpu.sms else 4
        return dict(zip(SPACE, (64, 128, 128, 8, 4, stages), strict=True))
    shares = _PROMOTING_TILES if promotes(problem) else _PERSISTENT_TILES if persistent else _TILES

    def config(rows, columns, warps):
        long = _thin(problem) and reads_shared_memory(problem, gpu)
        block_k = 32 if _narrow(problem) else 256 if long else 128
        tile = dict(zip(SPACE, (rows, columns, block_k, 8, warps), strict=False))
        every = [tile | {"num_stages": stages} for stages in (5, 4, 3, 2)]
        return next((config for config in every if not fits(config, problem, gpu, persistent)), every[-1])

    def seconds(tile):  # in units of one multiplication-addition on every SM
        waves = triton.cdiv(tile_count(config(*tile), problem), gpu.sms)
        return waves * tile[0] * tile[1] / shares[tile]

    fitting = [tile for tile in shares if not fits(config(*tile), problem, gpu, persistent)]
    return config(*min(fitting or list(shares)[-1:], key=seconds))


def _whole_config(problem: Case, gpu: GPU) -> dict[str, int] | None:
    """The config of that tile."""
    if not (tile := _whole_tile(problem, gpu)):
        return None
    return dict(zip(SPACE, (*tile[:3], 8, 4, tile[3]), strict=True))


SPECIALIZED_SPACE = {
    "GROUPS": (2, 3),
    "BLOCK_N": (128, 256),
    "GROUP_M": (8, 16),
    "STAGES": (3, 4, 5, 6),
}

ALTERNATING_SPACE = {"BLOCK": (128,), "GROUP_M": (8, 16), "STAGES": (5, 6)}


def fits_specialized(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``specialized`` cannot launch, or cannot be the best for this problem."""
    from .hopper import ROWS, parts

    groups, columns, stages = config["GROUPS"], config["BLOCK_N"], config["STAGES"]
    size = 4 if problem["scales"] == "none" else 2
    buffers, width = parts(groups, ROWS.value, columns, size)
    stage = (64 * groups + columns) * 128
    shared = stages * stage + groups * buffers * 64 * width * size + 1024
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    if columns > (128 if promotes(problem) or groups == 3 else 256):
        return "registers spill"
    if groups == 3 and not _full(problem, gpu):
        return "large tiles for a small C"
    if shared + stage <= gpu.shared_bytes and stages < 6:
        return "leaves room for a further stage"
    if config["GROUP_M"] != 8 and not _full(problem, gpu):
        return "an order that matters to large products alone"
    return ""


def fits_alternating(config: Config, problem: Case, gpu: GPU) -> str:
    """The same for ``alternating``."""
    from .hopper import parts

    size = 4 if problem["scales"] == "none" else 2
    rows = columns = config["BLOCK"]
    buffers, width = parts(2, rows, columns, size)
    stage = (rows + columns) * 128
    shared = config["STAGES"] * stage + 2 * buffers * rows * width * size + 1024
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    return "leaves room for a further stage" if shared + stage <= gpu.shared_bytes else ""


# (GROUPS, BLOCK_N): the share of its best rate that an H200 reaches with such tiles on every SM.  While two groups add
# partial sums a third one keeps the tensor cores at work.
_GROUPS = {(2, 256): 1.0, (3, 128): 0.97, (2, 128): 0.94}
_PROMOTING_GROUPS = {(3, 128): 1.0, (2, 128): 0.92}
_ALTERNATING, _ALTERNATING_LONG = 0.93, 0.95
"""The same for tiles of ``alternating``, in up to two rounds, and in more, whose ends it hides."""


def _specialized(problem: Case, gpu: GPU) -> tuple[float, tuple[int, int]]:
    """How long ``specialized`` takes if all SMs take tiles in step, and its tile.

    In units of one multiplication-addition on every SM, of each element of K.
    """
    shares = _PROMOTING_GROUPS if promotes(problem) else _GROUPS

    def seconds(groups, columns):
        rounds = triton.cdiv(_tiles_of(64 * groups, columns, problem), gpu.sms)
        return rounds * 64 * groups * columns / shares[groups, columns]

    fitting = [tile for tile in shares if _specialized_config(tile, problem, gpu)]
    return min(((seconds(*tile), tile) for tile in fitting), key=lambda found: found[0])


def _alternating_seconds(problem: Case, gpu: GPU) -> float:
    """The same for ``alternating``, whose last round is cut in two where it has tiles for half of the SMs at most."""
    rounds, rest = divmod(_tiles_of(128, 128, problem), gpu.sms)
    last = 0.0 if not rest else 0.5 if 2 * rest <= gpu.sms else 1.0
    return (rounds + last) * 128 * 128 / (_ALTERNATING if rounds + last <= 2 else _ALTERNATING_LONG)


def _specialized_config(tile: tuple[int, int], problem: Case, gpu: GPU) -> dict[str, int] | None:
    """The config of a tile with as many stages as fit; None where none do."""
    every = (dict(zip(SPECIALIZED_SPACE, (*tile, 8, stages), strict=True)) for stages in SPECIALIZED_SPACE["STAGES"])
    return next((config for config in every if not fits_specialized(config, problem, gpu)), None)


def default_specialized(problem: Case, gpu: GPU) -> dict[str, int]:
    return _specialized_config(_specialized(problem, gpu)[1], problem, gpu)


def default_alternating(problem: Case, gpu: GPU) -> dict[str, int]:
    """An order of 16 is up to 1.24 times as slow at large products, and 0.99 at best (H100, H200)."""
    return dict(zip(ALTERNATING_SPACE, (128, 8, 6), strict=True))


def splits(problem: Case, gpu: GPU) -> str:
    """Why K is not cut into parts."""
    if reason := describes(problem, gpu):
        return reason
    tiles = _tiles_of(128, 128, problem)
    if not gpu.functional and (2 * tiles > gpu.sms or problem["k"] < 2048):
        return f"{tiles} tiles of 128 x 128, or sums too short to be cut"
    if _whole_tile(problem, gpu):
        return _described_alone(problem, gpu)
    # 32 x 4864 x 3072 takes 12.4 us by 76 tiles of 64 x 64, 14.2 in parts; 64 x 6912 x 2560 12.4 and 16.4; 16 x 8192 x
    # 8192 31.5 and 29.5 (H200).
    small = _tiles_of(64, 64, problem)
    thin = not gpu.functional and problem["m"] <= 64 and 2 * small > gpu.sms and problem["k"] < 8192
    return f"{small} tiles of 64 x 64, of one round that has no second kernel" if thin else ""


SPLIT_SPACE = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (64, 128),
    "BLOCK_K": (128, 256),
    "GROUP_M": (8,),
    "num_warps": (4,),
    "num_stages": (3, 4, 5),
    "SPLITS": (2, 3, 4, 6, 8, 12, 16),
}

_SPLIT_TILES = {16: ((16, 128, 256, 4), (16, 64, 256, 5)), 32: ((32, 128, 256, 4), (32, 64, 256, 5)),
                64: ((64, 64, 256, 5), (64, 128, 256, 4)), 128: ((128, 128, 128, 5), (64, 128, 256, 4))}  # fmt: skip
"""By rows of C up to 16, 32, 64 and more: BLOCK_M, BLOCK_N, BLOCK_K, num_stages; some 120 to 190 KiB under way."""


def _split_tiles(problem: Case, gpu: GPU) -> tuple[tuple[int, ...], ...]:
    if _has_few_tiles(problem, gpu):
        return tuple(_STEPS[not promotes(problem)])
    rows = next((most for most in _SPLIT_TILES if problem["m"] <= most), 128)
    tiles = _SPLIT_TILES[rows]
    if problem.dtype != "int8" and not problem["fast"]:  # partial sums take registers of their own
        return tuple(tile for tile in tiles if tile[0] < 128)
    return tiles


def _parts_wanted(tile: tuple[int, ...], problem: Case, gpu: GPU) -> int:
    """As many parts as give each SM one program, of no less than two blocks of K each."""
    tiles = max(1, triton.cdiv(problem["m"], tile[0]) * triton.cdiv(problem["n"], tile[1]))
    most = max(2, min(gpu.sms // tiles, problem["k"] // (2 * tile[2])))
    return max(count for count in SPLIT_SPACE["SPLITS"] if count <= most)


def fits_split(config: Config, problem: Case, gpu: GPU) -> str:
    """Why a config of ``split_descriptor`` cannot launch, or cannot be the best."""
    tile = tuple(config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages"))
    if tile not in _split_tiles(problem, gpu):
        return "other tiles have as many bytes under way, and rows that C has"
    shared = config["num_stages"] * (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"]
    if shared > gpu.shared_bytes:
        return f"{shared} bytes of shared memory, {gpu.shared_bytes} at most"
    if config == default_split(problem, gpu):
        return ""
    wanted = _parts_wanted(tile, problem, gpu)
    if not wanted / 2 <= config["SPLITS"] <= wanted:
        return "parts that leave SMs idle, or more than there are SMs for"
    return ""


def default_split(problem: Case, gpu: GPU) -> dict[str, int]:
    """The first of the tiles, or of those with an estimate the best."""
    if _has_few_tiles(problem, gpu):
        tile, parts = _best_of_few(problem, gpu)
    else:
        tile = _split_tiles(problem, gpu)[0]
        parts = _parts_wanted(tile, problem, gpu)
    return dict(zip(SPLIT_SPACE, (*tile[:3], 8, 4, tile[3], parts), strict=True))
