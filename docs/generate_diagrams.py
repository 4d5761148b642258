"""Writes the page of the state machines from their tables in `protocol/rounds/states.py`.

    python docs/generate_diagrams.py FOLDER     # as a file, to read it without the site

`pages` is what the site's build calls (`hooks.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from gossamer.protocol.rounds.states import TABLES, Event, State, Table

TEXTS = {
    "round": "One round as one peer sees it, from its first `Ready` to the commit. While it "
    "follows a ring, the state of the attempt says how far that ring is.",
    "gathering": "Whether a peer may organise a ring on a head, or waits for a ring without it.",
    "attempt": "One ring that a peer follows.",
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
            diagram(table),
            _rows(table),
        ]
    return "\n\n".join(parts) + "\n"


def diagram(table: Table[State, Event]) -> str:
    """A Mermaid state diagram of a table. States of several words get an identifier."""
    states = dict.fromkeys([table.initial, *table.transitions.values()])
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{state}" as {_identifier(state)}' for state in states]
    lines.append(f"    [*] --> {_identifier(table.initial)}")
    for (state, event), following in table.transitions.items():
        lines.append(f"    {_identifier(state)} --> {_identifier(following)}: {event}")
    return "\n".join([*lines, "```"])


def _identifier(state: str) -> str:
    return state.replace(" ", "_")


def _rows(table: Table[State, Event]) -> str:
    rows = ["| state | event | next state |", "| --- | --- | --- |"]
    for (state, event), following in table.transitions.items():
        rows.append(f"| {state} | {event} | {following} |")
    return "\n".join(rows)


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
