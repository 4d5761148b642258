"""Watching a run from outside: a connection of its own, without a state directory."""

from __future__ import annotations

import trio

from gossamer.node.base.settings.links import Links
from gossamer.node.base.terminal.printable import printable
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.racing import RaceLost, race
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.network.transport import RACE_SECONDS, Transport, TransportError
from gossamer.node.peers.members.run_exchange import REQUEST_SECONDS as MANIFEST_SECONDS
from gossamer.node.peers.members.run_exchange import (
    JoinError,
    NotAdmittedError,
    UnreachableError,
    request_manifest,
)
from gossamer.node.peers.watching import REQUEST_SECONDS, Show, Tell, View, Watcher
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId


async def watch_run(links: Links, show: Show, every_seconds: float | None, tell: Tell) -> None:
    """Looks at a run under an identity of the moment, again and again until cancelled.

    Between two looks no connection is kept, so the run's peers do not count this machine.

    Args:
        every_seconds: time between two looks; None: one look.
        tell: is told what this waits for, and for how long at most.

    Raises:
        NotAdmittedError: the run lets in only its own members.
        JoinError: no peer can be reached, or none tells what it should.
    """
    async with open_libp2p_transport(Identity.generate(), (), typed=links.addresses) as transport:
        run_id = None if links.run_id is None else Digest(bytes.fromhex(links.run_id))
        tell(f"connecting; an answer may take {MANIFEST_SECONDS:.0f} s ...")
        try:
            signed = await request_manifest(transport, links.addresses, run_id)
        except NotAdmittedError:
            raise NotAdmittedError(
                "only members of this run may look at it. On the machine of a member "
                "`gossamer status` and `gossamer peers` show it, and `gossamer report` writes a "
                "page for others"
            ) from None
        except UnreachableError as error:
            raise JoinError(f"no peer of the run answers: {error.reasons}") from None
        manifest = open_signed_manifest(signed)
        name = printable(manifest.name)
        tell(f"connected to run {name}; its newest rounds may take {REQUEST_SECONDS:.0f} s ...")
        watcher = Watcher(transport, manifest)
        view: View | None = None
        while True:
            problem = ""
            try:
                view = await _look(watcher, transport, links.addresses)
            except JoinError as error:
                if every_seconds is None:
                    raise
                problem = str(error)
            show(manifest, view, problem)
            if every_seconds is None:
                return
            for peer in transport.peers():
                await transport.disconnect(peer)
            await trio.sleep(every_seconds)


async def _look(watcher: Watcher, transport: Transport, addresses: tuple[str, ...]) -> View:
    async def dial(address: str) -> PeerId:
        with trio.fail_after(REQUEST_SECONDS):
            return await transport.connect(address)

    try:
        _, peer = await race(dial, addresses, RACE_SECONDS, TransportError)
        return await watcher.look(peer)
    except RaceLost as lost:
        raise JoinError(f"no peer of the run answers: {lost}") from lost
    except trio.TooSlowError:
        raise JoinError(f"a peer of the run did not answer in {REQUEST_SECONDS:.0f} s") from None
    except (TransportError, RemoteProtocolError) as error:
        raise JoinError(f"a peer of the run does not tell what it should: {error}") from error
