"""Keeps the names of members, so that tables of credit show those that are away."""

from __future__ import annotations

from collections.abc import Mapping

from gossamer.node.base.disk_health import DiskError, DiskHealth
from gossamer.node.base.threads import RunInThread
from gossamer.node.storage.names_file import NAMES_MAX, MemberName, NamesFile


class MemberNames:
    """The newest names that members have signed."""

    def __init__(self, file: NamesFile, health: DiskHealth, run_in_thread: RunInThread) -> None:
        self._file = file
        self._health = health
        self._run_in_thread = run_in_thread
        self.kept: dict[str, MemberName] = {}
        """By peer id; replaced at each change."""

    async def load(self) -> None:
        """Takes over the names of earlier lives."""
        self.kept = await self._run_in_thread(self._file.load)

    async def note(self, present: Mapping[str, MemberName]) -> None:
        """Notes the names of members that are here. Without name and team a member has none any
        more: its owner has taken them back."""
        kept = dict(self.kept)
        for peer, shown in sorted(present.items()):
            if kept.get(peer, MemberName()) == shown:
                continue
            kept.pop(peer, None)  # what is noted anew comes last
            if shown != MemberName():
                kept[peer] = shown
        if kept == self.kept:
            return
        for peer in list(kept)[: max(0, len(kept) - NAMES_MAX)]:
            del kept[peer]
        self.kept = kept
        try:
            await self._run_in_thread(lambda: self._file.save(kept))
        except DiskError as error:
            self._health.failed("names", error)
        else:
            self._health.wrote("names")
