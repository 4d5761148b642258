"""The founder's newest word on the end of the run, on this node's disk and among its peers.

`gossamer extend` leaves a signed statement in the state directory of the founder's node. That node
takes it within some seconds, and gossip brings it to the others. Each node keeps the newest one for
the rest of the run, over restarts:

    extension     the signed statement (`wire.statements.Extension`)

`protocol.state.run_end` says which statement holds, and what follows from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import structlog

from gossamer.node.base.disk_health import DiskHealth, write_atomically
from gossamer.node.base.threads import RunInThread
from gossamer.node.base.ticks import DISK_LOOKS, sleep_to_tick
from gossamer.node.network.identity import verify
from gossamer.node.peers.statements.gossip import Gossip
from gossamer.node.storage.bounded_file import open_file
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.state.run_end import RunEnd, check_extension
from gossamer.protocol.wire.envelopes import decode_signed, open_signed
from gossamer.protocol.wire.statements import Extension, Signed

LOOK_SECONDS = 1.0
"""Interval of the looks at what was heard."""

_FILE_BYTES_MAX = 1024
"""A signed extension has some 200 bytes."""

log = structlog.get_logger("node")


class ExtensionFile:
    """The extension in one state directory."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self._path = root / "extension"
        self._manifest = manifest

    def write(self, signed: Signed) -> None:
        """Keeps an extension in place of the one before. Raises DiskError."""
        write_atomically(self._path, to_msgpack(signed), is_order=True)

    def read(self) -> tuple[Signed, Extension] | None:
        """Returns the extension, checked as if a peer had brought it; None if there is none.

        Raises:
            OSError, RemoteProtocolError: the file cannot be read, or is no extension that the
                founder of the run could have signed.
        """
        try:
            with open_file(self._path) as file:
                signed = decode_signed(file.read(_FILE_BYTES_MAX))
        except FileNotFoundError:
            return None
        statement = open_signed(signed, self._manifest.run_id, verify)
        if not isinstance(statement, Extension) or signed.author != self._manifest.founder:
            raise ForgedError("it is no extension by the founder of the run")
        check_extension(statement, self._manifest)
        return signed, statement


class Extensions:
    """The extension that this node knows."""

    def __init__(self, file: ExtensionFile, end: RunEnd, health: DiskHealth) -> None:
        """`end`: learns of each extension that holds."""
        self._file = file
        self._end = end
        self._health = health
        self._newest: tuple[Signed, Extension] | None = None
        self._written: Signed | None = None
        """The statement that the file has, as far as this node knows."""
        self._refused = ""
        """What was wrong with the file when it was last read."""

    def heard(self, signed: Signed, statement: Extension) -> bool:
        """Takes a checked extension of the founder. Returns whether it holds from now on."""
        if not self._end.extend(statement):
            return False
        self._newest = signed, statement
        log.info(
            "the founder has set the end of the run",
            number=statement.number,
            total_tokens=statement.total_tokens,
            cooldown_tokens=statement.cooldown_tokens,
        )
        return True

    def load(self) -> None:
        """Takes what is on disk, before the node begins."""
        found = self._read()
        if found is not None:
            self.heard(*found)

    def _read(self) -> tuple[Signed, Extension] | None:
        """Reads the file; None if it has nothing that counts. Runs in a thread."""
        try:
            found = self._file.read()
        except (OSError, RemoteProtocolError) as error:
            if self._refused != str(error):  # it is looked at every few seconds
                self._refused = str(error)
                log.warning("the extension on disk is left out", error=str(error))
            self._written = None
            return None
        self._refused = ""
        self._written = None if found is None else found[0]
        return found

    def _write(self, signed: Signed) -> None:
        """Keeps an extension that was heard; in a thread."""
        with self._health.writing("extension"):
            self._file.write(signed)
            self._written = signed

    async def run(
        self, gossip: Gossip, notify: Callable[[], None], run_in_thread: RunInThread
    ) -> None:
        """Takes orders, keeps what was heard, and tells other peers, until cancelled.

        Args:
            notify: is called when the end of the run has changed.
        """
        for look in itertools.count():
            found = None
            if look % DISK_LOOKS == 0:
                found = await run_in_thread(self._read)
            if found is not None and self.heard(*found):
                notify()
            elif found is not None and self._newest is not None and found[0] != self._newest[0]:
                log.warning(
                    "the extension on disk does not hold: the founder has signed one with a higher "
                    "number. Give the order again",
                    number=found[1].number,
                    newest=self._newest[1].number,
                )
            if self._newest is not None:
                signed, statement = self._newest
                gossip.keep_posted(signed, statement)
                if self._written != signed:
                    await run_in_thread(lambda signed=signed: self._write(signed))  # type: ignore[misc]
            await sleep_to_tick(LOOK_SECONDS)
