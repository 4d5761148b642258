"""A static page about a run, which its founder can publish: curve, members, samples.

The page is one file without scripts, which loads nothing. All text in it is escaped. It names the
members by their peer ids, which every peer of the run knows, and by the names that they show, and
has no address.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple

from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.terminal.units import format_count
from gossamer.node.runs.results.credit import Credits
from gossamer.node.storage.owner_files import MemberName, RoundSamples
from gossamer.node.telemetry.status import LossPoint

MARK = '<meta name="generator" content="gossamer report">'
"""Part of each page that the command may write over."""

MEMBERS_MAX = 1000
"""Members on the page, those with the most tokens. `members.csv` has all."""

_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 34
_TICKS = 5
"""Lines of a scale, about."""

_STYLE = """
:root { --ground: #f4f6f7; --card: #fff; --line: #dfe4e8; --ink: #13191f; --soft: #56616d;
  --accent: #0b7568; --trace: #74808c; }
@media (prefers-color-scheme: dark) { :root { --ground: #0d1116; --card: #151b22; --line: #29323c;
  --ink: #e8edf2; --soft: #9aa7b4; --accent: #3fcab5; --trace: #8b97a3; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 900px; padding: 20px; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 16px 20px; margin: 0 0 16px; overflow-x: auto; }
h1 { font-size: 22px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 0 0 10px; } h3 { font-size: 14px; margin: 12px 0 6px; }
p { margin: 4px 0; } .soft, dt, footer { color: var(--soft); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px;
  margin: 0; } dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); }
.n { text-align: right; white-space: nowrap; }
td.id { font-family: ui-monospace, monospace; font-size: 13px; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 0 12px; }
pre b { color: var(--accent); }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--soft); }
.grid { stroke: var(--line); } .curve { fill: none; stroke-width: 2; stroke: var(--trace); }
.curve.heldout { stroke: var(--accent); } .key { font-weight: 600; }
"""


class Sample(NamedTuple):
    """A text that the model wrote."""

    prompt: str
    continuation: str


def page(
    credits: Credits,
    points: Sequence[LossPoint],
    samples: Sequence[Sample],
    unix_seconds: float,
    names: Mapping[str, MemberName] = MappingProxyType({}),
    kept: Sequence[RoundSamples] = (),
) -> str:
    """Returns the page.

    Args:
        points: the curve of losses, in nats a token, oldest first.
        unix_seconds: the time that the page names as its own.
        names: by peer id, as these peers chose them.
        kept: what the model wrote as the run went on, oldest round first.
    """
    manifest = credits.manifest
    name = _escaped(manifest.name)
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    when = datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    last = f" of {manifest.last_round:,}" if manifest.last_round is not None else ""
    facts = {
        "round": f"{credits.round:,}{last}",
        "tokens": format_count(credits.tokens_total),
        "members that gave tokens": f"{len(credits.rows):,}",
        "parameters": f"{manifest.model.num_parameters:,}",
        "held-out loss": _newest([(p.round, p.heldout_loss) for p in points], credits.round),
        "run": manifest.run_id.hex(),
        "founder": manifest.founder,
        "head": credits.head.hex(),
    }
    bits = [(point.round, point.heldout_bits_per_byte) for point in points]
    if any(each is not None for _, each in bits):
        facts["held-out bits per byte"] = _newest(bits, credits.round)
    parts = [
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{MARK}',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{name}: a Gossamer run</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
        f"<section><h1>{name}</h1>",
        f"<p class=soft>trained together by volunteers; {when}</p></section>",
        f"<section><h2>The run</h2><dl>{_facts(facts)}</dl></section>",
        f"<section><h2>Loss</h2>{_chart(points)}</section>",
        f"<section><h2>Members</h2>{_members(credits, names)}</section>",
    ]
    if samples or kept:
        texts = _texts((one.prompt, one.continuation) for one in samples)
        texts += "".join(
            f"<h3>After round {each.round:,}</h3>"
            + _texts((one.prompt, one.text) for one in each.samples)
            for each in reversed(kept)
        )
        parts.append(f"<section><h2>Samples of the model</h2>{texts}</section>")
    parts.append("<footer>Written by gossamer report.</footer>\n</body>\n</html>\n")
    return "\n".join(parts)


def _escaped(text: str) -> str:
    """Returns a text of others for the page, its lines kept, without letters that turn others."""
    return html.escape("\n".join(printable(line) for line in text.split("\n")))


def _texts(samples: Iterable[tuple[str, str]]) -> str:
    return "".join(
        f"<pre><b>{_escaped(prompt)}</b>{_escaped(text)}</pre>" for prompt, text in samples
    )


def _facts(facts: dict[str, str]) -> str:
    return "".join(
        f"<div><dt>{key}</dt><dd>{_escaped(value)}</dd></div>" for key, value in facts.items()
    )


def _newest(values: Iterable[tuple[int, float | None]], round_number: int) -> str:
    """Returns the newest value that is known, with its round if it is not that of the page."""
    known = [(number, value) for number, value in values if value is not None]
    if not known:
        return "not known"
    number, value = known[-1]
    return f"{value:.4f}" + ("" if number == round_number else f" (of round {number:,})")


def _members(credits: Credits, names: Mapping[str, MemberName]) -> str:
    if not credits.rows:
        return "<p class=soft>No round has been committed yet.</p>"
    rows = "".join(
        f"<tr><td class=n>{row.rank}</td>{_id_cell(row.peer_id, names.get(row.peer_id))}"
        f"<td class=n>{row.tokens:,}</td><td class=n>{row.share:.1%}</td>"
        f"<td class=n>{row.rounds:,}</td><td class=n>{row.last_round:,}</td></tr>"
        for row in credits.rows[:MEMBERS_MAX]
    )
    more = len(credits.rows) - MEMBERS_MAX
    rest = f"<p class=soft>{more:,} more are in members.csv.</p>" if more > 0 else ""
    head = "".join(
        f"<th class={'id' if title == 'peer' else 'n'}>{title}</th>"
        for title in ("rank", "peer", "tokens", "share", "rounds", "last round")
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{rest}"


def _id_cell(peer_id: str, member: MemberName | None) -> str:
    name = f"<b>{_escaped(member.name)}</b> " if member and member.name else ""
    team = f"({_escaped(member.team)}) " if member and member.team else ""
    return f"<td class=id>{name}{team}{_escaped(peer_id)}</td>"


def _chart(points: Sequence[LossPoint]) -> str:
    """Returns the curves of training and held-out loss with their scales, as SVG."""
    curves = {
        "training": [(point.round, point.loss) for point in points],
        "held-out": [(point.round, point.heldout_loss) for point in points],
    }
    shown = {
        name: [(number, loss) for number, loss in curve if loss is not None and math.isfinite(loss)]
        for name, curve in curves.items()
    }
    all_points = [point for curve in shown.values() for point in curve]
    if len(all_points) < 2:
        return "<p class=soft>There is no curve yet: the node draws it while it takes part.</p>"
    rounds, losses = zip(*all_points, strict=True)
    across = ticks(min(rounds), max(rounds))
    up = ticks(min(losses), max(losses))

    def x(number: float) -> float:
        return _scaled(number, across, _LEFT, _WIDTH - _RIGHT)

    def y(loss: float) -> float:
        return _scaled(loss, up, _HEIGHT - _BOTTOM, _TOP)

    parts = [
        f'<line class=grid x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(at):.1f}" y2="{y(at):.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{y(at) + 4:.1f}" text-anchor="end">{at:g}</text>'
        for at in up
    ]
    parts += [
        f'<text x="{x(at):.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{at:,.0f}</text>'
        for at in across
    ]
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 1}">round</text>')
    for name, curve in shown.items():
        kind = " heldout" if name == "held-out" else ""
        line = " ".join(f"{x(number):.1f},{y(loss):.1f}" for number, loss in curve)
        parts.append(
            f'<polyline class="curve{kind}" points="{line}"><title>{name} loss</title></polyline>'
        )
    label = "Loss in nats a token by round: training in grey, held-out in green"
    return (
        f'<p class=soft>{label}.</p><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )


def _scaled(value: float, marks: Sequence[float], start: float, end: float) -> float:
    return start + (value - marks[0]) / (marks[-1] - marks[0]) * (end - start)


def ticks(least: float, most: float) -> list[float]:
    """Returns round numbers, evenly spaced, from one at or below `least` to one at or above
    `most`; there are two at least."""
    span = max(most - least, abs(most) * 1e-6, 1e-6)
    raw = span / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * min(factor for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]
