"""Bounds on the work that a peer can honestly claim under the run's manifest.

Rules
-----
- In one round a peer trains at most the manifest's inner steps. It may carry work of at most
  `Manifest.stale_rounds` rounds before. So its tokens have a bound, and a `Ready`, a roster or a
  header with more is an offence. Twice the bound is allowed: a peer that was paused, or changed
  heads, may have trained for the same round again. An honest peer drops what it carries above that
  (`AccountState.drop_excess`): its changes of heads have no bound.
- The data that a peer says it consumed is in proportion: the targets of its sequences, the tokens
  between them, and tails of shards. Where each peer trains on data of its own, it names none.
- A round counts the data of members that are in at least half of its chunks. A member that never is
  would name more data with each round, up to an offence. So an honest peer names no more than
  `accounting.partitions.named_tokens_max`, and returns them to the pool.
- A partition has at least one shard. So the data are of no partition whose number is that of the
  run's shards or above. Where data are added to the run this peer may not know how many there are.
- A run that ends has no round after its last one (`Manifest.last_round`). Otherwise a member could
  go on alone, and all nodes that serve the final state would follow it.

Without these bounds one member could claim so many tokens that the others' work weighs nothing, and
that no later header's total is within `limits.TOKENS_TOTAL_MAX`. It could also consume, in one
message, all data that the ledger can ever count. Within the bounds a member can still lie. That is
why a run may choose its members.
"""

from __future__ import annotations

from collections.abc import Iterable

from gossamer.protocol import limits
from gossamer.protocol.errors import ImplausibleError, MalformedError
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.auditing.sum_audits import has_roots, has_sum_audits
from gossamer.protocol.state.chain import Header
from gossamer.protocol.wire.envelopes import open_signed
from gossamer.protocol.wire.statements import Ready, Roster, Span, Statement

REPEATS = 2
"""Times that a peer may have trained for one round, on average; see above."""


class WorkBounds:
    """The bounds of one run."""

    def __init__(self, manifest: Manifest) -> None:
        inner, outer, context = manifest.inner, manifest.outer, manifest.model.context
        round_tokens = outer.round_steps_max * inner.sequences_per_step * context
        # This round, the carried rounds, and the round in which these go stale.
        self.tokens_max = REPEATS * round_tokens * (manifest.stale_rounds + 2)
        """Most tokens of one peer in one round."""
        self._has_roots = has_roots(manifest)
        self._has_commitments = has_sum_audits(manifest)
        self._last_round = manifest.last_round
        self.span_tokens_max = (
            0 if manifest.data.own else 2 * self.tokens_max + limits.SPANS_MAX * (context + 1)
        )
        """Most tokens of data that one peer consumes in one round: a sequence has one token more
        than it has targets."""
        self._num_shards = None if manifest.data.grows else manifest.data.num_shards
        """None: any number."""

    def check_statement(self, statement: Statement, run_id: Digest) -> None:
        """Raises ImplausibleError for a `Ready`, alone or in a roster, that cannot be true, or for
        one of a round after the run's last one; MalformedError for one with or without a root or a
        commitment against the manifest."""
        if isinstance(statement, Ready):
            self._check_ready(statement)
        elif isinstance(statement, Roster):
            self._check_round(statement.round)
            for member in statement.members:
                # The signatures are checked where the roster is opened for good.
                ready = open_signed(member, run_id, lambda *_: True)
                if isinstance(ready, Ready):
                    self._check_ready(ready)

    def check_header(self, header: Header) -> None:
        """Raises ImplausibleError for a header that takes more than its members can have done,
        or of a round after the run's last one."""
        self._check_round(header.round)
        for member in header.members:
            self._check(member.tokens, ())
        consumed = sum(span.stop - span.start for span in header.spans)
        if consumed > len(header.members) * self.span_tokens_max:
            raise ImplausibleError(f"header that consumes {consumed} tokens of data")

    def _check_ready(self, ready: Ready) -> None:
        if bool(ready.root) != self._has_roots:
            what = "with" if ready.root else "without"
            raise MalformedError(f"a Ready {what} a root over its author's work")
        if bool(ready.commitment) != self._has_commitments:
            what = "with" if ready.commitment else "without"
            raise MalformedError(f"a Ready {what} a commitment to a secret")
        self._check_round(ready.round)
        self._check(ready.tokens, ready.spans)
        if self._num_shards is not None:
            last = max((span.partition for span in ready.spans), default=-1)
            if last >= self._num_shards:
                raise ImplausibleError(f"work on partition {last} of {self._num_shards} shards")

    def _check_round(self, number: int) -> None:
        if self._last_round is not None and number > self._last_round:
            raise ImplausibleError(f"round {number} of a run that ends with {self._last_round}")

    def _check(self, tokens: int, spans: Iterable[Span]) -> None:
        if tokens > self.tokens_max:
            raise ImplausibleError(f"{tokens} tokens of work; at most {self.tokens_max}")
        consumed = sum(span.stop - span.start for span in spans)
        if consumed > self.span_tokens_max:
            raise ImplausibleError(f"work on {consumed} tokens; at most {self.span_tokens_max}")
