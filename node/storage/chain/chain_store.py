"""Committed headers on disk. `chain_tree` is the tree that they form in memory.

Every commit record is a file of its own (`record_files`), in the folder ``chain``. An entry in
memory holds what the head rule and the way from one head to another need. A file that is damaged is
left out, and one warning counts such files: its round can be fetched again from any peer.

Old rounds go. The chain then begins at its *start* (`chain_start`): a checkpoint, with so many
rounds before it as say who has stake there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from gossamer.node.base.disk_health import DiskError, DiskHealth, remove_quietly
from gossamer.node.storage.bounded_file import read_digested
from gossamer.node.storage.chain.chain_start import (
    FILE_NAMES,
    ChainStart,
    read_checkpoints,
    read_start,
    start_after,
    write_start,
)
from gossamer.node.storage.chain.chain_tree import ChainTree, Entry
from gossamer.node.storage.chain.record_files import FurtherVotes, RecordFiles, tell_damaged
from gossamer.protocol import limits
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, digest_of
from gossamer.protocol.policy.heads.chain_checkpoint import decode_checkpoint
from gossamer.protocol.policy.heads.chain_summary import decode_summary, marks_of
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.state.chain import Commit, Header, decode_header
from gossamer.protocol.state.commit_records import decode_commit, encode_commit, with_votes_of

_NO_STATE = Digest(bytes(DIGEST_BYTES))
"""State digest of the head before the kept chain: no block has it."""

JOINED_KEPT = 64
"""Newest rounds whose records got further votes: those who remember the signers of rounds look more
often than so many come. A reader that looks later forgets all."""

log = structlog.get_logger("chain")


class ChainStore(ChainTree):
    """All committed headers that this node knows. `genesis` is the run id, round 0.

    A record that the disk does not take is known in memory, and written with the next record;
    `problem` is why, or None if all is on disk.

    Several threads may use it: a worker thread adds the round that was committed here, while the
    event loop adds what others committed; often that is the same one. Only the event loop forgets,
    and not while a thread changes the committed state; a thread that reads records for a peer may
    find that some were forgotten.
    """

    def __init__(
        self,
        directory: Path,
        genesis: Digest,
        genesis_state: Digest,
        *,
        read_only: bool = False,
        health: DiskHealth | None = None,
        pinned_head: Digest | None = None,
        check_place: Callable[[], None] = lambda: None,
    ) -> None:
        """`pinned_head`: the head that the link named by which this node joined. `check_place`: see
        `RecordFiles`."""
        self._directory = directory
        self._files = RecordFiles(directory, health or DiskHealth(), check_place)
        self.further_votes = FurtherVotes()
        """Votes of known rounds that this node has heard. `sync` and `write_waiting` put them into
        the records."""
        super().__init__(genesis, genesis_state)
        self.pinned_head = pinned_head
        self.passed: frozenset[Digest] = frozenset()
        """Heads before the start of which it is known that they are on the way to it."""
        self._leftover: list[str] = []
        """Files of rounds before the start, to be removed."""
        self._damaged: list[Path] = []
        """Files that cannot be read. They go with the rounds before the start."""
        self.joined: tuple[int, tuple[Digest, ...]] = (0, ())
        """How often records got further votes in this life, and the newest `JOINED_KEPT` of their
        rounds. It is replaced at once."""
        self._adding = threading.Lock()
        self._read_only = read_only
        if not read_only:
            directory.mkdir(exist_ok=True)
        paths = sorted(directory.iterdir()) if directory.exists() else ()
        tell_damaged([self._load(path) for path in paths if path.name not in FILE_NAMES])
        # After the records: a daemon beside a reader removes records when it has written this.
        start = read_start(directory)
        if start is not None and self._way_before(start):
            self._begin_at(start, self._behind_gaps(start))
        elif start is not None:
            log.warning("the first rounds of the kept chain are damaged; peers are asked for them")
        self._leave_gaps_behind()

    def _load(self, path: Path) -> tuple[Path, Exception] | None:
        """Takes the record of a file. Returns the file and its error if it cannot be read."""
        if path.name.startswith("."):
            if not self._read_only:
                remove_quietly(path)  # half-written when the process died
            return None
        try:
            record = read_digested(path)
            commit = decode_commit(record)
            header = decode_header(commit.header)
        except FileNotFoundError:
            return None  # the daemon beside this reader has just removed it
        except (OSError, RemoteProtocolError) as error:
            if path.name[:10].isdigit():
                self._damaged.append(path)
            return path, error
        self._remember(digest_of(commit.header), header, len(record))
        return None

    def _remember(self, head: Digest, header: Header, num_bytes: int) -> None:
        entry = Entry(
            head,
            header.round,
            Digest(header.parent),
            header.tokens_total,
            Digest(header.state_digest),
            num_bytes,
        )
        self._entries[head] = entry
        self._link(entry)

    @property
    def problem(self) -> DiskError | None:
        """The reason why the disk lacks records; None if it has all."""
        return self._files.problem

    def add(self, commit: Commit, header: Header) -> Digest:
        """Stores a checked commit record, on disk if that takes it; returns its head."""
        head = digest_of(commit.header)
        with self._adding:
            if head not in self._entries:
                # In this order: who finds the entry finds its record too.
                record = encode_commit(commit)
                self._files.put(head, header.round, record)
                self._remember(head, header, len(record))
            elif head not in (self.genesis, self.root):
                self._add_votes(head, commit)
            self._files.write_waiting()
        return head

    def write_waiting(self) -> DiskError | None:
        """Writes the records that the disk has not taken, and those with further votes. Returns
        what went wrong. Blocks for as long as the disk needs."""
        self._write_grown(None)
        with self._adding:
            self._files.write_waiting()
            return self.problem

    def _add_votes(self, head: Digest, commit: Commit) -> None:
        """Adds the votes that the record of a known round lacks: the one that came first may have
        been made by a few members, which is all that they can prove
        (`policy.heads.head_choice`)."""
        round_number = self._entries[head].round
        try:
            joined = with_votes_of(self.commit(head), commit)
            if joined is None:
                return
            self._files.put_grown(head, round_number, encode_commit(joined))
        except (OSError, RemoteProtocolError):  # the file is damaged
            self._files.put(head, round_number, encode_commit(commit))
        number, heads = self.joined
        self.joined = number + 1, (*heads, head)[-JOINED_KEPT:]

    def _write_grown(self, newest: Digest | None) -> None:
        """Puts the votes that were heard into their records, and writes the records with further
        votes. Those of the newest round are still on their way: its votes wait for the next time.
        """
        for head, votes in self.further_votes.take(but=newest).items():
            with self._adding:
                try:
                    known = self.commit(head)
                except (KeyError, OSError, RemoteProtocolError):
                    continue  # forgotten meanwhile, or damaged
                grown = with_votes_of(known, Commit(known.header, known.roster, votes))
                if grown is not None:
                    self._files.put_grown(head, self._entries[head].round, encode_commit(grown))
        self._files.write_grown(self._adding)

    def bytes_of_votes(self, head: Digest, commit: Commit) -> int:
        """Returns by how many bytes the record of a known round grows with the votes of another one
        of its header."""
        try:
            known = self.record(head)
            joined = with_votes_of(decode_commit(known), commit)
        except (OSError, RemoteProtocolError):
            return 0  # the file is damaged, and is replaced
        return 0 if joined is None else max(0, len(encode_commit(joined)) - len(known))

    def sync(self, head: Digest) -> None:
        """Makes the record of a known head durable: it survives a power cut from now on. DiskError.

        A record that is lost in the middle of the chain keeps newcomers out where no other member
        has it. The votes that were heard of earlier rounds go to the disk as well.
        """
        self._files.sync(self._entries[head])
        self._write_grown(head)

    # The start

    def _leave_gaps_behind(self) -> None:
        """Begins at the newest signed checkpoint if a record before it is missing."""
        behind = [head for head in self._tips if self.gap_before(head) is not None]
        if not behind:
            return
        newest = max(behind, key=lambda head: (self._entries[head].tokens_total, head))
        whole = self._entries[self.heads_by_weight()[0]]
        if whole.tokens_total >= self._entries[newest].tokens_total:
            return  # a branch beside the way to the newest round
        start = self.start_behind_gap(newest)
        try:
            if start is not None and not self._read_only:
                self.write_start(start)
        except DiskError as error:
            log.warning("the chain keeps its damaged beginning", problem=str(error))
            start = None
        if start is not None:
            self._begin_at(start, ())
            log.warning(
                "a damaged record lies before the newest signed checkpoint of the chain, which "
                "begins there now: newcomers do not need the record",
                round=start.round,
            )
            return
        log.warning(
            "a record on the way to the newest round is damaged or missing; the node goes on from "
            "the newest round, and a peer may send the record",
            missing_round=self.gap_before(newest),
            newest_round=self._entries[newest].round,
        )

    def start_behind_gap(self, head: Digest) -> ChainStart | None:
        """Returns the start at the newest signed checkpoint on disk, if it lies on the way to a
        head behind a missing record; None otherwise. It reads files."""
        kept = read_checkpoints(self._directory)
        if kept is None or not kept.path:
            return None
        try:
            checkpoint = decode_checkpoint(kept.path[-1].checkpoint, self.genesis)
            summary = decode_summary(kept.summary)
        except RemoteProtocolError as error:
            log.warning("the signed checkpoints on disk are left out", error=str(error))
            return None
        at, gap = Digest(checkpoint.head), self.gap_before(head)
        before = self.ancestors(at, STANDING_ROUNDS)
        if (
            gap is None
            or at not in self._entries
            or len(before) <= STANDING_ROUNDS
            or self.path_between(at, head) is None
        ):
            return None
        try:
            oldest = self.header(before[-2])
        except (OSError, RemoteProtocolError) as error:
            log.warning("the chain keeps its damaged beginning", problem=str(error))
            return None
        tokens_before = oldest.tokens_total - oldest.tokens
        return start_after(
            checkpoint.round, at, before[-1], tokens_before, summary, self.passed_on_way(at)
        )

    def write_start(self, start: ChainStart) -> None:
        """Puts a start on the disk, whose rounds are there. `begin_at` makes it count now. Raises
        DiskError."""
        write_start(self._directory, start)

    def begin_at(self, start: ChainStart, kept_heads: Iterable[Digest] = ()) -> None:
        """Forgets the rounds that do not follow a start, whose own rounds are known. Only the event
        loop calls it, as it does `forget_all_but`.

        Args:
            kept_heads: they and the rounds on the way to them stay in memory. A node may stand on
                a head that it is about to leave.
        """
        assert self._way_before(start)
        with self._adding:
            self._begin_at(start, kept_heads)

    def _begin_at(self, start: ChainStart, kept_heads: Iterable[Digest]) -> None:
        kept = {*self._way_before(start)}
        following = [Digest(start.head)]
        while following:
            children = self._children.get(following.pop(), ())
            kept.update(children)
            following += children
        root = Digest(start.before)
        own: set[Digest] = set()
        for head in kept_heads:
            while head in self._entries and head not in (*own, self.genesis, self.root):
                own.add(head)
                head = self._entries[head].parent
        entries = {self.genesis: self._entries[self.genesis]}
        before = Entry(root, start.before_round, self.genesis, start.before_tokens, _NO_STATE)
        old = self._entries
        entries[root] = before
        for head, entry in old.items():
            if head in kept or (head in own and head != root):
                entries[head] = entry
            elif head not in (self.genesis, self.root):
                self._leftover.append(self._files.path_of(entry))
                self._files.drop(head)
        first = f"{start.before_round + 1:010d}"
        self._leftover += [str(path) for path in self._damaged if path.name < first]
        self._damaged = [path for path in self._damaged if path.name >= first]
        self.start, self.root = start, root
        self.passed = marks_of(start.decoded_summary()) | {Digest(each) for each in start.passed}
        # All of it at once: threads read it meanwhile.
        self._children, self._tips, self._path_bytes = {}, {root: None}, {root: 0}
        self._num_bytes = 0
        self._entries = entries
        for head, entry in entries.items():
            if head not in (self.genesis, root):
                self._link(entry)
        self.num_reshaped += 1

    def remove_leftover(self) -> int:
        """Removes the files of the rounds before the start. Returns their number."""
        leftover, self._leftover = self._leftover, []
        for path in leftover if not self._read_only else ():
            remove_quietly(path)
        return len(leftover)

    def commit(self, head: Digest) -> Commit:
        """The commit record of a head. KeyError for an unknown head, OSError or RemoteProtocolError
        if the file is damaged."""
        return decode_commit(self.record(head))

    def record(self, head: Digest) -> bytes:
        """The encoded commit record of a head, with the errors of `commit`."""
        return self._files.read(self._entries[head])

    def header(self, head: Digest) -> Header:
        """Returns the header of a head, with the errors of `commit`."""
        return decode_header(self.commit(head).header)

    def forget_all_but(self, heads: Iterable[Digest]) -> None:
        """Forgets every round that is on the way to none of these heads, on disk too.

        Records cost their author nothing: without this one peer could fill memory and disk with
        rounds of its own. A round that is forgotten wrongly can be fetched again.
        """
        kept = {self.genesis, self.root}
        if self.start is not None:
            heads = [*heads, Digest(self.start.head)]
        with self._adding:
            for head in heads:
                while head in self._entries and head not in kept:
                    kept.add(head)
                    head = self._entries[head].parent
            for head in [head for head in self._entries if head not in kept]:
                self._files.remove(self._unlink(head))

    def records_after(self, head: Digest, after_round: int) -> list[bytes]:
        """Encoded commit records on the way to `head` after a round, at most one reply's worth."""
        entry = self._entries.get(head)
        wanted: list[Digest] = []
        oldest_round = 0
        while entry is not None and entry.round > after_round:
            if entry.head == self.root:
                return []  # the rounds before are gone: `chain_checkpoint` leads here
            wanted.append(entry.head)
            oldest_round = entry.round
            entry = self._entries.get(entry.parent)
        if entry is None and oldest_round != after_round + 1:
            return []  # a file on the way was damaged: what is left does not follow from anything
        records: list[bytes] = []
        num_bytes = 0
        for one in wanted[::-1][: limits.HEADERS_PER_REPLY_MAX]:
            try:
                data = self.record(one)  # of either form (`protocol.state.commit_records`)
            except (KeyError, OSError, RemoteProtocolError):
                break  # damaged here, or forgotten meanwhile: another peer has it
            num_bytes += len(data)
            if records and num_bytes > limits.FRAME_MESSAGE_BYTES_MAX // 2:
                break
            records.append(data)
        return records
