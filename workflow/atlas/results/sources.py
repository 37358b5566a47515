"""The files of a record from outside, with a bound on everything: of a file, folder, archive, URL or MLflow run.

What comes is a name to quote in messages, and bytes.  Links, and names that lead out of an archive, are refused.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ..errors import AtlasError
from ..reading import strict
from . import files, packed

MOST_BYTES = 64 * 2**20
"""Of a source as it comes: thirty times what one GPU's records may have."""
MOST_INFLATED = 256 * 2**20
"""Of an archive, unpacked."""
MOST_MEMBERS = 5000
MOST_REDIRECTS = 3
SILENCE_SECONDS, MOST_SECONDS = 30.0, 300.0
"""How long a server may say nothing, and take in all."""

_DOCUMENTS = (files.PACKED, files.PLAIN)
_TARS = (".tar", ".tar.gz", ".tgz", ".tar.xz")
_ZIP_ENTRY = b"PK\x01\x02"
_KNOWN = (*_DOCUMENTS, ".zip", *_TARS)


def opened(source: str, results: Path) -> Iterator[tuple[str, bytes]]:
    """The names and contents of a source's documents; others of its files are left out.

    A path, an http or https URL, or ``mlflow:RUN`` and ``mlflow:URI/RUN`` with the store of ``results``.  Raises
    :class:`~atlas.errors.AtlasError` for a source that cannot be read, is too large, or is no record.
    """
    scheme = urllib.parse.urlsplit(source).scheme
    if source.startswith("mlflow:"):
        from ..tracking import fetched

        return fetched.artifacts(source.removeprefix("mlflow:"), results, MOST_BYTES)
    if "://" in source:
        if scheme not in ("http", "https"):
            raise AtlasError(f"{source}: {scheme!r} is not read; give an http or https URL, or a path")
        return _of_file(_shown(source), PurePosixPath(urllib.parse.urlsplit(source).path).name, _fetched(source))
    path = Path(source)
    if path.is_dir():
        return _of_folder(path)
    try:
        return _of_file(source, path.name, strict.content(path, MOST_BYTES))
    except FileNotFoundError:
        raise AtlasError(f"{source}: no such file or folder; give a record's path, a URL, or mlflow:RUN") from None
    except strict.Unreadable as error:
        raise AtlasError(f"{source}: {error}; give a record's path") from None


def _of_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    """No link is followed: what it points at may be anything of this host."""
    count = 0
    for place, below, names in os.walk(folder):
        below.sort()
        if links := [name for name in (*below, *names) if Path(place, name).is_symlink()]:
            raise AtlasError(f"{Path(place, links[0])}: a symbolic link; copy what it points at, if that is the record")
        for name in sorted(names):
            path = Path(place, name)
            if files.is_document(path):
                count += 1
                if count > MOST_MEMBERS:
                    raise AtlasError(f"{folder}: holds more than {MOST_MEMBERS} documents; name a GPU's folder")
                try:
                    yield str(path), strict.content(path)
                except strict.Unreadable as error:
                    raise AtlasError(f"{path}: {error}; leave it out") from None


def _of_file(source: str, name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    if name.endswith(_TARS):
        return _of_tar(source, _inflated(source, name, content))
    if name.endswith(".zip"):
        return _of_zip(source, content)
    if name.endswith(_DOCUMENTS):
        return iter([(source, content)])
    raise AtlasError(f"{source}: its name ends in none of {', '.join(_KNOWN)}; give a document, or an archive of some")


# --- Archives ------------------------------------------------------------------------------------------------------


def _inflated(source: str, name: str, content: bytes) -> bytes:
    try:
        if name.endswith(".xz"):
            return packed.inflate(content, MOST_INFLATED)
        if name.endswith((".gz", ".tgz")):
            reader = zlib.decompressobj(wbits=31)
            found = reader.decompress(content, MOST_INFLATED + 1)
            if len(found) > MOST_INFLATED or not reader.eof:
                how = f"holds more than {MOST_INFLATED} bytes" if len(found) > MOST_INFLATED else "cut off"
                raise strict.Unreadable(how)
            return found
    except (strict.Unreadable, zlib.error) as error:
        raise AtlasError(f"{source}: {error}; give another archive") from None
    return content


def _of_tar(source: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for count, member in enumerate(archive):
                _check_member(source, member.name, count)
                if not (member.isreg() or member.isdir()):
                    raise AtlasError(f"{source}: {strict.shown(member.name)} is a link or a device; leave it out")
                if member.isreg() and files.is_document(PurePosixPath(member.name)):
                    file = archive.extractfile(member)
                    assert file is not None, "a regular file"
                    yield _member(source, member.name, file)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise AtlasError(f"{source}: not a whole tar archive ({error}); give another") from None


def _of_zip(source: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    left = MOST_INFLATED
    if content.count(_ZIP_ENTRY) > MOST_MEMBERS:  # before millions of entries become objects
        raise AtlasError(f"{source}: holds more than {MOST_MEMBERS} files; give a GPU's records alone")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for count, info in enumerate(archive.infolist()):
                _check_member(source, info.filename, count)
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise AtlasError(f"{source}: {strict.shown(info.filename)} is a link; leave it out")
                if info.is_dir() or not files.is_document(PurePosixPath(info.filename)):
                    continue
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
                    raise AtlasError(f"{source}: {strict.shown(info.filename)} is encrypted, or of a rare method")
                with archive.open(info) as file:
                    found = _member(source, info.filename, file)
                left -= len(found[1])
                if left < 0:
                    raise AtlasError(f"{source}: holds more than {MOST_INFLATED} bytes; give a GPU's records alone")
                yield found
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, RuntimeError) as error:
        raise AtlasError(f"{source}: not a whole zip archive ({error}); give another") from None


def _check_member(source: str, name: str, count: int) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts:
        raise AtlasError(f"{source}: {strict.shown(name)} leads out of the archive; who made this?")
    if count >= MOST_MEMBERS:
        raise AtlasError(f"{source}: holds more than {MOST_MEMBERS} files; give a GPU's records alone")


def _member(source: str, name: str, file: IO[bytes]) -> tuple[str, bytes]:
    content = file.read(strict.MOST_BYTES + 1)
    if len(content) > strict.MOST_BYTES:
        raise AtlasError(f"{source}: {strict.shown(name)} has more than {strict.MOST_BYTES} bytes; leave it out")
    return f"{source}:{name}" if name.isprintable() else f"{source}:{name!r}", content


# --- The network ---------------------------------------------------------------------------------------------------


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a few, never from https to http, and never to another scheme."""

    max_redirections = MOST_REDIRECTS
    max_repeats = MOST_REDIRECTS

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """The next request; HTTPError for one that is not followed."""
        scheme = urllib.parse.urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme == "http"):
            raise urllib.error.HTTPError(req.full_url, code, f"leads to {scheme}:, which is not followed", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetched(url: str) -> bytes:
    handlers = (urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler,
                urllib.request.HTTPDefaultErrorHandler, urllib.request.HTTPErrorProcessor, _Redirects)  # fmt: skip
    opener = urllib.request.OpenerDirector()  # which knows neither file: nor ftp:, as build_opener's does
    for handler in handlers:
        opener.add_handler(handler())
    until = time.monotonic() + MOST_SECONDS
    content = bytearray()
    try:
        with opener.open(url, timeout=SILENCE_SECONDS) as answer:
            said = answer.headers.get("Content-Length", "")
            if said.isdigit() and int(said) > MOST_BYTES:
                raise AtlasError(f"{_shown(url)}: has {said} bytes, of which {MOST_BYTES} are read at most")
            while part := answer.read1(2**16):
                content += part
                if len(content) > MOST_BYTES:
                    raise AtlasError(f"{_shown(url)}: has more than the {MOST_BYTES} bytes that are read at most")
                if time.monotonic() > until:
                    raise AtlasError(
                        f"{_shown(url)}: took more than {MOST_SECONDS:.0f} s; download it, and give its path"
                    )
            if said.isdigit() and len(content) < int(said):
                raise AtlasError(f"{_shown(url)}: cut off after {len(content)} of {said} bytes; try again")
    except (OSError, HTTPException, ValueError) as error:  # URLError and time-outs are an OSError
        raise AtlasError(f"{_shown(url)}: cannot be fetched: {getattr(error, 'reason', error)}; check it") from None
    return bytes(content)


def _shown(url: str) -> str:
    """The URL without a user's name, password and query, which may be a token."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
