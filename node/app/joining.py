"""Joining a run: asking its peers to come in, its manifest, and the files of a member."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gossamer.node.base.roles import Join
from gossamer.node.base.threads import RunInThread
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.network.transport import Transport
from gossamer.node.peers.members.entrance import roll_of
from gossamer.node.peers.members.introductions import Applicant
from gossamer.node.peers.members.run_exchange import (
    JoinError,
    NotAdmittedError,
    request_manifest,
)
from gossamer.node.storage.admission_files import RollFile, write_pinned_head
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import Manifest, SignedManifest
from gossamer.protocol.wire.invitation_messages import RollPage, decode_invitation


async def join_run(
    transport: Transport,
    role: Join,
    addresses: tuple[str, ...],
    state_dir: StateDir,
    require_consent: Callable[[Manifest], Awaitable[None]],
    run_in_thread: RunInThread,
) -> SignedManifest:
    """Joins the run of the peers at these addresses, and binds the state directory to it.

    Args:
        run_in_thread: writes to the disk, while the peers of the run are answered.

    Raises:
        JoinError: no peer can be reached, or none lets this node in.
        DiskError, StateDirError: the state directory does not take it.
    """
    run_id = Digest(bytes.fromhex(role.run_id)) if role.run_id else None
    applicant = None
    if role.invitation is not None:
        if run_id is None:
            raise JoinError("an invitation names its run: copy the whole text")
        applicant = Applicant(decode_invitation(role.invitation), run_id, transport.peer_id)
    signed = await request_manifest(transport, addresses, run_id, applicant)
    manifest = open_signed_manifest(signed)
    await require_consent(manifest)
    page = None
    if manifest.admission == "invite":
        page = await _learn_roll(transport, manifest, applicant)
    head = None if role.head is None else Digest(bytes.fromhex(role.head))

    def write() -> None:
        if page is not None:
            RollFile(state_dir.root).write(page)
        if head is not None:
            write_pinned_head(state_dir.root, head)
        state_dir.write_manifest(signed)  # the last one: with it the directory has a run

    await run_in_thread(write)
    return signed


async def _learn_roll(
    transport: Transport, manifest: Manifest, applicant: Applicant | None
) -> RollPage:
    """Returns the roll of the peers that let this node in.

    Raises:
        NotAdmittedError: it does not lead from a root of the run to this node.
    """
    roll = roll_of(manifest)
    try:
        if applicant is not None:
            await applicant.learn(transport, roll)
    except RemoteProtocolError as error:
        raise NotAdmittedError(
            f"the peer that let this node in sent a false entry: {error}"
        ) from None
    if not roll.is_member(transport.peer_id):
        raise NotAdmittedError(
            f"the run {manifest.name} is joined by invitation: ask a member for one "
            f"(`gossamer invite`). This node is {transport.peer_id}"
        )
    return roll.page()
