"""Setting the end of a run anew, from what lies in the founder's state directory."""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.node.heads.extensions import ExtensionFile
from gossamer.node.runs.governance.signed_orders import OrderError, SignersRun
from gossamer.node.runs.manifest_here import chain_here
from gossamer.node.storage.order_lock import alone_in
from gossamer.protocol import limits
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.manifest import TokenSchedule
from gossamer.protocol.state.run_end import RunEnd, check_extension
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.statements import Extension

ROUNDS_LEFT_MIN = 2
"""Rounds that a run has at least before its new end: one may be under way at other nodes, and one
committed there that this disk does not have yet."""


@dataclass(frozen=True)
class Outlook:
    """The end that an extension gives a run."""

    statement: Extension
    name: str
    tokens: int
    """Tokens in the chain on this disk."""


class FoundersSchedule:
    """The schedule of the run in a state directory, as its founder sees it."""

    def __init__(self, run: SignersRun) -> None:
        """
        Raises:
            OrderError: this node did not found the run, or its schedule does not count tokens, or
                the extension on the disk is damaged.
        """
        self._run, manifest, root = run, run.manifest, run.state_dir.root
        if run.identity.peer_id != manifest.founder:
            raise run.refuse("sets the end of the run", f"the founder ({manifest.founder})")
        end = RunEnd(manifest.model, manifest.inner, manifest.outer)
        if end.schedule is None:
            raise OrderError(
                f"the end of {manifest.name} is fixed: it counts planned "
                'steps, and has no schedule.kind = "wsd"'
            )
        self._file = ExtensionFile(root, manifest)
        try:
            found = self._file.read()
        except (OSError, RemoteProtocolError) as error:
            raise OrderError(
                f"the file extension in {root} is damaged ({error}): start the node, "
                "which gets it from its peers, or remove the file"
            ) from error
        if found is not None:
            end.extend(found[1])
        self._number = 0 if found is None else found[1].number
        self.schedule: TokenSchedule = end.schedule
        """The schedule as it is on this disk."""

    def plan(self, total_tokens: int | None, cooldown_tokens: int | None) -> Outlook:
        """Returns what an extension makes of the run.

        Args:
            total_tokens: tokens of all peers with which the run is to end; None: the cool-down
                begins now.
            cooldown_tokens: tokens of the cool-down; None: as many as until now.

        Raises:
            OrderError: the numbers are not allowed.
        """
        chain, head = chain_here(self._run.state_dir, self._run.manifest)
        entry = chain.entry(head)
        round_tokens = chain.header(head).tokens if entry.round else 0
        left = ROUNDS_LEFT_MIN * round_tokens
        cooldown = self.schedule.cooldown_tokens if cooldown_tokens is None else cooldown_tokens
        total = total_tokens
        if total is None:
            start = max(entry.tokens_total, self.schedule.warmup_tokens)
            total = start + max(cooldown, left)
        if not 0 <= cooldown <= total <= limits.TOKENS_TOTAL_MAX:
            raise OrderError(
                f"a cool-down of {cooldown:,} tokens in a run of {total:,} is not possible; "
                f"allowed: 0 to all tokens of the run, which are {limits.TOKENS_TOTAL_MAX:,} at "
                "most"
            )
        if total < max(entry.tokens_total + left, 1):
            raise OrderError(
                f"the run has {entry.tokens_total:,} tokens, and its rounds {round_tokens:,} each; "
                f"an end with {total:,} is too near. Name at least {entry.tokens_total + left:,}"
            )
        if self._number >= limits.EXTENSIONS_MAX:
            raise OrderError(
                f"the end of this run was set {self._number:,} times, which is the limit: found "
                "another run from its exported model"
            )
        statement = Extension(self._number + 1, total, cooldown)
        try:
            check_extension(statement, self._run.manifest)
        except RemoteProtocolError as error:
            raise OrderError(f"{error}: name more tokens, or a shorter cool-down") from error
        return Outlook(statement, self._run.manifest.name, entry.tokens_total)

    def extend(self, outlook: Outlook) -> None:
        """Leaves a signed extension for the node.

        Raises:
            OrderError: another command has set the end since this one read it. Of two statements
                with one number the larger totals hold, which may be those of the other command.
            DiskError, OSError: the state directory does not take it.
        """
        identity, run_id = self._run.identity, self._run.manifest.run_id
        signed = seal(outlook.statement, identity.peer_id, run_id, identity.sign)
        with alone_in(self._run.state_dir.root):
            if self._read_number() != self._number:
                raise OrderError(
                    "another order has set the end of the run meanwhile: look at it with gossamer "
                    "status, and give this one again"
                )
            self._file.write(signed)

    def _read_number(self) -> int:
        try:
            found = self._file.read()
        except (OSError, RemoteProtocolError):
            return -1
        return 0 if found is None else found[1].number
