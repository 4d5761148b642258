"""The roll of an invite-only run: its members, by the certificates that let them in.

Rules
-----
- The *roots* that the manifest names are members without an entry. Every other member has one.
- Entries count in an order that every node computes alike (`roll_order`): the first ones take the
  slots of a certificate.
- A witness lets a newcomer in once and at a time after every entry of the same certificate that it
  knows, or at the last second of the certificate, so nobody who comes later takes the place of a
  member. Members that were cut off from each other may fill the same slot twice; the order then
  says which entry stays.
- A revocation counts if a root made it, or somebody above its target. It puts out the target and
  all below it, for good. Its slot is not free again, and what it witnessed stays. Votes of two
  thirds of the stake do the same (`expulsions`).
- An entry that does not count is forgotten, and so is a revocation by somebody without an entry
  that counts. A peer that still holds it offers it again.

Convergence: of two members, look at the first entry in the order that one has and the other lacks.
All entries before it are the same, so it counts with both as soon as they compare their rolls. So
two rolls that are compared again and again become the same.

A key is a public key's 32 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError
from gossamer.protocol.ids import Digest, PeerId, digest_of, public_key_of
from gossamer.protocol.policy.members.revocations import Revocations
from gossamer.protocol.policy.members.roll_order import Counted, count, in_order, peer_of
from gossamer.protocol.wire.envelopes import Sign, Verify
from gossamer.protocol.wire.invitation_messages import (
    PAGE_BYTES_MAX,
    PROOF_ENTRIES_MAX,
    Certificate,
    Claim,
    Entry,
    Revocation,
    RollPage,
    proof_bytes,
)

STRANGERS = PeerId("")
"""The branch of all peers that never were members: identities are free, so if each were a branch of
its own, many of them would weigh more than any member's branch."""


class NotWelcomeError(Exception):
    """A genuine invitation does not let its holder in; the text says why, for people."""


class UnknownClaimError(NotWelcomeError):
    """A claim that shows no invitation of this run, as far as this roll knows: its holder is told
    nothing."""


@dataclass(frozen=True)
class Changes:
    """The effect of new pieces on a roll."""

    news: RollPage
    """Pieces that the roll did not have."""
    came: frozenset[PeerId] = frozenset()
    gone: frozenset[PeerId] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.news or self.came or self.gone)


class Roll:
    """The entries and revocations that one node knows.

    It has more than 15 public methods: peers, invitations and revocations each have their
    questions, and a change of one may change the answers for all.
    """

    def __init__(self, run_id: Digest, roots: Iterable[PeerId], verify: Verify) -> None:
        self.run_id = run_id
        self.roots = frozenset(map(public_key_of, roots))
        self._verify = verify
        self._counted = Counted(self.roots)
        self._revocations = Revocations(self.roots)
        self._expelled = frozenset[bytes]()
        """Targets that votes have put out."""
        self._members = frozenset(map(peer_of, self.roots))
        self._digest: Digest | None = None

    # Questions about a peer

    def is_member(self, peer: PeerId) -> bool:
        """Returns whether a peer is in now."""
        return peer in self._members

    def was_member(self, peer: PeerId) -> bool:
        """Returns whether a peer is in, or was in until it was revoked."""
        key = public_key_of(peer)
        return key in self.roots or key in self._counted.entries

    def why_out(self, peer: PeerId) -> str:
        """Returns the reason why a peer that was a member is out; empty if it is not."""
        entry = self.entry(peer)
        if entry is None or self.is_member(peer):
            return ""
        return self._why_out(entry, self._counted.out)

    def entry(self, peer: PeerId) -> Entry | None:
        """Returns the entry of a peer that is or was a member; a root has none."""
        return self._counted.entries.get(public_key_of(peer))

    def chain_of(self, peer: PeerId) -> tuple[Entry, ...]:
        """Returns the entries from below a root down to a peer; none for a root or a stranger."""
        chain: list[Entry] = []
        entry = self._counted.entries.get(public_key_of(peer))
        while entry is not None:
            chain.append(entry)
            entry = self._counted.entries.get(entry.certificate.sponsor)
        return tuple(reversed(chain))

    def proof_of(self, peer: PeerId) -> tuple[Entry, ...]:
        """Returns the entries by which a roll that knows only the roots knows a peer: its chain and
        those of all witnesses, each behind the ones that it needs. At most `PROOF_ENTRIES_MAX`; the
        witnesses that are farthest away are left out first."""
        found: dict[bytes, Entry] = {}
        wanted = [entry.newcomer for entry in reversed(self.chain_of(peer))]
        while wanted and len(found) < PROOF_ENTRIES_MAX:
            key = wanted.pop(0)
            entry = self._counted.entries.get(key)
            if entry is not None and key not in found:
                found[key] = entry
                wanted += [entry.witness, entry.certificate.sponsor]
        return tuple(each for key, each in self._counted.entries.items() if key in found)

    def sponsors(self, peer: PeerId) -> tuple[PeerId, ...]:
        """Returns the peers between a root and a peer, the root left out, from the top down."""
        return tuple(peer_of(entry.newcomer) for entry in self.chain_of(peer)[:-1])

    def branch_of(self, peer: PeerId) -> PeerId:
        """Returns the member below a root through which a peer came in: the peer itself where a
        root let it in, and for a root. All strangers are one branch, `STRANGERS`."""
        chain = self.chain_of(peer)
        if chain:
            return peer_of(chain[0].newcomer)
        return peer if public_key_of(peer) in self.roots else STRANGERS

    def below(self, peer: PeerId) -> frozenset[PeerId]:
        """Returns all peers that came in through a peer, directly or not. None for a root: that
        would be the whole run."""
        found = {public_key_of(peer)} - self.roots
        for newcomer, entry in self._counted.entries.items():  # a sponsor comes before its own
            if entry.certificate.sponsor in found:
                found.add(newcomer)
        return frozenset(map(peer_of, found)) - {peer}

    def of_certificate(self, key: bytes) -> list[PeerId]:
        """Returns the peers that came in by a one-time key, the first one first."""
        entries = self._counted.entries.values()
        return [peer_of(each.newcomer) for each in entries if each.certificate.key == key]

    def put_out_with(self, target: bytes) -> frozenset[PeerId]:
        """Returns the peers that go when a member, or all of an invitation, are put out."""
        entries = self._counted.entries.keys()
        first = [peer_of(target)] if target in entries else self.of_certificate(target)
        return frozenset(first).union(*map(self.below, first))

    def is_used(self, key: bytes) -> bool:
        """Returns whether somebody came in by a one-time key."""
        return self._counted.is_used(key)

    # Inviting and letting in

    def certify(
        self, sponsor: PeerId, key: bytes, slots: int, expires: int, depth: int, sign: Sign
    ) -> Certificate:
        """Returns a certificate that a member signs for a one-time key.

        Args:
            expires: Unix seconds.
            depth: levels of members below the newcomers.

        Raises:
            NotWelcomeError: the member may not let in anybody, or not so deep.
        """
        levels = self.levels_below(sponsor)
        if not levels:
            raise NotWelcomeError("this node may invite nobody: it is no member, or the last level")
        if depth > levels - 1:
            raise NotWelcomeError(f"depth is {depth}; allowed: 0 to {levels - 1}")
        blank = Certificate(public_key_of(sponsor), key, slots, expires, depth, b"")
        signature = sign(blank.signing_bytes(self.run_id))
        return Certificate(blank.sponsor, key, slots, expires, depth, signature)

    def revoke(self, revoker: PeerId, target: bytes, sign: Sign) -> Revocation:
        """Returns a revocation, signed."""
        key = public_key_of(revoker)
        signature = sign(Revocation(key, target, b"").signing_bytes(self.run_id))
        return Revocation(key, target, signature)

    def has_room(self, revoker: PeerId, targets: Iterable[bytes]) -> bool:
        """See `Revocations.has_room`."""
        return self._revocations.has_room(public_key_of(revoker), targets)

    def let_in(
        self, claim: Claim, newcomer: PeerId, witness: PeerId, unix_seconds: int, sign: Sign
    ) -> Entry | None:
        """Returns the new entry of a newcomer whose claim is good; None if it is a member.

        The caller has added the claim's entries, and adds this one.

        Raises:
            ForgedError: a signature of the claim is false.
            NotWelcomeError: the claim is genuine, and lets nobody in, or nobody any more.
            UnknownClaimError: nothing here shows that the claim is genuine.
        """
        if self.is_member(newcomer):
            return None
        certificate, key = claim.certificate, public_key_of(newcomer)
        if self.was_member(newcomer):
            raise NotWelcomeError(f"it was put out ({self.why_out(newcomer)})")
        if certificate is None:
            raise UnknownClaimError("it is not known here, or its slot went to an earlier newcomer")
        if not self._counted.is_known(certificate.sponsor):
            raise UnknownClaimError("its sponsor is not known as a member of this run")
        self._check_certificate(certificate)
        if not self._verify(peer_of(certificate.key), proof_bytes(self.run_id, key), claim.proof):
            raise ForgedError("a proof that the invitation's secret did not sign")
        let_in_by = public_key_of(witness)
        seconds = self._counted.time_of(certificate, let_in_by, unix_seconds)
        blank = Entry(certificate, key, claim.proof, let_in_by, seconds, b"")
        if problem := self._counted.why_not(blank) or self._why_out(blank, self._counted.out):
            raise NotWelcomeError(problem)
        return Entry(
            certificate, key, claim.proof, blank.witness, blank.unix_seconds,
            sign(blank.signing_bytes(self.run_id)),
        )  # fmt: skip

    def levels_below(self, peer: PeerId) -> int:
        """Returns the levels of members that may come in below a peer; 0 for one that is not in."""
        return self._counted.levels_below(public_key_of(peer)) if self.is_member(peer) else 0

    # Pieces

    def add(self, page: RollPage) -> Changes:
        """Takes pieces of another roll, in any order. Those that do not count are left out.

        Raises:
            ForgedError: a signature in a piece that might count is false. Nothing is taken.
        """
        before = self._counted.entries
        fresh = self._rooted(each for each in page.entries if before.get(each.newcomer) != each)
        counted = count(self.roots, [*before.values(), *fresh]) if fresh else self._counted
        # What does not count is not checked: signatures take time, and anybody can make many.
        new = [each for each in fresh if counted.entries.get(each.newcomer) == each]
        for entry in new:
            self._check_entry(entry)
        revocations = [
            each
            for each in page.revocations
            if counted.is_known(each.revoker) and not self._revocations.has(each)
        ]
        for each in revocations:
            self._check(each.revoker, each, "a revocation that its revoker did not sign")
        if not new and not revocations:
            return Changes(NO_PAGE)
        return self._take(counted, revocations)

    def _rooted(self, entries: Iterable[Entry]) -> list[Entry]:
        """Returns those of some entries that lead to the members, and that their witnesses signed,
        or raises ForgedError. Others count in no case. To count all takes far longer than to invent
        an entry."""
        found: dict[bytes, Entry] = {}
        rooted: list[Entry] = []
        for entry in in_order(entries):
            needed = (entry.certificate.sponsor, entry.witness)
            if all(key in found or self._counted.is_known(key) for key in needed):
                self._check(entry.witness, entry, "an entry that its witness did not sign")
                found[entry.newcomer] = entry
                rooted.append(entry)
        return rooted

    def _take(self, counted: Counted, revocations: list[Revocation]) -> Changes:
        before, members = set(self._counted.entries.values()), self._members
        self._counted = counted
        # A revoker whose entry does not count any more is unknown elsewhere, so it is here.
        known = self.roots | counted.entries.keys()
        self._revocations.keep_of(known)
        taken = tuple(each for each in revocations if self._revocations.keep(each))
        self._find_members()
        self._digest = None
        new = tuple(each for each in self._counted.entries.values() if each not in before)
        return Changes(
            RollPage(new, taken), self._members - members, frozenset(members - self._members)
        )

    def expel(self, targets: frozenset[bytes]) -> Changes:
        """Puts out what votes have put out by now (`expulsions`), with all below it. It is no piece
        of the roll: the votes say it.

        Args:
            targets: keys of members and of one-time secrets. Others that were out by votes are in.
        """
        members, self._expelled = self._members, targets
        self._find_members()
        return Changes(NO_PAGE, self._members - members, frozenset(members - self._members))

    def _find_members(self) -> None:
        self._counted.out = self._find_out()
        self._members = frozenset(
            peer_of(key) for key in self.roots | (self._counted.entries.keys() - self._counted.out)
        )

    def digest(self) -> Digest:
        """Returns the digest of all pieces: two rolls with the same pieces have the same."""
        if self._digest is None:
            self._digest = digest_of(b"".join(self.digests()))
        return self._digest

    def digests(self) -> list[Digest]:
        """Returns the digests of all pieces, each sponsor before its newcomers."""
        page = self.page()
        return [each.digest for each in page.entries] + [each.digest for each in page.revocations]

    def page(self) -> RollPage:
        """Returns all pieces."""
        return RollPage(tuple(self._counted.entries.values()), self._revocations.all())

    def pieces(self, digests: Collection[Digest]) -> RollPage:
        """Returns the pieces with these digests, up to `PAGE_BYTES_MAX`."""
        page, left = self.page(), PAGE_BYTES_MAX
        entries: list[Entry] = []
        revocations: list[Revocation] = []
        for entry in page.entries:
            if entry.digest in digests and left > 0:
                entries.append(entry)
                left -= len(to_msgpack(entry))
        for revocation in page.revocations:
            if revocation.digest in digests and left > 0:
                revocations.append(revocation)
                left -= len(to_msgpack(revocation))
        return RollPage(tuple(entries), tuple(revocations))

    def _find_out(self) -> set[bytes]:
        out: set[bytes] = set()
        for newcomer, entry in self._counted.entries.items():
            if self._why_out(entry, out):
                out.add(newcomer)
        return out

    def _why_out(self, entry: Entry, out: Collection[bytes]) -> str:
        """Returns the reason why somebody that came in is out; empty if it is not. `out`: members
        above it that are out."""
        key = entry.certificate.sponsor
        if key in out:
            return "its sponsor was put out"
        revokers = set(self.roots)
        while key in self._counted.entries:
            revokers.add(key)
            key = self._counted.entries[key].certificate.sponsor
        targets = {entry.newcomer, entry.certificate.key}
        if targets & self._expelled:
            return "the members have put it out, or its invitation, by a vote"
        if self._revocations.is_put_out(targets, by=revokers):
            return "the invitation, or the member that it let in, was revoked"
        return ""

    # Checks

    def _check_entry(self, entry: Entry) -> None:
        self._check_certificate(entry.certificate)
        one_time = peer_of(entry.certificate.key)
        if not self._verify(one_time, proof_bytes(self.run_id, entry.newcomer), entry.proof):
            raise ForgedError("an entry that the invitation's secret did not sign")

    def _check_certificate(self, certificate: Certificate) -> None:
        problem = "a certificate of this run that its sponsor did not sign"
        self._check(certificate.sponsor, certificate, problem)

    def _check(self, key: bytes, piece: Certificate | Entry | Revocation, problem: str) -> None:
        if not self._verify(peer_of(key), piece.signing_bytes(self.run_id), piece.signature):
            raise ForgedError(problem)


NO_PAGE = RollPage((), ())


def roots_of(founder: str, allowed: Iterable[str]) -> frozenset[PeerId]:
    """Returns the roots that a manifest of `admission = "invite"` names."""
    return frozenset(map(PeerId, (founder, *allowed)))
