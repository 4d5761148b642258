"""Everything that a rogue does over any transport, with what it is counted as."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gossamer.protocol.ids import PeerId
from tests.rogue import attacks_claims as claims
from tests.rogue import attacks_gossip as gossip
from tests.rogue import attacks_streams as streams
from tests.rogue.rogue import Rogue

Attack = Callable[[Rogue, list[PeerId]], Awaitable[None]]

ATTACKS: dict[Attack, str | None] = {
    streams.oversized_frames: "oversized",
    streams.nested_frames: "oversized",
    streams.random_frames: "oversized",
    streams.truncated_frames: None,
    streams.wrong_questions: "malformed",
    streams.streams_never_written: None,
    streams.streams_never_read: None,
    gossip.gossip_that_is_none: "malformed",
    gossip.forged_statements: "forged",
    gossip.wrong_values: "malformed",
    gossip.heads_without_votes: "forged",
    gossip.heads_of_invented_members: None,
    gossip.wrong_rosters: "malformed",
    gossip.replays: None,
    gossip.flood: None,
    gossip.lying_statement_store: "forged",
    gossip.wrong_weights: "implausible",
    gossip.two_contributions_under_one_number: "equivocation",
    gossip.false_proofs: "forged",
    claims.made_up_heads: "unproven",
    claims.made_up_chains: "malformed",
    claims.heads_that_lead_nowhere: None,
    claims.rings_of_one: None,
    claims.ring_that_comes_and_goes: None,
    claims.rings_without_end: None,
    claims.rings_one_after_the_other: None,
    claims.identities_that_list_each_other: None,
    claims.never_ready: None,
    claims.claims_to_all_data: None,
    claims.wrong_blocks: None,
    claims.stranger_in_the_ring: "malformed",
    claims.member_that_is_silent: None,
    claims.member_that_passes_nothing_on: None,
    claims.member_that_answers_nonsense: None,
    claims.member_that_accuses_everybody: None,
    claims.member_that_votes_nonsense: None,
    claims.member_that_sends_wrong_chunks: "malformed",
    claims.member_that_packs_wrong: "malformed",
}
"""Attack, and the reason that it is counted under; None where it is, or may be, no offence."""
