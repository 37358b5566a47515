"""The PTX by which a quad's lanes exchange packed words, run by a few lines of Python: to whom each number comes."""

import pytest

from kernels.matmul_w4a16.exchange import exchange_4_asm, exchange_8_asm

LANES = range(4)


def run(ptx, words):
    """The four words of each lane that ``ptx`` leaves in $0 to $3, of each lane's words in $4 to $7."""
    lanes = [{f"${4 + i}": word for i, word in enumerate(words[t])} | {"$8": t} for t in LANES]
    value = lambda lane, name: lane[name] if name in lane else int(name, 0)  # noqa: E731
    for line in ptx.strip("{} \n").replace("\n", "").split(";"):
        name, _, rest = line.strip().partition(" ")
        args = [arg.strip() for arg in rest.split(",")]
        if not name or name == ".reg":
            continue
        sent = [value(lane, args[1]) for lane in lanes]
        for t, lane in enumerate(lanes):
            operands = [value(lane, arg) for arg in args[1:]]
            match name.split(".")[0]:
                case "mov":
                    lane[args[0]] = operands[0]
                case "and":
                    lane[args[0]] = operands[0] & operands[1]
                case "setp":
                    lane[args[0]] = operands[0] != operands[1]
                case "selp":
                    lane[args[0]] = operands[0] if operands[2] else operands[1]
                case "shfl":
                    lane[args[0]] = sent[t ^ operands[1]]
                case "prmt":
                    both = (operands[0] | operands[1] << 32).to_bytes(8, "little")
                    chosen = bytes(both[operands[2] >> 4 * i & 7] for i in range(4))
                    lane[args[0]] = int.from_bytes(chosen, "little")
                case other:
                    raise AssertionError(other)
    return [[lane[f"${i}"] for i in range(4)] for lane in lanes]


@pytest.mark.parametrize("bit", range(0, 8, 4))
def test_words_of_4_bits_come_to_the_lanes_of_fragments(bit):
    def number(h, column):
        return (2 * column + h) >> bit & 15

    def word(columns):  # columns of (half, q, p)
        return sum(number(h, c) << 4 * (h + at) for at, c in columns for h in range(2))

    packed = [
        [word((2 * q + 4 * p, 32 * half + 8 * t + 4 * w + 2 * q + p) for q in range(2) for p in range(2))
         for half in range(2) for w in range(2)]
        for t in LANES
    ]  # fmt: skip
    wanted = [
        [word((2 * half + 4 * p, 32 * half + 8 * s + 2 * t + p) for half in range(2) for p in range(2)) for s in LANES]
        for t in LANES
    ]
    assert run(exchange_4_asm(), packed) == wanted


def test_words_of_8_bits_come_to_the_lanes_of_fragments():
    # word i of lane t has columns 8 t + 2 i and the next: exchanged, word s of lane t has those from 8 s + 2 t on
    assert run(exchange_8_asm(), [[8 * t + 2 * i for i in LANES] for t in LANES]) == [
        [8 * s + 2 * t for s in LANES] for t in LANES
    ]
