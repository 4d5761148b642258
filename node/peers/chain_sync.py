"""The way of a peer that is behind, new or on the lighter side of a split to the heavier head.

First the commit records on the way to the wanted head (`chain_records`). Then the state: from the
present one or an own checkpoint by replaying averaged chunks, or from the blocks of a newer
checkpoint, fetched from several peers at once. Fetched blocks stay in the block store, so a node
that is killed meanwhile goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.threads import RunInThread
from gossamer.node.peers.block_exchange import BlockService, FetchError
from gossamer.node.peers.chain_records import BehindError, ChainRecords
from gossamer.node.storage.committed import CommittedState, Replayed
from gossamer.node.storage.restoring import rebuild
from gossamer.node.storage.state_blocks import CannotRebuildError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.state.chain import Header

FETCH_AHEAD_ROUNDS = 2
"""Rounds whose averages are fetched before they are wanted. The line is busy meanwhile, and little
is fetched in vain if the way turns out to lead nowhere."""

BASES_MAX = 3
"""Checkpoints that are tried, newest first, before the whole is tried again later."""

OLDER_ROUNDS = 256
"""Rounds before the wanted head that are searched for a state on this disk: more than lie between
the checkpoints that are kept."""

_Get = Callable[[list[Digest]], Awaitable[None]]
"""Gets blocks, or raises FetchError or DiskError."""

log = structlog.get_logger("sync")


class ReplayListener(Protocol):
    """The part of the node that has to know of rounds which it took over from others."""

    async def replayed(self, replayed: Replayed) -> None:
        """A committed round became the present state, computed from its averages."""


class ChainSync:
    """Takes over the states of heads whose records are known."""

    def __init__(
        self,
        manifest: Manifest,
        records: ChainRecords,
        blocks: BlockService,
        committed: CommittedState,
        run_in_thread: RunInThread,
    ) -> None:
        self._manifest = manifest
        self.records = records
        self._blocks = blocks
        self._committed = committed
        self._run_in_thread = run_in_thread
        self._listener: ReplayListener | None = None
        self.kept_states: Callable[[], Collection[Digest]] = tuple
        """Returns heads whose whole state is kept by the nodes that come to them, besides the
        regular checkpoints."""

    def report_to(self, listener: ReplayListener) -> None:
        """Sets the listener, which hears of every round that is taken over from now on."""
        self._listener = listener

    async def follow(self, head: Digest, sources: Callable[[], Sequence[PeerId]]) -> None:
        """Becomes the state of a head whose records are known.

        Raises:
            BehindError: blocks are missing everywhere, or the blocks do not give that state.
            DiskError: our own disk does not take what was fetched.

        The state is then the present one, or nearer to that head.
        """
        committed = self._committed
        problems: list[str] = []
        disk_error: DiskError | None = None
        for base in self._bases(head):
            try:
                await self._follow_from(base, head, sources)
                if head in self.kept_states():
                    await self._run_in_thread(committed.checkpoint)
                return
            except DiskError as error:
                disk_error = error  # another way may need less room
            except (FetchError, CannotRebuildError) as error:
                problems.append(str(error))
                if committed.is_loaded and committed.head == head:
                    return
            finally:
                committed.blocks.release()
        if disk_error is not None:
            raise disk_error
        raise BehindError("; ".join(problems) or f"no way to {short(head)} is known")

    def _bases(self, head: Digest) -> list[Digest]:
        """Returns the states to start from, the best first: the present one, own checkpoints,
        others' checkpoints."""
        committed = self._committed
        chain = committed.chain
        path = chain.path_between(chain.root, head)
        if path is None:
            return []
        heads = [*([] if chain.start else [chain.genesis]), *path]
        every = self._manifest.rounds.checkpoint_rounds
        bases: list[Digest] = []
        last_resort: list[Digest] = []
        ahead = heads
        if committed.is_loaded and committed.head in heads:
            num_behind = len(heads) - 1 - heads.index(committed.head)
            ahead = heads[-num_behind:] if num_behind else []
            # A whole state is parameters and momentum; a round's averages at most half of that.
            (bases if num_behind <= 2 * every else last_resort).append(committed.head)
        entries = [chain.entry(one) for one in ahead]
        kept_by_all = [
            entry.head
            for entry in entries
            if entry.round % every == 0
            or committed.end.is_over_after(entry.round, entry.tokens_total)
        ]
        remote = kept_by_all[::-1][:BASES_MAX]
        bases += [one for one in remote if committed.blocks.has_state(one)]
        bases += [one for one in remote if one not in bases]
        # Going back to an older round may begin at any state that is still here.
        newest_first = heads[: -OLDER_ROUNDS - 1 : -1]
        older = next((one for one in newest_first if committed.blocks.has_state(one)), None)
        kept_states = self.kept_states()
        kept = [one for one in reversed(heads) if one in kept_states] if kept_states else []
        bases += [one for one in (older, *kept, *last_resort) if one and one not in bases]
        return bases

    async def _follow_from(
        self, base: Digest, head: Digest, sources: Callable[[], Sequence[PeerId]]
    ) -> None:
        committed = self._committed
        path = committed.chain.path_between(base, head)
        assert path is not None
        present = committed.head if committed.is_loaded else None
        get = self._getter(sources)
        if present != base:
            await self._get_checkpoint(base, get)
            # The present state is given up only when everything on the way is here.
            for step in path:
                await self._get_averages(step, get)
            await self._run_in_thread(lambda: committed.load_checkpoint(base))
            if base == head:  # else the rounds that are replayed write theirs
                await self._run_in_thread(committed.keep_head)
        try:
            await self._replay(path, get)
        except CannotRebuildError:
            if present is not None and present != base:
                await self._run_in_thread(lambda: rebuild(committed, present))
            raise

    async def _replay(self, path: Sequence[Digest], get: _Get) -> None:
        """Replays round by round, while the next round's averages are fetched."""
        committed = self._committed
        to_replay, fetched = trio.open_memory_channel[Digest](FETCH_AHEAD_ROUNDS - 1)
        failure: Exception | None = None  # one that may be caught, not in a group

        async def fetch() -> None:
            nonlocal failure
            async with to_replay:
                for step in path:
                    try:
                        await self._get_averages(step, get)
                    except Exception as error:
                        failure = error
                        return
                    await to_replay.send(step)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            async for step in fetched:
                try:
                    replayed = await self._run_in_thread(lambda step=step: committed.replay(step))  # type: ignore[misc]
                    if self._listener is not None:
                        await self._listener.replayed(replayed)
                except Exception as error:
                    failure = error
                    break
                log.info("round taken over", round=replayed.header.round, head=short(step))
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def fetch(self, head: Digest, sources: Callable[[], Sequence[PeerId]]) -> None:
        """Gets the blocks that `follow` needs to reach a head whose records are known.

        Raises:
            BehindError: blocks are missing everywhere.
            DiskError: our own disk does not take them.
        """
        committed = self._committed
        problems: list[str] = []

        async def get(digests: list[Digest]) -> None:
            await self._blocks.fetch(digests, sources, passes=1)

        for base in self._bases(head):
            path = committed.chain.path_between(base, head)
            try:
                if not committed.is_loaded or committed.head != base:
                    await self._get_checkpoint(base, get)
                for step in path or ():
                    await self._get_averages(step, get)
                return
            except (FetchError, CannotRebuildError) as error:
                problems.append(str(error))
        raise BehindError("; ".join(problems) or f"no way to {short(head)} is known")

    async def fetch_update_index(
        self, header: Header, sources: Callable[[], Sequence[PeerId]]
    ) -> None:
        """Fetches the lists of contributors to a round's averages, without the averages.

        Raises:
            BehindError: no peer has it.
            DiskError: our own disk does not take it.
        """
        try:
            await self._blocks.fetch([Digest(header.update_digest)], sources, passes=1)
        except FetchError as error:
            raise BehindError(str(error)) from error

    async def _get_checkpoint(self, base: Digest, get: _Get) -> None:
        """All blocks of the state of `base`."""
        committed, chain = self._committed, self._committed.chain
        if committed.blocks.has_state(base):
            return
        await get([chain.entry(base).state_digest])
        if base != chain.genesis:
            await get([Digest(committed.header(base).ledger_digest)])
        await get(committed.blocks.of_state(base))

    async def _get_averages(self, step: Digest, get: _Get) -> None:
        """All blocks of the averaged chunks of a round."""
        committed = self._committed
        await get([Digest(committed.header(step).update_digest)])
        await get(committed.blocks.of_update(step))

    def _getter(self, sources: Callable[[], Sequence[PeerId]]) -> _Get:
        """Gets blocks that are held until the state is taken over."""

        async def get(digests: list[Digest]) -> None:
            self._committed.blocks.hold(digests)
            # Asked once: where rounds are quick, averages that no peer has any more are given up
            # at once, for a newer head.
            await self._blocks.fetch(digests, sources, passes=1)

        return get
