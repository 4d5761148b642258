"""Writes the page of the state machines from their tables in `protocol/rounds/states.py`.

    python docs/generate_diagrams.py FOLDER     # as a file, to read it without the site

`pages` is what the site's build calls (`hooks.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from gossamer.protocol.rounds.states import TABLES

Row: TypeAlias = tuple[str, str, str]
"""State, event and following state of one transition."""

TEXTS = {
    "round": "One round as one peer sees it, from its first `Ready` to the commit. While it "
    "follows a ring, the state of that ring says how far it is.",
    "gathering": "Whether a peer may organise a ring on a head, or waits for a ring without it.",
    "followed ring": "One ring that a peer follows.",
    "chunk": "The partial sum of one chunk at one member. The average of the chunk may arrive in "
    "any of these states.",
    "commit": "The agreement of the members on the header of a round.",
}
"""What each machine is, by the name of its table."""


def pages() -> dict[str, str]:
    """Path in the site to the Markdown of each generated page."""
    return {"reference/machines.md": machines_page()}


def machines_page() -> str:
    """Every table as a diagram, and as a list for readers without a network."""
    parts = [
        "# State machines",
        "Each machine of `protocol/rounds/` changes its state only along its table in "
        "`protocol/rounds/states.py`. An event that is not listed for a state is a programming "
        "error: it raises `LocalProtocolError` and leaves the state as it was.",
    ]
    for table in TABLES:
        parts += [
            f"## {table.name.capitalize()}",
            TEXTS[table.name],
            diagram(table.initial, table.rows()),
            _list(table.rows()),
        ]
    return "\n\n".join(parts) + "\n"


def diagram(initial: str, rows: Sequence[Row]) -> str:
    """A Mermaid state diagram of a table. States of several words get an identifier."""
    states = dict.fromkeys([initial, *(following for _, _, following in rows)])
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{state}" as {_identifier(state)}' for state in states]
    lines.append(f"    [*] --> {_identifier(initial)}")
    for state, event, following in rows:
        lines.append(f"    {_identifier(state)} --> {_identifier(following)}: {event}")
    return "\n".join([*lines, "```"])


def _identifier(state: str) -> str:
    return state.replace(" ", "_")


def _list(rows: Sequence[Row]) -> str:
    head = ["| state | event | next state |", "| --- | --- | --- |"]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)])


def main() -> int:
    """Writes the pages into the folder that the command line names."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for name, text in pages().items():
        path = Path(sys.argv[1]) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
