"""The names and teams of members on disk, as each signed its newest ones, also of those away.

Only people read them: no rule depends on a name. A file that is damaged costs the names and nothing
else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from gossamer.node.base.disk_health import write_atomically
from gossamer.node.storage.bounded_file import read_bounded
from gossamer.protocol.errors import MalformedError, OversizedError
from gossamer.protocol.limits import MIB
from gossamer.protocol.wire.statement_checks import check_name

NAMES_MAX = 4096
"""Members with a name: as many as a summary of the chain gives credit to. Of more, those that were
first seen go."""

FILE_BYTES_MAX = 2 * MIB
"""Limit of what is read: an id of 60 bytes, and twice 32 letters of 4 bytes, each."""

log = structlog.get_logger("node")


class MemberName(msgspec.Struct, frozen=True):
    """How the owner of a member wants it to be shown. Anybody may take any name and any team."""

    name: str = ""
    team: str = ""


class _Names(msgspec.Struct, frozen=True):
    """The content of the file."""

    run_id: bytes
    names: dict[str, MemberName]


class NamesFile:
    """The file `names` of a state directory."""

    def __init__(self, path: Path, run_id: bytes) -> None:
        self._path = path
        self._run_id = run_id

    def load(self) -> dict[str, MemberName]:
        """Returns the names of members of the run by peer id; none if the file cannot be used."""
        try:
            data = read_bounded(self._path, FILE_BYTES_MAX)
            if data is None:
                return {}
            found = msgspec.msgpack.decode(data, type=_Names)
            for shown in found.names.values():
                check_name(shown.name)
                check_name(shown.team)
        except (
            *(OSError, OversizedError, MalformedError),
            *(msgspec.DecodeError, UnicodeDecodeError),
        ) as error:
            log.warning("the names of members are lost: their file is damaged", error=str(error))
            return {}
        return found.names if found.run_id == self._run_id else {}

    def save(self, names: Mapping[str, MemberName]) -> None:
        """Replaces the file. DiskError."""
        write_atomically(self._path, msgspec.msgpack.encode(_Names(self._run_id, dict(names))))
