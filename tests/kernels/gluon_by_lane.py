"""Gluon functions run as plain Python: a ``gl`` whose tensors know which lane of which warp holds what.

Gluon is not interpreted, and what goes wrong in it is mostly not arithmetic but whose number it is.  A tensor here has
its bits as [warp, lane, register], and with each the element that it is.  Layouts are Triton's own, as Triton prints
them.  Splits, joins, reshapes, broadcasts and conversions said to be trivial move nothing from lane to lane, or raise
:class:`Moved`; other conversions move what they like.  PTX is run line by line, with what an instruction of 16 bits
makes rounded once, and numbers below the normal ones kept, as PTX documents it.

Not modelled: time (barriers, copies, what a product still reads while its registers are written anew), the bytes of
shared memory and with them its swizzle and bank conflicts, layouts that Gluon infers or refuses (a conversion said to
be trivial may reorder a lane's registers here), which registers of PTX's operands may be one, and what ptxas makes of
it all.
"""

import functools
import inspect
import re
import types

import numpy as np
from triton._C.libtriton import gluon_ir
from triton.experimental.gluon import language
from triton.runtime.jit import JITFunction


class Moved(Exception):
    """A lane would need a number that another one holds."""


def value_of(constant):
    """A Python value, of a constexpr or of itself."""
    return constant.value if isinstance(constant, language.constexpr) else constant


def shape_of(sizes):
    return tuple(value_of(size) for size in sizes)


@functools.lru_cache
def held(layout, shape):
    """The element, as a number in the order of C, that [warp, lane, register] of a layout holds."""
    printed = gluon_ir.get_layout_view(layout, list(shape), True)
    warps, text = printed.count("Warp"), re.sub(r"Warp\d+:", "", printed)
    places = np.array(re.findall(r"\d+", text), dtype=np.int64).reshape(warps, -1, 32, len(shape))
    elements = np.ravel_multi_index(np.moveaxis(places, -1, 0), shape).swapaxes(1, 2)
    # Registers that hold the same in every lane are one.
    first = np.unique(elements.reshape(-1, elements.shape[-1]), axis=1, return_index=True)[1]
    return elements[..., np.sort(first)]


# --- Tensors ---------------------------------------------------------------------------------------------------------


class Tensor:
    """Integers of ``width`` bits, as unsigned ones, beside the elements that they are, both [warp, lane, register]."""

    def __init__(self, shape, elements, bits, width=32):
        self.shape, self.elements, self.width = shape_of(shape), elements, width
        self.bits = np.broadcast_to(np.asarray(bits, dtype=np.int64) & (1 << width) - 1, elements.shape)

    def like(self, bits):
        return Tensor(self.shape, self.elements, bits, self.width)

    def signed(self):
        return (self.bits ^ 1 << self.width - 1) - (1 << self.width - 1)

    def own(self, wanted):
        """Bits of the elements ``wanted`` [warp, lane, any], which each lane must hold itself."""
        places = np.full((*wanted.shape[:2], int(np.prod(self.shape))), -1)
        np.put_along_axis(places, self.elements, self.bits, -1)
        found = np.take_along_axis(places, wanted, -1)
        if (found < 0).any():
            raise Moved(f"{(found < 0).any(-1).sum()} lanes lack an element")
        return found

    def anywhere(self, wanted):
        """Bits of the elements ``wanted``, of whichever lane."""
        places = np.full(int(np.prod(self.shape)), -1)
        places[self.elements] = self.bits
        assert (places[wanted] >= 0).all(), "an element that no lane holds"
        return places[wanted]

    def reshape(self, shape):
        assert np.prod(shape_of(shape)) == np.prod(self.shape)
        return Tensor(shape, self.elements, self.bits, self.width)

    def permute(self, *order):
        places, shape = np.unravel_index(self.elements, self.shape), [self.shape[d] for d in order]
        return Tensor(shape, np.ravel_multi_index([places[d] for d in order], shape), self.bits, self.width)

    def split(self):
        assert self.shape[-1] == 2
        even = self.elements % 2 == 0
        if not (even == even[:1, :1]).all():
            raise Moved("the two of a split are not the same registers of all lanes")
        first = self.elements[..., even[0, 0]]
        return tuple(Tensor(self.shape[:-1], first // 2, self.own(first + odd), self.width) for odd in range(2))

    def __getitem__(self, index):
        """With new dimensions for None; the others are taken whole."""
        sizes = iter(self.shape)
        return self.reshape([1 if i is None else next(sizes) for i in index])

    def _with(self, other, operation):
        if not isinstance(other, Tensor):
            return self.like(operation(self.bits, int(value_of(other))))
        large, small = (self, other) if np.prod(self.shape) >= np.prod(other.shape) else (other, self)
        assert large.width == small.width
        assert all(size in (1, of) for size, of in zip(small.shape, large.shape, strict=True))
        places = np.unravel_index(large.elements, large.shape)
        places = [place % size for place, size in zip(places, small.shape, strict=True)]
        return large.like(operation(large.bits, small.own(np.ravel_multi_index(places, small.shape))))

    def __add__(self, other):
        return self._with(other, np.add)

    def __mul__(self, other):
        return self._with(other, np.multiply)

    def __and__(self, other):
        return self._with(other, np.bitwise_and)

    def __mod__(self, other):
        """Of what is not negative."""
        return self._with(other, np.remainder)

    def __rshift__(self, by):
        return self.like(self.signed() >> by)

    def to(self, dtype, bitcast=False):
        width = dtype.primitive_bitwidth
        assert dtype.is_int() or (bitcast and width == self.width), "the bits are all there is of a number"
        return Tensor(self.shape, self.elements, self.signed(), width)


class Shared:
    """A slot of shared memory: an array of integers of ``width`` bits, wherever their bytes lie."""

    def __init__(self, array, width):
        self.array, self.width = np.asarray(array), width
        self.shape = self.array.shape

    def load(self, layout):
        elements = held(layout, self.array.shape)
        return Tensor(self.array.shape, elements, self.array.reshape(-1)[elements], self.width)


class Slots:
    """Slots of shared memory, or what stands for them."""

    def __init__(self, slots):
        self.slots = slots

    def index(self, i):
        return self.slots[i]


# --- PTX -------------------------------------------------------------------------------------------------------------


def number(bits, kind):
    """The numbers (float64) of 16 bits, ``bf16`` or ``f16``."""
    if kind == "bf16":
        return (bits << 16).astype(np.uint32).view(np.float32).astype(np.float64)
    return bits.astype(np.uint16).view(np.float16).astype(np.float64)


def rounded(values, kind):
    """The 16 bits nearest to each float64; of two as near the even ones."""
    if kind == "f16":
        with np.errstate(over="raise"):
            return values.astype(np.float16).view(np.uint16).astype(np.int64)
    unit = np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 8, -133))
    values = np.rint(values / unit) * unit
    assert (np.abs(values) < 2.0**128).all()
    return values.astype(np.float32).view(np.uint32).astype(np.int64) >> 16


def in_halves(kind, operation, operands):
    """An instruction on both numbers of a word, exact before it is rounded as long as float64 is."""
    halves = [rounded(operation(*(number(o >> by & 0xFFFF, kind) for o in operands)), kind) for by in (0, 16)]
    return halves[0] | halves[1] << 16


def permuted_bytes(low, high, selector):
    both, out = (low | high << 32).astype(np.uint64), 0
    for i in range(4):
        byte = selector >> 4 * i & 15
        assert (byte < 8).all(), "a sign instead of a byte"
        out = out | (both >> (8 * byte).astype(np.uint64) & np.uint64(255)).astype(np.int64) << 8 * i
    return out


def by_table(a, b, c, table):
    """Logic of three operands: the table's bit 4 a + 2 b + c."""
    out = 0
    for i in range(8):
        if table >> i & 1:
            out = out | (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return out


def turned_over(words):
    """``movmatrix``: of 8 x 8 numbers of 16 bits, two neighbours of row lane / 4 a lane, those of column lane / 4."""
    warps, _, registers = words.shape
    numbers = np.stack((words & 0xFFFF, words >> 16), -1).reshape(warps, 8, 4, registers, 2)
    turned = numbers.transpose(0, 2, 4, 3, 1).reshape(warps, 8, registers, 4, 2)  # column, register, row in pairs
    low, high = np.moveaxis(turned.transpose(0, 1, 3, 2, 4).reshape(warps, 32, registers, 2), -1, 0)
    return low | high << 16


def run_ptx(text, registers):
    """Write to ``registers``, arrays of words by name ($0 on), what PTX does with those that are there."""
    declared = {"%laneid": np.arange(32)[:, None]}
    for line in re.sub(r"[{}\n]", " ", text).split(";"):
        instruction, _, rest = line.strip().partition(" ")
        if not instruction or instruction == ".reg":
            continue
        into, *names = (name.strip() for name in rest.split(","))
        known = declared | registers
        given = [np.asarray(known[name] if name in known else int(name, 0), np.int64) & 0xFFFFFFFF for name in names]
        operation, *of = instruction.split(".")
        match operation:
            case "mov":
                (out,) = given
            case "shr":
                assert of == ["u32"]
                out = given[0] >> given[1]
            case "and":
                out = given[0] & given[1]
            case "prmt":
                out = permuted_bytes(*given)
            case "lop3":
                out = by_table(*given)
            case "setp":
                assert of == ["ne", "b32"]
                out = (given[0] != given[1]).astype(np.int64)
            case "selp":
                out = np.where(given[2] != 0, given[0], given[1])
            case "shfl":
                assert of == ["sync", "bfly", "b32"] and names[2:] == ["31", "-1"]
                out = given[0][:, np.arange(32) ^ int(names[1])]
            case "cvt":
                assert of[0] == "rn" and of[2] == "f32"
                floats = (words.astype(np.uint32).view(np.float32).astype(np.float64) for words in given)
                high, low = (rounded(one, of[1].removesuffix("x2")) for one in floats)
                out = low | high << 16
            case "movmatrix":
                assert of == ["sync", "aligned", "m8n8", "trans", "b16"]
                out = turned_over(*given)
            case "mul" | "fma":
                assert of[0] == "rn"
                multiply = (lambda a, b: a * b) if operation == "mul" else (lambda a, b, c: a * b + c)
                out = in_halves(of[1].removesuffix("x2"), multiply, given)
            case other:
                raise NotImplementedError(other)
        (registers if into.startswith("$") else declared)[into] = out & 0xFFFFFFFF


# --- Functions -------------------------------------------------------------------------------------------------------


class Gluon:
    """``gl``: what works on tensors is here, layouts, dtypes and constants are Gluon's."""

    def __getattr__(self, name):
        return getattr(language, name)

    def full(self, shape, number, dtype, layout):
        return Tensor(shape, held(layout, shape_of(shape)), number, dtype.primitive_bitwidth)

    def zeros(self, shape, dtype, layout):
        return self.full(shape, 0, dtype, layout)

    def zeros_like(self, tensor):
        return tensor.like(0)

    def convert_layout(self, tensor, layout, assert_trivial=False):
        elements = held(layout, tensor.shape)
        bits = tensor.own(elements) if assert_trivial else tensor.anywhere(elements)
        return Tensor(tensor.shape, elements, bits, tensor.width)

    def join(self, low, high):
        assert low.shape == high.shape
        elements = np.concatenate((2 * low.elements, 2 * low.elements + 1), -1)
        bits = np.concatenate((low.bits, high.own(low.elements)), -1)
        return Tensor([*low.shape, 2], elements, bits, low.width)

    def inline_asm_elementwise(self, asm, constraints, args, dtype, is_pure, pack):
        """PTX sees ``pack`` registers of each argument at a time, in the layout's order; one run does all."""
        several, first = isinstance(dtype, tuple), args[0]
        outputs = len(dtype) if several else 1
        assert all(np.array_equal(argument.elements, first.elements) for argument in args)
        assert not first.elements.shape[-1] % pack
        operands = [operand.startswith("=") for operand in value_of(constraints).split(",")]
        assert operands == [True] * (outputs * pack) + [False] * (len(args) * pack)
        given = [argument.bits[..., i::pack] for argument in args for i in range(pack)]
        registers = {f"${outputs * pack + i}": bits for i, bits in enumerate(given)}
        run_ptx(value_of(asm), registers)
        made = []
        for i in range(outputs):
            bits = np.stack([registers[f"${i * pack + j}"] for j in range(pack)], -1)
            made.append(first.like(bits.reshape(first.elements.shape)))
        return tuple(made) if several else made[0]


def as_python(modules, replaced=None, edits=()):
    """All Gluon functions of the modules, by name, as plain ones that call each other.

    ``replaced`` are objects to be found instead of what has their name in a module.  ``edits`` plant faults: of each
    function's name, a text that it has once, and what shall stand there.
    """
    functions = dict(replaced or {})
    left = {name: (old, new) for name, old, new in edits}
    decorators = types.SimpleNamespace(jit=lambda function: function)
    scopes = [dict(vars(module)) | {"gl": Gluon(), "gluon": decorators} for module in modules]
    for module, scope in zip(modules, scopes, strict=True):
        for name, jitted in vars(module).items():
            if not isinstance(jitted, JITFunction) or jitted.fn.__module__ != module.__name__ or name in functions:
                continue
            if name in left:
                text, (old, new) = inspect.getsource(jitted.fn), left.pop(name)
                if text.count(old) != 1:
                    raise ValueError(f"{name} has {text.count(old)} times {old}")
                exec(text.replace(old, new), scope)
                functions[name] = scope[name]
            else:
                functions[name] = types.FunctionType(jitted.fn.__code__, scope, name, jitted.fn.__defaults__)
    if left:
        raise ValueError(f"no such function to edit: {', '.join(left)}")
    for scope in scopes:
        scope.update((name, function) for name, function in functions.items() if name in scope)
    return functions
