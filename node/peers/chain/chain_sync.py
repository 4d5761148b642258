"""The way of a peer that is behind, new or on the lighter side of a split to the heavier head.

First the commit records on the way to the wanted head (`chain_records`). Then the state: from the
present one or an own checkpoint by replaying averaged chunks, or from the blocks of a newer
checkpoint, fetched from several peers at once. Fetched blocks stay in the block store, so a node
that is killed meanwhile goes on where it stopped.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeAlias

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.threads import RunInThread
from gossamer.node.peers.blocks.block_exchange import BlockService, FetchError
from gossamer.node.peers.chain.chain_records import BehindError, ChainRecords
from gossamer.node.storage.state.committed import CommittedState, Replayed
from gossamer.node.storage.state.restoring import rebuild
from gossamer.node.storage.state.state_blocks import CannotRebuildError, DamagedBlocksError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.limits import BLOCK_BYTES_MAX
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

DAMAGE_TRIES = 3
"""Tries of one way to a head over blocks that this disk damaged: the second one fetches the indices
that were damaged, and the third one the blocks that these name."""

FLOAT_BYTES = 4
"""Bytes of one value of a state."""

log = structlog.get_logger("sync")


class DamagedHereError(BehindError):
    """The disk of this node damages what is fetched. The peers are not to blame."""


_Get: TypeAlias = Callable[[list[Digest], int], Awaitable[None]]
"""Gets blocks, or raises FetchError or DiskError. Each one has at most so many bytes: an index that
a head names may name any blocks, and far more bytes than a state has."""


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
        self.replayed: Callable[[Replayed], None] = lambda _replayed: None
        """Is told of each round that becomes the present state, computed from its averages."""
        self.kept_states: Callable[[], Collection[Digest]] = tuple
        """Returns heads whose whole state is kept by the nodes that come to them, besides the
        regular checkpoints."""

    async def follow(self, head: Digest, sources: Callable[[], Sequence[PeerId]]) -> None:
        """Becomes the state of a head whose records are known.

        Raises:
            BehindError: blocks are missing everywhere, or the blocks do not give that state.
            DamagedHereError: this disk damages blocks of the way as often as they are fetched.
            DiskError: our own disk does not take what was fetched.

        The state is then the present one, or nearer to that head.
        """
        committed = self._committed
        problems: list[Exception] = []
        disk_error: DiskError | None = None

        async def follow_from(start: Digest) -> None:
            await self._follow_from(start, head, sources)

        for base in self._bases(head):
            try:
                await self._over_damage(base, head, follow_from)
                if head in self.kept_states():
                    await self._run_in_thread(committed.checkpoint)
                return
            except DiskError as error:
                disk_error = error  # another way may need less room
            except (FetchError, CannotRebuildError) as error:
                problems.append(error)
                if committed.is_loaded and committed.head == head:
                    return
            finally:
                committed.blocks.release()
        if disk_error is not None:
            raise disk_error
        raise _no_way(head, problems)

    async def _over_damage(
        self, base: Digest, head: Digest, go_from: Callable[[Digest], Awaitable[None]]
    ) -> None:
        """Goes from a state to a head, and again while this disk damaged blocks of the way.

        One damaged block says that there may be more. All blocks of the way are read then, so that
        the next try fetches everything that is damaged at once.
        """
        committed = self._committed
        for tries_left in reversed(range(DAMAGE_TRIES)):
            try:
                await go_from(base)
                return
            except DamagedBlocksError as error:
                if not tries_left:
                    raise
                log.warning("a block on disk is of no use", problem=str(error))
            path = committed.chain.path_between(base, head) or []
            if committed.is_loaded and committed.head in path:
                base = committed.head  # a part of the way is behind this node
            await self._run_in_thread(functools.partial(self._remove_damaged, base, head))

    def _remove_damaged(self, base: Digest, head: Digest) -> None:
        """Removes the damaged blocks of the way from a state to a head. It reads all of them."""
        committed = self._committed
        steps = committed.chain.path_between(base, head) or []
        is_present = committed.is_loaded and committed.head == base
        committed.blocks.remove_damaged(None if is_present else base, steps)

    def _bases(self, head: Digest) -> list[Digest]:
        """Returns the states to start from, the best first: the present one, own checkpoints,
        others' checkpoints."""
        committed = self._committed
        chain = committed.chain
        path = chain.path_between(chain.root, head)
        if path is not None:
            heads = [*([] if chain.start else [chain.genesis]), *path]
        elif chain.gap_before(head) is not None:
            heads = chain.pieces_to(head)[-1]  # those that follow the missing record
        else:
            return []
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

    def needs_no_peer(self, head: Digest) -> bool:
        """Returns whether all blocks of a way to a head are here. It reads their indices, in a
        thread. Blocks that are here count as undamaged."""
        committed = self._committed
        blocks, present = committed.blocks, committed.head if committed.is_loaded else None
        try:
            return any(
                (base == present or blocks.has_state(base))
                and all(map(blocks.has_averages, committed.chain.path_between(base, head) or ()))
                for base in self._bases(head)
            )
        except KeyError:
            return False  # the event loop has forgotten rounds meanwhile

    async def _follow_from(
        self, base: Digest, head: Digest, sources: Callable[[], Sequence[PeerId]]
    ) -> None:
        committed = self._committed
        path = committed.blocks.way(base, head)
        present = committed.head if committed.is_loaded else None
        get = self._getter(sources, is_held=True)
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
                    self.replayed(replayed)
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
            DamagedHereError: as for `follow`.
            DiskError: our own disk does not take them.
        """
        committed = self._committed
        problems: list[Exception] = []
        get = self._getter(sources, is_held=False)

        async def fetch_from(start: Digest) -> None:
            if not committed.is_loaded or committed.head != start:
                await self._get_checkpoint(start, get)
            for step in committed.blocks.way(start, head):
                await self._get_averages(step, get)

        for base in self._bases(head):
            try:
                return await self._over_damage(base, head, fetch_from)
            except (FetchError, CannotRebuildError) as error:
                problems.append(error)
        raise _no_way(head, problems)

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
        committed, blocks = self._committed, self._committed.blocks
        if blocks.has_state(base):
            return
        await get([blocks.entry(base).state_digest], BLOCK_BYTES_MAX)
        if base != committed.chain.genesis:
            await get([Digest(blocks.header(base).ledger_digest)], BLOCK_BYTES_MAX)
        await get(blocks.of_state(base), FLOAT_BYTES * committed.plan.elements_of(0))

    async def _get_averages(self, step: Digest, get: _Get) -> None:
        """All blocks of the averaged chunks of a round."""
        committed = self._committed
        header = committed.blocks.header(step)
        await get([Digest(header.update_digest)], BLOCK_BYTES_MAX)
        elements = committed.sync_sets.of_round(header.round).plan.elements_of(0)
        longest = committed.payloads.average_bytes_max(elements, len(header.members))
        await get(committed.blocks.of_update(step), min(longest, BLOCK_BYTES_MAX))

    def _getter(self, sources: Callable[[], Sequence[PeerId]], *, is_held: bool) -> _Get:
        """Gets blocks. `is_held`: they are held until the state is taken over."""

        async def get(digests: list[Digest], bytes_max: int) -> None:
            if is_held:
                self._committed.blocks.hold(digests)
            # Asked once: where rounds are quick, averages that no peer has any more are given up
            # at once, for a newer head.
            await self._blocks.fetch(digests, sources, passes=1, bytes_max=bytes_max)

        return get


def _no_way(head: Digest, problems: Sequence[Exception]) -> BehindError:
    """Returns the error of a head to which no way led, with the problems of all ways."""
    is_damaged = any(isinstance(problem, DamagedBlocksError) for problem in problems)
    kind = DamagedHereError if is_damaged else BehindError
    return kind("; ".join(map(str, problems)) or f"no way to {short(head)} is known")
