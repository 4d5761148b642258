"""Signed statements that peers make to each other by gossip.

A statement is one of the classes of `Statement`, in msgpack arrays that begin with the statement's
name. It travels in a `Signed` envelope with its author and an Ed25519 signature over the run and
the statement's bytes, so any peer may pass it on, and no peer can alter it or use it in another
run. Every statement may be repeated and arrive in any order: `key_of` says which earlier statement
of the same author a newer one replaces.

`envelopes` seals and opens statements, and `statement_checks` has the bounds of what they may say.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal, TypeAlias

from gossamer.protocol.decoding import ArrayStruct
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.wire.audit_messages import SumVerdict, Verdict

Phase = Literal[
    "joining", "syncing", "training", "averaging", "paused", "leaving", "failed", "finished"
]
AT_WORK: frozenset[Phase] = frozenset({"training", "averaging"})
"""Phases of a peer that works on the round after its head."""
TAG_BYTES = 8
"""First bytes of an envelope's digest, by which two peers compare their stores, and by which gossip
names the `Ready` in a roster. Two of a thousand honest statements have the same ones with a chance
of 10^-13. Making one statement with the tag of another author's takes 2^64 attempts."""


class Span(ArrayStruct, frozen=True):
    """Tokens `start` to `stop` of one partition of the data, counted over all epochs.

    Token t of epoch e of a partition with n tokens has position e * n + t.
    """

    partition: int
    start: int
    stop: int


class Capacity(ArrayStruct, frozen=True):
    """The capabilities of a machine, as it states them itself."""

    device: str
    device_kind: str
    device_memory_bytes: int
    host_memory_bytes: int
    cores: int
    tokens_per_second: float
    bandwidth_bytes_per_second: float


Reach: TypeAlias = Literal["open", "crossable", "strict", "unknown"]
"""The class of a peer's router: the peer can be dialled; it can be reached if both sides dial at
once; it cannot be dialled; or too few peers have seen its address."""


class Announce(ArrayStruct, frozen=True, tag="announce"):
    """The author is alive, and says its place in the run. The statement is repeated every few
    seconds; silence means that the author is gone.

    It has more than 12 attributes: each is a field of the message.
    """

    incarnation: int
    """Number of the author's life: it grows with every start of the same identity."""
    sequence: int
    phase: Phase
    round: int
    """Newest committed round of this peer."""
    head: bytes
    tokens_total: int
    """Tokens in the chain of `head`."""
    checkpoint_round: int
    """Newest round whose whole state this peer serves."""
    claims: tuple[int, ...]
    """Partitions of the data that this peer is training on or about to."""
    addresses: tuple[str, ...]
    capacity: Capacity
    reach: Reach = "unknown"
    """The peers that can connect to this one: all of them, those that dial at the same time, or
    none."""
    name: str = ""
    """The name that its owner wants to be shown; empty for none. Two peers may have the same one:
    only the peer id tells who it is."""
    team: str = ""
    """The team that its owner wants to be shown; empty for none. Anybody may name any team."""


class Ready(ArrayStruct, frozen=True, tag="ready"):
    """The author's pseudo-gradient for the round after `head` is done."""

    incarnation: int
    """Number of the author's life: it grows with every start of the same identity."""
    sequence: int
    """Number of this `Ready`. It grows with each one, so no two of one peer are the same: the work
    behind the earlier one is gone, or in other rounds."""
    round: int
    head: bytes
    tokens: int
    """Tokens behind the pseudo-gradient, carried work included: its weight."""
    steps: int
    loss: float
    """Mean training loss of the round's inner steps, nats per token."""
    norm: float
    """Euclidean norm of the pseudo-gradient, carried work included; 0 in a run without
    `displacement`, where nothing depends on it and the ring need not wait for it."""
    spans: tuple[Span, ...]
    links: bytes = b""
    """The peers that the author is connected to, `limits.LINK_BYTES` of the digest of each, sorted
    (`ring_order.encode_links`). Empty: it is connected well to all that it knows."""
    root: bytes = b""
    """Root over the author's records, chunk by chunk (`record_tree`), in a run with
    `trust = "open"`, or over its work in others (`policy.auditing.sum_audits`); empty where members
    train inside the ring."""
    commitment: bytes = b""
    """Commitment to the author's secret of this `Ready`, which says whether it audits the round's
    sums, in a run with `trust = "members"` (`policy.auditing.sum_audits`); empty in others."""


class Roster(ArrayStruct, frozen=True, tag="roster"):
    """The ring of one attempt: its members' signed `Ready`, in ring order."""

    round: int
    head: bytes
    attempt: int
    members: tuple[Signed, ...]
    codec: str
    chunk_elements: int


class Accusation(ArrayStruct, frozen=True, tag="suspect"):
    """The author accuses a member of a ring: the member does not keep up, and is out of the ring
    for good."""

    ring_id: bytes
    accused: str
    reason: str


class Vote(ArrayStruct, frozen=True, tag="vote"):
    """The author computed this header from the ring's averages, and holds `removed` to be out of
    the ring."""

    ring_id: bytes
    sequence: int
    header_digest: bytes
    removed: tuple[str, ...]


class LinkRate(ArrayStruct, frozen=True, tag="pace"):
    """The rate at which the author's successor in this ring takes bytes, while there is something
    to send, and the rate at which the author's predecessor has delivered.

    They are said again when they have changed much.
    """

    ring_id: bytes
    sequence: int
    bytes_per_second: float
    arrived_bytes_per_second: float
    """The highest one at which chunks came to the author in this ring."""


RingStatement: TypeAlias = Accusation | Vote | LinkRate
"""Statements of a member about its ring."""


class Rollback(ArrayStruct, frozen=True, tag="rollback"):
    """The founder takes a round back, and all rounds that follow it: the run goes on from the head
    before. Only the founder can say so, and it holds for the rest of the run."""

    undone: bytes
    """Digest of the header of the first round that is taken back."""
    parent: bytes
    """The head before it."""
    round: int
    """Number of the round that led to `parent`; 0: the run begins anew."""


class Extension(ArrayStruct, frozen=True, tag="extend"):
    """The founder names another end of a run whose schedule counts tokens, or begins its cool-down
    (`protocol.state.run_end`). Only the founder can say so; the highest number holds."""

    number: int
    """1 for the first extension of a run."""
    total_tokens: int
    """Tokens of all peers with which the run is over."""
    cooldown_tokens: int
    """Of these the last ones, in which the learning rate falls."""


class MoreData(ArrayStruct, frozen=True, tag="data"):
    """The founder has added parts to the data of the run (`protocol.data_parts`). Only the founder
    can say so; the highest number holds."""

    number: int
    """Parts that were added since the run began."""
    parts_digest: bytes
    """Block with the `PartList`."""
    num_tokens: int
    """Tokens of all added parts together."""
    expected_tokens: int
    """Tokens of all parts that the founder means to add, as it estimates. No more than `num_tokens`
    once it has added all."""


class Equivocation(ArrayStruct, frozen=True, tag="proof"):
    """A proof, which anybody can carry, that a peer has signed two different `Ready` with one
    number (`policy.conduct.equivocation`)."""

    first: Signed
    second: Signed
    """The author is that of `first`. Of the two payloads `first` has the lower one."""


Statement: TypeAlias = (
    Announce
    | Ready
    | Roster
    | RingStatement
    | Rollback
    | Extension
    | MoreData
    | Equivocation
    | Verdict
    | SumVerdict
)


class Signed(ArrayStruct, frozen=True, dict=True):
    """An envelope: the author, the statement's bytes, and the signature."""

    author: str
    payload: bytes
    signature: bytes

    @cached_property
    def digest(self) -> Digest:
        return digest_of(self.author.encode(), self.payload)


def key_of(author: str, statement: Statement) -> tuple[str, ...]:
    """Statements with the same key replace each other; `version_of` says which is newer."""
    match statement:
        case Announce():
            return ("announce", author)
        case Ready():
            # By head: a peer that moves to another head of the same round is ready there anew.
            return ("ready", author, statement.head.hex())
        case Roster():
            return ("roster", author, statement.head.hex(), str(statement.attempt))
        case Accusation():
            return ("suspect", author, statement.ring_id.hex(), statement.accused)
        case Vote():
            return vote_key(author, statement.ring_id)
        case LinkRate():
            return ("pace", author, statement.ring_id.hex())
        case Rollback():
            return ("rollback", author, statement.undone.hex())
        case Extension():
            return ("extend", author)
        case MoreData():
            return ("data", author)
        case Equivocation():
            return proof_key(statement.first.author)  # one proof is enough, whoever brings it
        case Verdict():
            return ("verdict", author, statement.head.hex())
        case SumVerdict():
            return ("sum verdict", author, statement.head.hex())


def vote_key(author: str, ring_id: bytes) -> tuple[str, ...]:
    """The key of the newest vote of a peer in a ring."""
    return ("vote", author, ring_id.hex())


def proof_key(accused: str) -> tuple[str, ...]:
    """The key of the proof that a peer has equivocated."""
    return ("proof", accused)


def version_of(statement: Statement) -> tuple[int, ...]:
    """Returns the version of a statement: of two statements with one key the higher version is the
    newer."""
    match statement:
        case Announce() | Ready():
            return (statement.incarnation, statement.sequence)
        case Vote() | LinkRate():
            return (statement.sequence,)
        case Extension():
            # The totals decide between two of one number, so that every peer keeps the same one.
            return (statement.number, statement.total_tokens, statement.cooldown_tokens)
        case MoreData():
            # The digest decides between two of one number, so that every peer keeps the same one.
            return (statement.number, int.from_bytes(statement.parts_digest, "big"))
        case Roster() | Accusation() | Rollback() | Equivocation() | Verdict() | SumVerdict():
            return ()
