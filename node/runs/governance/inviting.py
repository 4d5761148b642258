"""Invitations, members and revocations, from what lies in a state directory.

The secret of the sponsor is the node's own key, so the node need not run for any of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.node.network.identity import Identity, verify
from gossamer.node.peers.members.entrance import roll_of
from gossamer.node.runs.manifest_here import manifest_here
from gossamer.node.storage.admission_files import ExpulsionFile, RollFile
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.errors import MalformedError, RemoteProtocolError
from gossamer.protocol.ids import PeerId, public_key_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.members.expulsions import Expulsions
from gossamer.protocol.policy.members.revocations import REVOCATIONS_MAX
from gossamer.protocol.policy.members.roll import NotWelcomeError, Roll
from gossamer.protocol.policy.members.roll_order import peer_of
from gossamer.protocol.wire.invitation_messages import (
    INVITATION_ADDRESSES_MAX,
    SLOTS_MAX,
    Invitation,
)

EXPIRES_SECONDS_MAX = 365 * 86_400
"""Of an invitation, from now on. A secret that lies about for longer is forgotten by its owner."""


class InvitationError(Exception):
    """The command cannot be carried out; the text says why and what to do."""


class NoAddressError(InvitationError):
    """This node has no address yet that an invitation could name."""


@dataclass(frozen=True)
class MemberRow:
    """A member for people."""

    peer_id: PeerId
    sponsor: PeerId | None
    """None for a root."""
    unix_seconds: int
    invitation: PeerId | None
    """The one-time key of the certificate, in the form of a peer id."""
    depth: int
    is_in: bool


def expulsions_of(roll: Roll, state_dir: StateDir) -> Expulsions:
    """Returns the votes of members on the disk.

    Raises:
        RemoteProtocolError: the file is damaged.
    """
    expulsions = Expulsions(roll, verify)
    saved = ExpulsionFile(state_dir.root).read()
    if saved is not None:
        expulsions.restore(saved)
    return expulsions


def _read_roll(roll: Roll, file: RollFile) -> None:
    """Takes what the file of the roll has. Raises InvitationError: it is damaged."""
    try:
        file.read_into(roll)
    except RemoteProtocolError as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> InvitationError:
    return InvitationError(
        f"the roll of the run is damaged ({error}): start the node, which gets it from the other "
        "members, and try again"
    )


@dataclass(frozen=True)
class InviteOnlyRun:
    """The run in a state directory, as far as invitations are concerned."""

    manifest: Manifest
    identity: Identity
    roll: Roll
    file: RollFile

    @classmethod
    def here(cls, state_dir: StateDir) -> InviteOnlyRun:
        """Reads the state directory.

        Raises:
            InvitationError: the run is not joined by invitation.
            StateDirError, IdentityError: there is no run, or a file of it is damaged.
        """
        manifest = manifest_here(state_dir)
        identity = Identity.load_or_create(state_dir.identity_path)
        return cls.of(manifest, identity, state_dir)

    @classmethod
    def of(cls, manifest: Manifest, identity: Identity, state_dir: StateDir) -> InviteOnlyRun:
        """Reads the roll of a state directory. Raises InvitationError as `here` does."""
        if manifest.admission != "invite":
            raise InvitationError(
                f'the run {manifest.name} has admission = "{manifest.admission}": only runs that '
                'were founded with admission = "invite" have invitations'
            )
        roll, file = roll_of(manifest), RollFile(state_dir.root)
        _read_roll(roll, file)
        try:
            roll.expel(expulsions_of(roll, state_dir).expelled)
        except RemoteProtocolError as error:
            raise _damaged(error) from error
        return cls(manifest, identity, roll, file)

    def invite(
        self, slots: int, expires_unix_seconds: int, depth: int | None, addresses: Sequence[str]
    ) -> Invitation:
        """Returns a new invitation of this node, with a secret of its own.

        Args:
            depth: levels of members below the newcomers; None: as many as this node may give.
            addresses: peers to try besides that of the link.

        Raises:
            InvitationError: this node may not let in so many, or nobody.
        """
        if not 1 <= slots <= SLOTS_MAX:
            raise InvitationError(f"--slots {slots} is not allowed: 1 to {SLOTS_MAX}")
        me = self.identity.peer_id
        secret = secrets.token_bytes(32)
        key = public_key_of(Identity.from_seed(secret).peer_id)
        levels = self.roll.levels_below(me)
        if levels and depth is not None and not 0 <= depth < levels:
            raise InvitationError(f"--depth {depth} is not allowed: 0 to {levels - 1}")
        try:
            certificate = self.roll.certify(
                me,
                key,
                slots,
                expires_unix_seconds,
                levels - 1 if depth is None else depth,
                self.identity.sign,
            )
        except NotWelcomeError as error:
            raise InvitationError(str(error)) from None
        more = tuple(addresses[:INVITATION_ADDRESSES_MAX])
        return Invitation(secret, certificate, self.roll.chain_of(me), more)

    def members(self) -> list[MemberRow]:
        """Returns the roots, and then all that came in, in the order in which they did."""
        roots = [
            MemberRow(peer_of(key), None, 0, None, self.roll.levels_below(peer_of(key)), True)
            for key in sorted(self.roll.roots)
        ]
        rows = [
            MemberRow(
                peer_of(entry.newcomer),
                peer_of(entry.certificate.sponsor),
                entry.unix_seconds,
                peer_of(entry.certificate.key),
                entry.certificate.depth,
                self.roll.is_member(peer_of(entry.newcomer)),
            )
            for entry in self.roll.page().entries
        ]
        return roots + rows

    def revoke(self, text: str) -> list[PeerId]:
        """Leaves a signed revocation for the node. Returns the members that it puts out.

        Args:
            text: the end of a member's peer id, or of an invitation's, long enough to name one.

        Raises:
            InvitationError: nobody or several are named, or this node may not revoke it.
            DiskError, OSError: the state directory does not take it.
        """
        target = self.named(text)
        me = self.identity.peer_id
        if not self.may_revoke(target):
            above = {*self.roll.sponsors(target)} - {me}
            raise InvitationError(
                f"{target} did not come in through this node ({me}), which is no root: ask one of "
                f"{', '.join(sorted(above)) or 'the roots'}"
            )
        key = public_key_of(target)
        with self.file.ordering():
            waiting = [each.target for each in self.file.orders().values()]
            _read_roll(self.roll, self.file)  # behind the orders: the node moves them into it
            if not self.roll.has_room(me, [*waiting, key]):
                roots = ", ".join(sorted(map(peer_of, self.roll.roots)))
                raise InvitationError(
                    f"this node ({me}) has made {REVOCATIONS_MAX} revocations, as many as count of "
                    f"a member that is no root: ask a root to put {target} out: {roots}"
                )
            self.file.order(self.roll.revoke(me, key, self.identity.sign))
        return self.members_with(target)

    def members_with(self, target: PeerId) -> list[PeerId]:
        """Returns the members that go when one, or all of an invitation, are put out, sorted."""
        out = self.roll.put_out_with(public_key_of(target))
        return sorted(peer for peer in out if self.roll.is_member(peer))

    def out_already(self, target: PeerId) -> list[PeerId]:
        """Returns those of them that were put out before, sorted."""
        out = self.roll.put_out_with(public_key_of(target))
        return sorted(peer for peer in out if not self.roll.is_member(peer))

    def may_revoke(self, target: PeerId) -> bool:
        """Returns whether this node alone can put out a member, or all of an invitation: it is a
        root, or above those who came in. An invitation that is not known here may be its own.

        Raises:
            InvitationError: the target is a root.
        """
        me, key = self.identity.peer_id, public_key_of(target)
        if key in self.roll.roots:
            raise InvitationError(f"{target} is a root of the run: nobody can put it out")
        holders = [target] if self.roll.entry(target) else self.roll.of_certificate(key)
        above = all(me in self.roll.sponsors(each) for each in holders)
        return public_key_of(me) in self.roll.roots or above

    def named(self, text: str) -> PeerId:
        """Returns the peer id that the end of a member's id, or of an invitation's, names.

        Raises:
            InvitationError: nobody or several are named.
        """
        entries = self.roll.page().entries
        known = {peer_of(key) for each in entries for key in (each.newcomer, each.certificate.key)}
        known |= {peer_of(key) for key in self.roll.roots}
        found = sorted(peer for peer in known if len(text) >= 6 and peer.endswith(text))
        if len(found) == 1:
            return found[0]
        if len(found) > 1:
            raise InvitationError(f"{text} is the end of several ids: {', '.join(found)}")
        try:
            public_key_of(PeerId(text))
        except MalformedError:
            raise InvitationError(
                f"{text} is no member: `gossamer members` lists them, with their invitations"
            ) from None
        return PeerId(text)
