"""Whether an account of work is true."""

from __future__ import annotations

from gossamer.protocol.accounting.work_account import WorkAccount


def is_balanced(account: WorkAccount) -> bool:
    """Returns whether every token that was trained has exactly one fate."""
    fates = account.committed + account.dropped + account.state.lost + account.carried
    return account.state.trained == fates
