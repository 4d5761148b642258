"""The values of the labels of a node's metrics.

They are fixed sets that exist from the start, so that the rate of something that has not happened
yet is 0 and not absent. Any other value is counted as `other`, so that no peer can make labels
grow.
"""

from __future__ import annotations

STEP_PARTS = ("data", "forward", "backward", "optimizer", "handover")
"""Fields of `StepTimes`."""
RESTART_REASONS = ("failed", "killed", "hung")
PEER_PATHS = ("direct", "crossed", "relayed")
DIAL_OUTCOMES = ("connected", "unreachable", "timeout", "wrong_peer")
PURPOSES = ("gossip", "ring", "blocks", "chain", "manifest", "peers")
COMMIT_TIMINGS = ("on_time", "late")
WORK_FATES = ("committed_on_time", "committed_late", "dropped", "lost", "carried")
DROP_REASONS = ("stale", "late", "out_of_range", "abandoned", "rolled_back", "excess")
ROUND_PHASES = ("training", "gathering", "averaging", "committing")
SKIP_REASONS = (
    "reset",
    "timeout",
    "slow",
    "silent",
    "stalled",
    "restarted",
    "follows",
    "malformed",
)
"""First words of the reasons of `Removed`."""
VERDICTS = ("good", "poor", "undecided")
"""What an audit of this node came to; `undecided`: it could not tell, and it said nothing."""
HANDSHAKE_OUTCOMES = ("unfinished", "turned_away")
BLOCK_STATES = ("stored", "pinned")
DISK_KINDS = ("blocks", "pinned", "other")
"""All blocks, which the quota limits; those of them that stay beyond it; and all other files of the
state directory."""
OFFENCE_REASONS = (
    "protocol",
    "malformed",
    "oversized",
    "forged",
    "version",
    "implausible",
    "flood",
    "unproven",
    "equivocation",
    "replaced",
    "claimed",
)
"""Values of `reason` of `RemoteProtocolError` and its subclasses."""
