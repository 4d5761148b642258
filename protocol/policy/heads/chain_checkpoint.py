"""Signed checkpoints of the chain: what a newcomer needs of the rounds whose headers are gone.

Rules
-----
- Every `CHECKPOINT_PERIOD` rounds the chain has a *checkpoint*: the head, the stake of each member
  there (`head_choice`), and the digest of a *summary*: what each member has given so far, and the
  heads that links may name. It is a function of the chain alone, so all members compute the same
  bytes. A header holds the digests of state and ledger, so nothing else of the past is needed.
- A member signs the checkpoint of a round that lies `signing_depth` rounds behind its head. Neither
  the choice of a head nor a rollback goes back so far.
- A checkpoint is *proven* from stakes that a peer knows if the signers hold more than half of those
  stakes, and more than half of the stakes in the checkpoint. A proven one is where the next proof
  begins. At the run's beginning the founder has the only stake, so a newcomer takes nothing that
  does not lead back to the founder's signature.
- A peer that was away begins from the stakes at its own head. There at least half is enough, as for
  a deep fork (`HeadChoice.may_undo`): of two members each could otherwise never come back to the
  other.
- A *path* is a list of checkpoints, each proven from the one before it and the first one from the
  run's beginning. It has as few steps as the signers allow (`shortened`): one, while the founder
  signs; else about one each time half of the stake has changed hands. This is the skipping
  verification of light clients (Braithwaite et al., "A Tendermint Light Client", 2020), with the
  majority that also decides deep forks here.

A member signs the checkpoint of its own chain only, and not what it was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import ArrayStruct, decoded, to_msgpack
from gossamer.protocol.errors import (
    ForgedError,
    MalformedError,
    RemoteProtocolError,
    UnprovenError,
)
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId, digest_of, public_key_of
from gossamer.protocol.policy.heads.chain_summary import CHECKPOINT_PERIOD, ChainSummary
from gossamer.protocol.policy.members.branch_caps import BranchOf, branch_cap, capped_total
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.state.chain import Header
from gossamer.protocol.wire.checkpoint_messages import (
    PATH_MAX,
    CheckpointSignature,
    SignedCheckpoint,
)
from gossamer.protocol.wire.envelopes import Verify

KEPT_ROUNDS = 1024
"""Newest rounds whose headers every node keeps. With rounds of a minute that is seventeen hours, so
a machine that was off for a night comes back by the headers alone."""

ROLLBACK_STATES = 9
"""Checkpoints of the state that a rollback may go back: nodes keep eight of them at most, and one
is being written."""


VERSION = 1

_CONTEXT = b"gossamer chain checkpoint 1:"


class Stake(ArrayStruct, frozen=True):
    """The stake of one peer, see `policy.heads.head_choice`."""

    peer_id: str
    tokens: int


class ChainCheckpoint(ArrayStruct, frozen=True):
    """The chain up to a round, as a newcomer needs it."""

    version: int
    run_id: bytes
    round: int
    head: bytes
    tokens_total: int
    stakes: tuple[Stake, ...]
    """At the head, by peer id: of `limits.MEMBERS_MAX` peers at most."""
    summary_digest: bytes

    @property
    def digest(self) -> Digest:
        return digest_of(to_msgpack(self))

    @property
    def by_peer(self) -> Mapping[PeerId, int]:
        return {PeerId(each.peer_id): each.tokens for each in self.stakes}


class OpenedCheckpoint(NamedTuple):
    """A checkpoint whose values and signatures are checked."""

    checkpoint: ChainCheckpoint
    signers: frozenset[PeerId]
    signed: SignedCheckpoint
    """As it travels."""


_checkpoint_decoder = msgspec.msgpack.Decoder(ChainCheckpoint)


def signing_bytes(run_id: Digest, checkpoint_digest: Digest) -> bytes:
    """The bytes that a member signs."""
    return _CONTEXT + run_id + checkpoint_digest


# Checkpoints


def checkpoint_of(
    header: Header,
    stakes: Mapping[PeerId, int],
    summary: ChainSummary,
    tokens: Mapping[PeerId, int],
) -> ChainCheckpoint:
    """The checkpoint of the chain up to and with a header.

    Args:
        stakes: of each peer that has one at this head.
        summary: up to and with this round.
        tokens: behind the stakes, see `HeadChoice.tokens_at`. Where more peers have stake than a
            checkpoint may name it names those with the most, of equal ones those with the lower
            peer ids. Among the stakes themselves many would be equal, and identities are free, so
            strangers could choose ids that come first.
    """
    assert summary.round == header.round
    ranked = sorted(stakes, key=lambda peer: (-tokens.get(peer, 0), peer))
    named = sorted(ranked[: limits.MEMBERS_MAX])
    return ChainCheckpoint(
        VERSION,
        header.run_id,
        header.round,
        header.digest,
        header.tokens_total,
        tuple(Stake(peer, stakes[peer]) for peer in named),
        summary.digest,
    )


def decode_checkpoint(data: bytes | bytearray, run_id: Digest) -> ChainCheckpoint:
    """A checkpoint of a run whose values are checked, and not its signatures.

    Raises:
        MalformedError: the bytes are no checkpoint of this run, or a value is out of range.
    """
    checkpoint = decoded(_checkpoint_decoder, data, "a chain checkpoint")
    names = [each.peer_id for each in checkpoint.stakes]
    if to_msgpack(checkpoint) != data or names != sorted(set(names)):
        raise MalformedError("chain checkpoint that is not in canonical form")
    if checkpoint.version != VERSION or checkpoint.run_id != run_id:
        raise MalformedError("chain checkpoint of another run or version")
    if any(len(each) != DIGEST_BYTES for each in (checkpoint.head, checkpoint.summary_digest)):
        raise MalformedError("chain checkpoint with a digest that is not 32 bytes long")
    if not (
        CHECKPOINT_PERIOD <= checkpoint.round <= limits.ROUNDS_MAX
        and checkpoint.round % CHECKPOINT_PERIOD == 0
        and 0 < checkpoint.tokens_total <= limits.TOKENS_TOTAL_MAX
        and 1 <= len(checkpoint.stakes) <= limits.MEMBERS_MAX
    ):
        raise MalformedError("chain checkpoint with a value out of range")
    for each in checkpoint.stakes:
        public_key_of(PeerId(each.peer_id))
        if not 0 < each.tokens <= limits.TOKENS_TOTAL_MAX:
            raise MalformedError("chain checkpoint with a stake out of range")
    return checkpoint


def is_signed_by(
    signature: CheckpointSignature, run_id: Digest, checkpoint_digest: Digest, verify: Verify
) -> bool:
    """Returns whether the author signed this checkpoint of this run."""
    try:
        public_key_of(PeerId(signature.author))
    except RemoteProtocolError:
        return False
    return len(signature.signature) == 64 and verify(
        PeerId(signature.author), signing_bytes(run_id, checkpoint_digest), signature.signature
    )


def claimed_by(signed: SignedCheckpoint, run_id: Digest) -> OpenedCheckpoint:
    """A checkpoint with the authors of its signatures, which are not checked.

    Raises:
        MalformedError: not a checkpoint of this run, or more signatures than members.
    """
    checkpoint = decode_checkpoint(signed.checkpoint, run_id)
    if len(signed.signatures) > limits.MEMBERS_MAX:
        raise MalformedError(f"chain checkpoint with {len(signed.signatures)} signatures")
    signers = frozenset(PeerId(each.author) for each in signed.signatures)
    return OpenedCheckpoint(checkpoint, signers, signed)


def open_checkpoint(signed: SignedCheckpoint, run_id: Digest, verify: Verify) -> OpenedCheckpoint:
    """A checkpoint with its signers.

    Raises:
        MalformedError: not a checkpoint of this run, or more signatures than members.
        ForgedError: a signature that its author did not make.
    """
    opened = claimed_by(signed, run_id)
    digest = digest_of(signed.checkpoint)
    for each in signed.signatures:
        if not is_signed_by(each, run_id, digest, verify):
            raise ForgedError(f"{each.author} did not sign this chain checkpoint")
    return opened


# Proofs


def has_majority(
    stakes: Mapping[PeerId, int],
    signers: Iterable[PeerId],
    branch_of: BranchOf | None = None,
    *,
    or_half: bool = False,
) -> bool:
    """Returns whether signers hold more than half of the stakes.

    Args:
        branch_of: of each member of an invite-only run, see `branch_caps`; None in others.
        or_half: whether exactly half is enough.
    """
    chosen = frozenset(signers)
    counted = {peer: stake for peer, stake in stakes.items() if peer in chosen}
    if branch_of is None:
        support, total = sum(counted.values()), sum(stakes.values())
    else:
        cap = branch_cap(stakes, branch_of)
        support = capped_total(counted, branch_of, cap)
        total = capped_total(stakes, branch_of, cap)
    return 2 * support > total or (or_half and 2 * support == total > 0)


def is_proven(
    stakes: Mapping[PeerId, int],
    opened: OpenedCheckpoint,
    branch_of: BranchOf | None = None,
    *,
    or_half: bool = False,
) -> bool:
    """Returns whether a checkpoint is proven from stakes that are known; for the others see
    `has_majority`."""
    return has_majority(stakes, opened.signers, branch_of, or_half=or_half) and has_majority(
        opened.checkpoint.by_peer, opened.signers, branch_of
    )


def follow_path(
    path: Sequence[OpenedCheckpoint],
    stakes: Mapping[PeerId, int],
    round_number: int,
    branch_of: BranchOf | None = None,
) -> ChainCheckpoint:
    """The last checkpoint of a path, proven step by step from what a peer knows.

    Args:
        stakes: at the peer's own head.
        round_number: of that head. Checkpoints up to it prove nothing to this peer.

    Raises:
        UnprovenError: the last checkpoint is not newer than the peer's head, or not proven from
            these stakes. The peer that serves it need not have lied.
    """
    last: ChainCheckpoint | None = None
    for opened in path:
        checkpoint = opened.checkpoint
        newest = round_number if last is None else last.round
        if checkpoint.round > newest and is_proven(stakes, opened, branch_of, or_half=last is None):
            last, stakes = checkpoint, checkpoint.by_peer
    if not path or last is not path[-1].checkpoint:
        raise UnprovenError("chain checkpoints that the members known here did not sign")
    assert last is not None
    return last


def shortened(
    path: Sequence[OpenedCheckpoint],
    new: OpenedCheckpoint,
    founder: PeerId,
    branch_of: BranchOf | None = None,
) -> list[int] | None:
    """The places of the checkpoints of a path that are needed before a new one; None if it is not
    proven by any.

    Args:
        path: proven from the run's beginning when it was made. Branches change with the roll, so a
            checkpoint that is not proven any more proves nothing here, and is left out: a newcomer
            goes no further than the first one that is not proven.
    """
    proven: list[int] = []
    anchors: list[Mapping[PeerId, int]] = [{founder: 1}]
    for place, each in enumerate(path):
        if is_proven(anchors[-1], each, branch_of):
            proven.append(place)
            anchors.append(each.checkpoint.by_peer)
    for num_needed, stakes in enumerate(anchors):
        if is_proven(stakes, new, branch_of):
            return proven[:num_needed] if num_needed < PATH_MAX else None
    return None


# Rounds


def signing_depth(checkpoint_rounds: int) -> int:
    """Rounds by which a checkpoint lies behind the heads of those that sign it.

    Nobody goes back so far: neither to another head nor by a rollback. And a whole state of a later
    round is there, so that a newcomer that begins at the checkpoint finds one.

    Args:
        checkpoint_rounds: of the manifest: rounds between two whole states.
    """
    return STANDING_ROUNDS + ROLLBACK_STATES * checkpoint_rounds


def due_round(head_round: int, checkpoint_rounds: int) -> int:
    """The newest round whose checkpoint a member at a head signs; 0: none yet."""
    due = head_round - signing_depth(checkpoint_rounds)
    return max(0, due - due % CHECKPOINT_PERIOD)


def kept_round(head_round: int, checkpoint_rounds: int, stale_rounds: int) -> int:
    """The checkpoint after which a node at a head keeps all headers; 0: it keeps all.

    Args:
        stale_rounds: rounds that carried work may miss: its rounds are still looked at.
    """
    num_kept = max(KEPT_ROUNDS, stale_rounds, signing_depth(checkpoint_rounds))
    return max(0, (head_round - num_kept) // CHECKPOINT_PERIOD * CHECKPOINT_PERIOD)
