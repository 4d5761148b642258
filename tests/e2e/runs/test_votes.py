"""Members of a run by invitation put a branch out by votes, with real daemons and the commands of
people."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.network.identity import Identity
from gossamer.node.runs.governance.voting import FIRST_ROUND
from tests.support.daemons import (
    MANIFEST,
    PATIENCE_SECONDS,
    gossamer,
    in_rounds_of,
    poll,
    said,
    wait_for_round,
)

pytestmark = pytest.mark.e2e

SHORT_ROUNDS = (
    MANIFEST.replace("[tokenizer]", 'admission = "invite"\n[tokenizer]', 1)
    .replace("inner_steps = 40", "inner_steps = 4")
    .replace("warmup_inner_steps = 20", "warmup_inner_steps = 2")
)
"""Votes count from round 32 on."""


def id_of(node: LocalNode) -> str:
    return Identity.load(node.root / "identity.key").peer_id


def invitation_of(node: LocalNode) -> str:
    answer = gossamer("invite", "--state-dir", node.root, "--expires", "1h")
    assert answer.status == 0, answer
    return answer.out.strip()


def listed_by(node: LocalNode) -> dict[str, str]:
    """The lines of `gossamer members`, by the peer id with which they begin."""
    answer = gossamer("members", "--state-dir", node.root)
    assert answer.status == 0, answer
    lines = [line.strip(" │┃|") for line in answer.out.splitlines()]
    return {line.split()[0]: line for line in lines if line and not line.startswith("To put out")}


def votes_listed_by(node: LocalNode) -> str:
    out = gossamer("members", "--state-dir", node.root).out
    return "".join(line for line in out.splitlines() if line.startswith("To put out"))


def are_voted_out(node: LocalNode, *peers: str) -> bool:
    lines = listed_by(node)
    return all("out by vote" in lines.get(peer, "") for peer in peers)


@pytest.mark.long
def test_two_of_three_branches_put_the_third_one_out_and_newcomers_count_the_votes(
    swarm: LocalSwarm, tmp_path: Path, corpus: Path
) -> None:
    """The founder lets in three members, and trains in no round. The third member lets in one of
    its own. The other two may not revoke it, so they vote."""
    manifest = tmp_path / "invite.toml"
    manifest.write_text(SHORT_ROUNDS)
    founder = swarm.found(
        "--manifest", str(manifest), "--corpus", str(corpus), "--wait-for-peers", "9"
    )
    founder.address()
    paused = gossamer("pause", "--state-dir", founder.root)
    assert paused.status == 0, paused
    links = [invitation_of(founder) for _ in range(3)]
    second, third, hostile = (swarm.join(link, "--wait-for-peers", "2") for link in links)
    for node in (second, third, hostile):
        node.wait_for(in_rounds_of(3), PATIENCE_SECONDS, "round of three")

    below = swarm.join(invitation_of(hostile))
    below.address()
    out = id_of(hostile), id_of(below)
    poll(lambda: out[1] in listed_by(second), "entry of the member below")
    assert below.leave() == 0, below.tail()

    early = gossamer("revoke", out[0][-8:], "--state-dir", second.root)
    assert early.status == 0, early
    assert "votes that it goes" in early.out
    wait_for_round(third, FIRST_ROUND)
    poll(lambda: "1 of 2 needed" in votes_listed_by(third), "first vote in the list of another")
    assert f"...{id_of(second)[-12:]}" in votes_listed_by(third)
    assert not said(third, "have put a peer out by a vote")
    agreed = gossamer("revoke", out[0], "--state-dir", third.root)
    assert agreed.status == 0, agreed
    for node in (second, third):
        poll(lambda node=node: are_voted_out(node, *out), "word that both are out")  # type: ignore[misc]
        node.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round without those that are out")

    newcomer = swarm.join(invitation_of(second))
    below.start("start")
    for node in (second, third, newcomer):
        node.wait_for(in_rounds_of(3), PATIENCE_SECONDS, "round with the newcomer")
    poll(lambda: are_voted_out(newcomer, *out), "count of the votes by the newcomer")
    assert said(newcomer, "have put a peer out by a vote")
    for node in (hostile, below):
        poll(lambda node=node: said(node, "does not take this node for one"), "word of it")  # type: ignore[misc]
    # They may be connected as strangers are, who are served nothing but the way in.
    newest = newcomer.status()
    assert newest is not None
    for node in (second, third, newcomer):
        status = wait_for_round(node, newest.round + 3)
        assert status.last_round is not None
        assert not set(out) & set(status.last_round.contributors)
        assert votes_listed_by(node) == ""
