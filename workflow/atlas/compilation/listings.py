"""What the compiler wrote, PTX and AMD's assembly: read for facts, digested without the checkout's path, and kept."""

from __future__ import annotations

import collections
import hashlib
import re
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .offline import Request

_DEBUG_SECTION = re.compile(r'\.section\s+"?\.debug')
_SECTION = re.compile(r"\.(section|text|data|amdgpu_metadata)\b")
_LOCATION = re.compile(r"\.(file|loc)\s")

_ACCESS = re.compile(r"\b(?:ld|st)\.(?:[\w:]+\.)*?global(?:\.[\w:]+?)*?(?:\.v(\d))?\.[bfsu](\d+)\b")
_CP_ASYNC = re.compile(r"\bcp\.async\.c[ag]\.shared\.global\S*\s+\[[^]]*\],\s*\[[^]]*\],\s*(0x[0-9a-f]+|\d+)")
_BULK = re.compile(r"\bcp(?:\.reduce)?\.async\.bulk\S*global")
_BULK_BITS = 128  # the tensor memory accelerator moves multiples of 16 bytes

_AMD_ACCESS = re.compile(
    r"\b(?:global|buffer|flat)_(?:load|store)_(?:lds_)?(dwordx[234]|dword|[su]?byte|[su]?short|b\d+)"
)
_AMD_BITS = {"dword": 32, "dwordx2": 64, "dwordx3": 96, "dwordx4": 128}

_MATRIX = re.compile(r"\b(?:wgmma\.mma_async|tcgen05\.mma|w?mma\.(?:sync|mma))[\w.:]*|\bv_(?:s?mfmac?|wmma)_\w+")

MATRIX_INSTRUCTIONS = ("wgmma", "tcgen05", "mma", "fma", "none")
"""What ``tl.dot`` may become, the strongest first; ``mma`` is also AMD's MFMA, ``none``: there is no dot."""
ASYNC_COPIES = ("tma", "cp.async", "none")
"""The tensor memory accelerator, threads that do not wait, or through registers; the strongest first."""


def assembly(kernel: Any) -> str:
    """The PTX or the AMD assembly of Triton's CompiledKernel."""
    return kernel.asm["ptx" if kernel.metadata.target.backend == "cuda" else "amdgcn"]


def strip_debug(text: str) -> str:
    """PTX or AMD assembly without source positions and debug sections, which hold the checkout's path."""
    kept, skipping = [], False
    for line in text.splitlines():
        word = line.strip()
        if _SECTION.match(word):
            skipping = bool(_DEBUG_SECTION.match(word)) and "}" not in word
            if _DEBUG_SECTION.match(word):
                continue
        if skipping:
            skipping = word != "}"  # in PTX a brace ends the section, in AMD's assembly the next section does
        elif not _LOCATION.match(word):
            kept.append(line.rstrip())
    return "\n".join(kept).strip() + "\n"


def sha256_of_text(text: str) -> str:
    """SHA-256 of a listing without its debug parts."""
    return hashlib.sha256(strip_debug(text).encode()).hexdigest()


def sha256_of_binary(binary: bytes) -> str:
    """SHA-256 of what a GPU loads of an ELF file (cubin, hsaco): names and contents of its allocated sections.

    Debug sections, which hold the checkout's path, are not allocated.  Layout: ELF-64, little endian (elf(5)).
    """
    start = struct.unpack_from("<Q", binary, 0x28)[0]
    size, count, names_index = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", binary, start + i * size) for i in range(count)]
    names = headers[names_index][4]
    digest = hashlib.sha256()
    for name, kind, flags, _, offset, length, *_ in headers:
        if flags & 0x2:  # SHF_ALLOC
            first = names + name
            digest.update(binary[first : binary.index(b"\0", first) + 1])
            digest.update(b"" if kind == 8 else binary[offset : offset + length])  # SHT_NOBITS has no contents
    return digest.hexdigest()


def widest_access_bits(text: str) -> int | None:
    """Bits of the widest global load, store or asynchronous copy of one thread; None where memory is not touched."""
    widths = [int(vector or 1) * int(bits) for vector, bits in _ACCESS.findall(text)]
    widths += [8 * int(size, 0) for size in _CP_ASYNC.findall(text)]
    widths += [_BULK_BITS] if _BULK.search(text) else []
    for name in _AMD_ACCESS.findall(text):
        widths.append(_AMD_BITS.get(name) or (int(name[1:]) if name[0] == "b" and name[1:].isdigit() else 0))
        widths[-1] = widths[-1] or (8 if "byte" in name else 16)
    return max(widths, default=None)


def accesses(text: str) -> dict[str, int]:
    """How often a listing loads or stores how many bits a thread of global memory: ``{"load 128": 4, "store 32": 1}``.

    What an asynchronous copy moves counts as ``copy``, with 128 bits for the tensor memory accelerator.
    """
    found: collections.Counter[str] = collections.Counter()
    for match in _ACCESS.finditer(text):
        found[f"{'load' if match[0].startswith('ld') else 'store'} {int(match[1] or 1) * int(match[2])}"] += 1
    for size in _CP_ASYNC.findall(text):
        found[f"copy {8 * int(size, 0)}"] += 1
    found[f"copy {_BULK_BITS}"] += len(_BULK.findall(text))
    for match in _AMD_ACCESS.finditer(text):
        found[f"{'load' if '_load_' in match[0] else 'store'} {widest_access_bits(match[0])}"] += 1
    return {name: count for name, count in sorted(found.items()) if count}


def matrix_instructions(text: str) -> dict[str, int]:
    """How often a listing names which matrix instruction: ``{"wgmma m64n128k16 f32.bf16.bf16": 4}``."""
    found: collections.Counter[str] = collections.Counter()
    for match in _MATRIX.finditer(text):
        words = match[0].split(".")
        shape = next((word for word in words if re.fullmatch(r"m\d+n\d+k\d+", word)), "")
        types = ".".join(word for word in words if re.fullmatch(r"(?:b|t)?[fsub]\d+|e\dm\d|kind::\w+", word))
        found[" ".join(filter(None, (words[0], shape, types)))] += 1
    return dict(sorted(found.items()))


def async_copies(text: str) -> str:
    """Who moves tiles between global and shared memory, out of :data:`ASYNC_COPIES`."""
    if re.search(r"\bcp(?:\.reduce)?\.async\.bulk\.tensor", text):
        return "tma"
    return "cp.async" if re.search(r"\bcp\.async\.c[ag]\b", text) else "none"


def matrix_instruction(text: str, has_dot: bool) -> str:
    """What the dots of a kernel became, out of :data:`MATRIX_INSTRUCTIONS`; ``has_dot``: its TTIR has one."""
    for name, pattern in (
        ("wgmma", r"\bwgmma\.mma_async"),
        ("tcgen05", r"\btcgen05\.mma"),
        ("mma", r"\bmma\.sync|\bwmma\.mma|\bv_s?mfmac?_|\bv_wmma_"),
    ):
        if re.search(pattern, text):
            return name
    return "fma" if has_dot else "none"


def write_listings(prefix: Path, names: Sequence[str], requests: Sequence[Request], sass: bool) -> list[str]:
    """Write the listing of each kernel, named in ``names``, as ``<prefix>-<name>.ptx``; returns the files' names.

    Debug parts are left out: the text is what the document's digest is of.  ``sass`` asks for the machine code as well,
    beside it as ``.sass``, which takes 0.3 s a kernel to disassemble.  For AMD there is one ``.amdgcn``.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for position, (kernel, request) in enumerate(zip(names, requests, strict=True)):
        twin = names[:position].count(kernel)
        name = f"{prefix.name}-{kernel}{f'-{twin + 1}' if twin else ''}"
        cuda = request.kernel.metadata.target.backend == "cuda"
        path = prefix.with_name(f"{name}.{'ptx' if cuda else 'amdgcn'}")
        path.write_text(strip_debug(assembly(request.kernel)))
        code = disassembly(request.kernel) if sass and cuda else ""
        if code:
            prefix.with_name(f"{name}.sass").write_text(code)
        written.append(path.name)
    return written


def disassembly(kernel: Any) -> str:
    """The machine code as Triton prints it; empty where this Triton's disassembler does not know the architecture."""
    try:
        return kernel.asm["sass"] or ""
    except (OSError, subprocess.SubprocessError, AttributeError, ValueError):
        return ""
