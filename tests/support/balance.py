"""Whether an account of work is true."""

from __future__ import annotations

from gossamer.protocol.accounting.work_account import WorkAccount


def committed_of(account: WorkAccount) -> int:
    """Returns the tokens that committed rounds took, in time or late."""
    return account.state.committed_on_time + account.state.committed_late


def is_balanced(account: WorkAccount) -> bool:
    """Returns whether every token that was trained has exactly one fate."""
    fates = committed_of(account) + account.dropped + account.state.lost + account.carried
    return account.state.trained == fates
