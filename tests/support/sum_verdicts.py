"""The audits of sums in a world: who makes which, and the verdicts that its nodes hold."""

from __future__ import annotations

from gossamer.protocol.ids import PeerId
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.policy.auditing.sum_audits import AuditSecrets, is_auditor
from gossamer.protocol.state.chain import Header, credits_of
from gossamer.protocol.wire.audit_messages import SumVerdict
from gossamer.protocol.wire.envelopes import decode_statement
from gossamer.protocol.wire.statements import Ready, Roster
from tests.support.node_world import World, headers_of


def verdicts_of(world: World, name: str) -> list[SumVerdict]:
    """The verdicts in a node's statement store."""
    store = world.participant(name).context.swarm.gossip.statement_store
    return [said for _, said in store.statements() if isinstance(said, SumVerdict)]


def secret_of(world: World, name: str, ready: Ready) -> bytes:
    """The secret of a node behind one of its `Ready`."""
    run_id = decode_manifest(world.signed.manifest).run_id
    return AuditSecrets(run_id, world.identity(name).sign).of(ready.incarnation, ready.sequence)


def secrets_after(world: World, names: str, header: Header) -> dict[str, bytes]:
    """The secrets of these nodes in a round, by name. The first one knows the round."""
    commit = world.participant(names[0]).context.committed.chain.commit(header.digest)
    roster = decode_statement(commit.roster.payload)
    assert isinstance(roster, Roster)
    said = {PeerId(each.author): decode_statement(each.payload) for each in roster.members}
    secrets = {}
    for name in names:
        ready = said.get(world.identity(name).peer_id)
        if isinstance(ready, Ready):
            secrets[name] = secret_of(world, name, ready)
    return secrets


def auditors_after(world: World, names: str, header: Header) -> list[str]:
    """Those of these nodes that look at a round."""
    credits = credits_of(header)
    return [
        name
        for name, secret in secrets_after(world, names, header).items()
        if world.identity(name).peer_id in credits
        and is_auditor(header.digest, secret, len(credits))
    ]


def num_audits_due(world: World, names: str) -> int:
    """Audits that these nodes owe, but for those of the newest round."""
    return sum(len(auditors_after(world, names, each)) for each in headers_of(world, names[0])[:-1])
