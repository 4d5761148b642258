"""Audits: whose work is looked at after a round, by whom, on which data, and what follows from it.

A robust average bounds what poor work does to a model, and does not say whose work is poor. So now
and then a member's work is measured: three auditors compute the loss of the state before the round
with the member's update and without it, on sequences of the data that the member says it trained on
(Gauntlet, arXiv 2505.21684, scores updates so). Honest work lowers that loss. The work
of nobody does not, and neither does its opposite.

Rules
-----
- The head of a round, which nobody knows before the work of the round is signed, says whether there
  is an audit, of which member, and by whom. So a member cannot work well for its audit alone. There
  is one in `rounds_between` rounds, on average, so that auditing costs an auditor at most
  `COST_SHARE` of its computing.
- Each member of which this round took tokens may be the one, if one of the `MISSED_MAX` + 1 rounds
  before did as well. Otherwise taking part in every other round would be enough not to be audited.
- The auditors are other members of which the round took tokens, and that had stake at the head
  before: a new identity audits nobody. No two of the four belong to one branch of an invite-only
  run. If there are too few for that, there is no audit.
- Where a member names too little data for the tokens that it says it trained, or data that the
  auditor cannot get, its work is measured on held-out text, which everybody has. Otherwise it would
  choose not to be audited. Honest members name too little when a round took their data and left a
  part of their work, and when their work was in too few chunks for long; and keepers may be away or
  slow. Their work lowers the loss of held-out text as well.
- Where the round's own average does not clearly lower the loss of the same sequences, nothing can
  be told on them: held-out text decides. Otherwise a member would name data in which there is
  nothing to learn. Where the average does not help there either, the auditor says nothing.
- Work whose gain is not clearly below half of the average's is good, or below as much less as the
  member trained on less than others. On held-out text a tenth is enough.
- With overlap a member trains from other parameters than the state before the round: from those
  with its own work of the round before in place of that round's average. It also undoes what was
  wrong with its own work, which is not in the state. So work that falls short is measured there as
  well, and is good if it helps enough there. Where an auditor cannot rebuild that point, it says
  nothing of such work.
- A member that missed rounds may carry the work of all of them, which was done from older states
  and need not lower the loss of this one. So work that falls short is measured from the state after
  the last round that took tokens of the member as well, and is good if it helps enough there.
  Of a member that missed two rounds a tenth of the average's gain is enough.
- It helps enough there if it gains, as a whole, a quarter of what is asked of a part of it before
  the round. Random work helps a little by chance, and all sequences may agree that it does.
- The sequences follow from the head and the auditor (`accounting.excerpts`), so anybody can measure
  again what an auditor says that it measured.
- One verdict of each auditor on a head counts. An auditor that signs two different ones has no
  verdict on it.
- Two of three against a member are a *finding*. The others' word is the measure of an auditor:
  where both disagree with it, it is *contradicted*. The verdicts of an auditor that was
  contradicted `CONTRADICTIONS_MAX` times within `MEMORY_ROUNDS` do not count for as long.

So a lone lying auditor neither finds a member nor keeps one from being found, and soon says nothing
that counts. Two of three that lie together find whom they want. A finding is for people: it costs
nobody anything, and no verdict is a weight in an average: as weights verdicts did more harm than
the work that they were about. What a peer has measured itself has a consequence (`poor_work`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.members.branch_caps import BranchOf
from gossamer.protocol.sync_modes import SYNC_MODES
from gossamer.protocol.wire.audit_messages import SEQUENCES
from gossamer.protocol.wire.statements import Span

AUDITORS = 3

SEQUENCES_MIN = 4
"""With fewer sequences of declared data the held-out ones decide, and with fewer of these there is
no verdict."""

NAMED_SHARE = 0.5
"""Part of its tokens for which a member names data at the least, or held-out text decides. Work on
four sequences would pass for that on thousands otherwise: it lowers their loss more than the
average does. A member that trained for one round again (`plausible_work.REPEATS`) names half."""

SCALE = 0.25
"""Part of a member's update that is applied to the state before the round. An update is one of
several that are averaged. As a whole, and alone, it may lead too far. A quarter shows the
direction (tests/benchmarks/audits.py)."""

CONTROL_MARGIN = 1.5
"""Standard errors by which the mean gain of the round's average is above 0 where anything can be
told. Near 0 it is chance on which side of a margin 16 sequences see honest work."""

SHARE = 0.5
"""Part of the average's gain that the gain of good work is not below. Honest work gains about as
much as the average, and rather more, because it was trained on these very sequences. No work gains
nothing. Of a member that did less than the lower median member it is as much smaller."""

HELDOUT_SHARE = 0.1
"""The same part where held-out text decides, which good work was not trained on. Where each member
has its own kind of text, half would blame one honest work in ten, and a tenth one in forty. No work
falls short of either."""

CARRIED_SHARE = 0.1
"""The same part of a member that missed more than one round: much of its work may be of older
states. With a half one honest work in twenty was blamed."""

SHORT_MARGIN = 1.5
"""Standard errors by which the mean gain of poor work is below that part. The differences are taken
sequence by sequence, so that what makes sequences differ does not count. It is no more than
`CONTROL_MARGIN`, so that no work is poor wherever anything can be told."""

START_MARGIN = 1.0
"""Standard errors by which the mean gain of good work is above 0 where its training began."""

START_SHARE = 0.25
"""Part of `share_of` times the average's gain that the whole of good work gains at the least where
its training began. Where all sequences agree there is no error, and noise that helps by chance is
above any margin. Of honest work the least clear gain there was 2.2 times as much, of a slow member,
of which nodes ask less, and else 3.7 times (tests/benchmarks/audits_start.py). Twice this part
finds more noise, and leaves half of that room."""

COST_SHARE = 0.03
"""Part of the computing of a round that an audit may cost, on average over the rounds."""

_COST_SEQUENCES = 5 * SEQUENCES / 3
"""An audit in sequences of training: two forward passes of 32 sequences and one of 16, and a
forward pass is a third of a step. Work that falls short takes two or four more of 16; a node
that spent more than `COST_SHARE` waits before its next audit."""

MEMORY_ROUNDS = 64
"""Rounds for which verdicts are kept and contradictions count: with rounds of a minute an hour."""

CONTRADICTIONS_MAX = 2
"""An auditor may be wrong once: work may be so near the margin that sequences decide."""

PEERS_MAX = 1024
"""Auditors that are remembered; identities are free, and a forgotten one has a clean sheet."""

MISSED_MAX = 2
"""Rounds that an audited member may have missed just before. An auditor needs the records of all of
them, and honest work that missed three was blamed too often (decision 145)."""

_WHETHER, _MEMBER, _AUDITOR = b"audit", b"audited", b"auditor"


class Audit(NamedTuple):
    """One audit, as every peer computes it."""

    head: Digest
    """The head after the round."""
    round: int
    member: PeerId
    auditors: tuple[PeerId, ...]
    missed: int = 0
    """Rounds just before of which none took tokens of the member."""


def has_audits(manifest: Manifest) -> bool:
    """Returns whether members are audited: each one's work can be told apart, and others have the
    data that it names. A round of shared steps has no update of one member: a member whose signs
    oppose those of most others has no part in a step (`state.sign_agreement`)."""
    if SYNC_MODES[manifest.sync].shares_steps:
        return False
    return manifest.trust == "open" and not manifest.data.own


def rounds_between(manifest: Manifest) -> int:
    """Rounds of which one has an audit, on average; 1 or more."""
    steps = max(1, manifest.outer.round_steps_max)
    share = COST_SHARE * steps * manifest.inner.sequences_per_step
    return max(1, math.ceil(_COST_SEQUENCES / share))


def audit_after(
    head: Digest,
    round_number: int,
    credits: Mapping[PeerId, int],
    credited_before: Sequence[Collection[PeerId]],
    stakes_before: Collection[PeerId],
    every: int,
    branch_of: BranchOf | None = None,
) -> Audit | None:
    """The audit that a head asks for; None if it asks for none.

    Args:
        credits: members of the round, each with the tokens that it took of their work.
        credited_before: members of which each of the rounds before took tokens, the newest first,
            as many rounds as there are and at most `MISSED_MAX` + 1.
        stakes_before: peers with stake at the head before the round.
        every: see `rounds_between`.
        branch_of: of each member of an invite-only run; None in other runs.
    """
    if int.from_bytes(digest_of(_WHETHER, head)[:8], "big") % every:
        return None
    credited = [peer for peer, tokens in credits.items() if tokens]
    missed = {
        peer: number
        for number, peers in reversed([*enumerate(credited_before)])
        for peer in credited
        if peer in peers
    }
    if not missed:
        return None
    member = min(missed, key=lambda peer: digest_of(_MEMBER, head, peer.encode()))
    branches = {member} if branch_of is None else {branch_of(member)}
    auditors: list[PeerId] = []
    able = [peer for peer in credited if peer != member and peer in stakes_before]
    for peer in sorted(able, key=lambda peer: digest_of(_AUDITOR, head, peer.encode())):
        branch = peer if branch_of is None else branch_of(peer)
        if branch not in branches and len(auditors) < AUDITORS:
            branches.add(branch)
            auditors.append(peer)
    if len(auditors) < AUDITORS:
        return None
    return Audit(head, round_number, member, tuple(auditors), missed[member])


# The measure


class Gain(NamedTuple):
    """How much an update lowers the loss of some sequences, in nats a token."""

    mean: float
    standard_error: float

    def is_above(self, margin: float) -> bool:
        """Returns whether the mean is more than so many standard errors above 0."""
        return self.mean > margin * self.standard_error  # NaN is not


def gain_of(before: Sequence[float], after: Sequence[float]) -> Gain:
    """The gain of an update: losses before it less losses after it, sequence by sequence.

    Losses that are not finite are a gain of minus infinity, none at all are a gain of 0.
    """
    gains = [b - a for b, a in zip(before, after, strict=True)]
    if not all(map(math.isfinite, gains)):
        return Gain(-math.inf, 0.0)
    if len(gains) < SEQUENCES_MIN:
        return Gain(math.fsum(gains) / max(1, len(gains)), 0.0)
    return Gain(statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(len(gains)))


def can_judge(control: Gain) -> bool:
    """Returns whether an audit can tell anything.

    Args:
        control: of the round's average, applied like the update, on the same sequences. Where it
            does not lower the loss, honest work need not either.
    """
    return control.is_above(CONTROL_MARGIN)


def names_its_data(tokens: int, spans: Sequence[Span], length: int) -> bool:
    """Returns whether work is measured on the data that its member names.

    Args:
        tokens: that the member says it trained.
        spans: of its `Ready`. Pieces without a whole sequence count for nothing: nothing can be
            measured on them.
        length: tokens of a sequence: the context and one.
    """
    sequences = sum((span.stop - span.start) // length for span in spans)
    return sequences * length >= NAMED_SHARE * tokens


def share_of(
    tokens: Sequence[int], position: int, *, is_heldout: bool = False, missed: int = 0
) -> float:
    """The part of the average's gain that the gain of a member's good work is not below.

    Args:
        tokens: that the round took of each member.
        position: of the member.
        is_heldout: whether held-out text decides.
        missed: rounds that the member missed just before.
    """
    share = HELDOUT_SHARE if is_heldout else CARRIED_SHARE if missed > 1 else SHARE
    return share * min(1.0, tokens[position] / max(1, statistics.median_low(tokens)))


def falls_short(
    before: Sequence[float],
    control: Sequence[float],
    after: Sequence[float],
    share: float = SHARE,
) -> bool:
    """Returns whether an update helps clearly less than the round's average.

    Args:
        before: losses of the sequences before the round.
        control: those with a part of the average, which are finite.
        after: those with the same part of the update.
        share: see `share_of`.
    """
    if not all(map(math.isfinite, after)):
        return True
    wanted = [b - share * (b - c) for b, c in zip(before, control, strict=True)]
    missing = gain_of(after, wanted)
    return missing.mean >= SHORT_MARGIN * missing.standard_error


def least_from_start(control: Gain, share: float) -> float:
    """The mean gain, in nats a token, that good work has at the least where its training began.

    It is 0, so that any clear gain is enough, where the average has none, or one that is not
    finite: nothing is known of what honest work gains there.

    Args:
        control: of the round's average, as in `can_judge`, on the same sequences.
        share: see `share_of`.
    """
    least = START_SHARE * share * control.mean
    return least if 0.0 < least < math.inf else 0.0  # NaN is neither


def helps_from_start(before: Sequence[float], after: Sequence[float], least: float = 0.0) -> bool:
    """Returns whether a whole update lowers the loss enough from where its training began.

    Args:
        before: losses of the declared sequences with the parameters where it began.
        after: those with the parameters where it ended.
        least: see `least_from_start`.
    """
    gain = gain_of(before, after)
    return gain.is_above(START_MARGIN) and gain.mean >= least
