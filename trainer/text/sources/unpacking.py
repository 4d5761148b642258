"""Reading compressed files as streams.

Memory is bounded whatever the file says: gzip gives out what is asked for, and zstd gets its input
in small pieces and windows of at most `ZSTD_WINDOW_BYTES_MAX`. A file that unpacks to far more than
text does is refused (a decompression bomb), and so is one that ends too soon.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import zstandard

from gossamer.protocol.limits import MIB
from gossamer.trainer.text.sources.corpus_errors import BadDocumentError

Packing = Literal["", "gzip", "zstd"]
Content = Literal["text", "lines", "parquet", "arrow"]

PACKING_SUFFIXES: dict[str, Packing] = {".gz": "gzip", ".zst": "zstd"}
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
TABLE_SUFFIXES: dict[str, Content] = {".parquet": "parquet", ".arrow": "arrow"}

# Text packs to a third or a tenth, and the most repetitive logs to a fiftieth.
UNPACKED_RATIO_MAX = 100
# A small file may be as repetitive as it likes.
UNPACKED_BYTES_FREE = 64 * MIB
# What `zstd` itself unpacks without being told so.
ZSTD_WINDOW_BYTES_MAX = 128 * MIB
# A block of zstd takes 4 bytes at least and gives 128 KiB at most: 32 MiB at a time.
_ZSTD_INPUT_BYTES = 1024
# Of text at the beginning of a file, from which all of it is estimated.
_SAMPLE_BYTES = 8 * MIB
# Text packs to some quarter; only where a file does not state its length.
_RATIO_GUESS = 4
# A part of the error of zstd's library, which has no class of its own.
_TOO_MUCH_MEMORY = "too much memory"
# A frame's header has 18 bytes at most (RFC 8878, section 3.1.1.1).
_ZSTD_HEADER_BYTES = 18


class Form(NamedTuple):
    """The form of a file, by its name."""

    packing: Packing
    content: Content

    @property
    def is_packed(self) -> bool:
        """Whether its documents cannot be read where they lie."""
        return bool(self.packing) or self.content in ("parquet", "arrow")


def form_of(path: Path) -> Form:
    """Returns what the suffixes of a name say."""
    name = Path(path.name.lower())
    packing = PACKING_SUFFIXES.get(name.suffix, "")
    suffix = Path(name.stem).suffix if packing else name.suffix
    if suffix in JSON_LINES_SUFFIXES:
        return Form(packing, "lines")
    return Form(packing, "text" if packing else TABLE_SUFFIXES.get(suffix, "text"))


def unpacked_bytes(path: Path, packing: Packing) -> int:
    """Returns the length that a file states or, where it states none, a guess.

    Files of several parts state only that of one. Nothing may rely on it but estimates.

    Raises:
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    if not packing:
        return size
    with path.open("rb") as file:
        if packing == "gzip":  # the last four bytes are the length modulo 2^32
            file.seek(max(0, size - 4))
            stated = int.from_bytes(file.read(4), "little") if size < 2**30 else _RATIO_GUESS * size
        else:
            try:
                header = zstandard.get_frame_parameters(file.read(_ZSTD_HEADER_BYTES))
                stated = header.content_size
            except zstandard.ZstdError:
                stated = size  # unpacking it says what is wrong
            if stated in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR):
                stated = _RATIO_GUESS * size
    return min(max(stated, size), bomb_bytes(size))


def planned_bytes(path: Path, packing: Packing) -> int:
    """Returns about how much text comes out of a compressed file, for a plan of its sections: what
    it states, or where its beginning tells otherwise, what that gives for the whole.

    Raises:
        OSError: the file cannot be read.
        BadDocumentError: it is damaged.
    """
    size, stated = path.stat().st_size, unpacked_bytes(path, packing)
    given = 0
    with path.open("rb") as file:
        stream = open_unpacked(file, size, packing)
        while given < _SAMPLE_BYTES and (data := stream.read(min(MIB, _SAMPLE_BYTES - given))):
            given += len(data)
        taken = file.tell()
    if not given or taken >= size:
        return max(1, given)
    sampled = given * size // taken
    return stated if sampled < 2 * stated and stated < 2 * sampled else sampled


def bomb_bytes(size: int) -> int:
    """Returns how much text may come out of a file of `size` bytes."""
    return max(UNPACKED_BYTES_FREE, UNPACKED_RATIO_MAX * size)


def is_bomb(size: int) -> BadDocumentError:
    """Returns the error about a file of `size` bytes from which more comes."""
    return BadDocumentError(
        f"holds over {bomb_bytes(size):,} bytes in {size:,}, which no text does (a decompression "
        "bomb?): leave it out, or unpack it yourself and name the result"
    )


def open_unpacked(file: BinaryIO, size: int, packing: Packing) -> io.BufferedReader:
    """Returns a stream of what is in a compressed file of `size` bytes.

    Reading raises BadDocumentError: it is damaged, ends too soon, or holds too much.
    """
    read = gzip.GzipFile(fileobj=file).read if packing == "gzip" else _ZstdFrames(file).read
    return io.BufferedReader(_Unpacking(read, size), MIB)


class _Unpacking(io.RawIOBase):
    """Counts what comes out, and turns errors into those of a document."""

    def __init__(self, read: Callable[[int], bytes], size: int) -> None:
        self._read = read
        self._size = size
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            data = self._read(len(buffer))
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            raise BadDocumentError(
                f"cannot be unpacked ({error}); it is damaged or not whole: fetch it again or "
                "leave it out"
            ) from error
        buffer[: len(data)] = data
        self._given += len(data)
        if self._given > bomb_bytes(self._size):
            raise is_bomb(self._size)
        return len(data)


def _too_long_window() -> BadDocumentError:
    return BadDocumentError(
        f"was packed by zstd with a window of more than {ZSTD_WINDOW_BYTES_MAX // MIB} MiB, as "
        "--long=28 and higher do: pack it anew (zstd -dc --long=31 OLD | zstd -o NEW), or unpack "
        "it yourself and name the result"
    )


class _ZstdFrames:
    """The content of all frames of a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._input = b""
        self._output = memoryview(b"")

    def read(self, num_bytes: int) -> bytes:
        """Returns at most so many bytes; none at the end.

        Raises:
            EOFError: the file ends within a frame.
            ZstdError: it is damaged.
            BadDocumentError: it needs too much memory.
        """
        while not self._output:
            if not self._input:
                self._input = self._file.read(_ZSTD_INPUT_BYTES)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("the file ends within a frame")
                return b""
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            try:
                self._output = memoryview(self._frame.decompress(self._input))
            except zstandard.ZstdError as error:
                if _TOO_MUCH_MEMORY in str(error):
                    raise _too_long_window() from error
                raise
            self._input = b""
            if self._frame.eof:
                self._input = self._frame.unused_data
                self._frame = None
        taken, self._output = self._output[:num_bytes], self._output[num_bytes:]
        return bytes(taken)
