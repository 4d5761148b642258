"""A run that grows by invitation, with real daemons and the commands of people."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.network.identity import Identity
from tests.support.daemons import (
    MANIFEST,
    PATIENCE_SECONDS,
    get,
    gossamer,
    in_rounds_of,
    poll,
    said,
)

pytestmark = pytest.mark.e2e


@pytest.mark.long
def test_invited_nodes_come_in_while_the_founder_is_away_and_go_when_revoked(
    swarm: LocalSwarm, tmp_path: Path, corpus: Path
) -> None:
    manifest = tmp_path / "invite.toml"
    manifest.write_text(MANIFEST.replace("[tokenizer]", 'admission = "invite"\n[tokenizer]', 1))
    founder = swarm.found("--manifest", str(manifest), "--corpus", str(corpus))
    founder.wait_for(in_rounds_of(1), PATIENCE_SECONDS, "round alone")

    def invitation() -> str:
        answer = gossamer("invite", "--state-dir", founder.root, "--expires", "1h")
        assert answer.status == 0, answer
        assert len(answer.out.split()) == 1
        return answer.out.strip()

    folder = tmp_path / "stranger"
    options = ("--listen", "/ip4/127.0.0.1/tcp/0", "--api", "127.0.0.1:0")
    refused = gossamer("join", founder.address(), "--state-dir", folder, *options)
    assert refused.status == 2, refused
    assert "gossamer invite" in refused.err
    assert not (folder / "manifest.msgpack").exists()

    second = swarm.join(invitation())
    second.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
    for_third = invitation()  # names the second node's address, too
    assert founder.leave() == 0, founder.tail()

    third = swarm.join(for_third)
    third.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two without the founder")
    ids = [Identity.load_or_create(node.root / "identity.key").peer_id for node in swarm.nodes]

    def listed() -> str:
        return gossamer("members", "--state-dir", second.root).out

    poll(lambda: all(each in listed() for each in ids), "list of all members")
    assert listed().count("root of the run") == 1

    used = gossamer("join", for_third, "--state-dir", folder, *options)
    assert used.status == 2, used
    assert "used up" in used.err

    founder.start("start")
    for node in swarm.nodes:
        node.wait_for(in_rounds_of(3), PATIENCE_SECONDS, "round of three")
    revoked = gossamer("revoke", ids[2][-8:], "--yes", "--state-dir", founder.root)
    assert revoked.status == 0, revoked
    assert ids[2] in revoked.out
    for node in (founder, second):
        node.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round without the revoked node")
    poll(lambda: said(third, "does not take this node for one"), "word to the revoked node")
    third.wait_for(
        lambda status: "Its work counts nowhere" in (status.problem or ""),
        PATIENCE_SECONDS,
        "problem of the revoked node",
    )
    code, text = get(third, "/readyz")
    assert code == 503
    assert "do not take this node for one" in text
