"""Text of others, made safe for a terminal and for a line of the log."""

from __future__ import annotations


def printable(text: str) -> str:
    """Returns the text on one line, with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def printable_json(text: str) -> str:
    """Returns a JSON text whose strings hold no character that moves a cursor or turns the order of
    others around: each is written as its escape, so the value stays the same.

    Encoders escape the first 32 control characters alone. Those of ISO 6429 beyond them, and those
    that turn the direction of text, would reach the terminal as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else _escape_of(character)
        for character in text
    )


def _escape_of(character: str) -> str:
    """Returns the escape of JSON for a character."""
    import json  # here: few texts have such a character

    return json.dumps(character)[1:-1]
