"""Reading a file of the state directory no further than its bound."""

from __future__ import annotations

from pathlib import Path

from gossamer.protocol.errors import OversizedError


def read_bounded(path: Path, bytes_max: int) -> bytes | None:
    """The file's content, or None if there is no file. Raises OversizedError over the bound."""
    try:
        with open(path, "rb") as file:
            data = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    if len(data) > bytes_max:
        raise OversizedError(f"{path.name} is larger than {bytes_max} bytes")
    return data
