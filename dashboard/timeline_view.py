"""Draws a job's story as a list of its events.

The list is HTML for its looks. Whatever is stored passes `_text`, so it stays text.
"""

from collections.abc import Sequence
from datetime import datetime
from html import escape

from timeline import Line
from ui import COLOURS, span, viewer_zone, when

__all__ = ["EVENT_COLOURS", "STYLE", "facts", "story", "why"]

_GREY = "#808495"
_ORANGE = "#d97706"

EVENT_COLOURS = {
    **COLOURS,
    "enqueued": COLOURS["queued"],
    "claimed": COLOURS["running"],
    "lease_lost": _ORANGE,
    "retried": COLOURS["queued"],
    "cancel_requested": COLOURS["cancelled"],
}

#: Follows the theme: it only mixes and dims the colour of the text.
STYLE = """
<style>
.jq-facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr));
  gap: .7rem 1.2rem; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.jq-facts span { display: block; font-size: .78rem; opacity: .65; }
.jq-why { border-left: 4px solid var(--jq, #808495); padding: .15rem 0 .15rem .8rem;
  overflow-wrap: anywhere; }
.jq-story { font-size: .92rem; }
.jq-day { opacity: .65; font-size: .8rem; padding: .4rem 0 .2rem; }
.jq-event { display: grid; grid-template-columns: 6.4rem 1.5rem 1fr; column-gap: .5rem; }
.jq-time { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.jq-time small, .jq-who { display: block; font-size: .78rem; opacity: .65; }
.jq-sign { position: relative; text-align: center; font-weight: 700; color: var(--jq, inherit); }
.jq-sign::after { content: ""; position: absolute; left: 50%; top: 1.55rem; bottom: .1rem;
  border-left: 2px solid color-mix(in srgb, currentColor 30%, transparent); }
.jq-event:last-child .jq-sign::after { display: none; }
.jq-body { padding-bottom: .65rem; overflow-wrap: anywhere; min-width: 0; }
.jq-body b { font-weight: 600; }
.jq-quiet { opacity: .8; }
.jq-hand { display: inline-block; font-size: .78rem; opacity: 1; margin-top: .1rem;
  padding: 0 .5rem; border-radius: .6rem; border: 1px solid #9333ea;
  background: color-mix(in srgb, #9333ea 14%, transparent); }
</style>
"""


def facts(pairs: Sequence[tuple[str, str, str]]) -> str:
    """A grid of (name, value, small print), empty ones left out."""
    cells = [
        f"<div><span>{_text(name)}</span>{_text(value)}"
        + (f"<span>{_text(small)}</span>" if small else "")
        + "</div>"
        for name, value, small in pairs
        if value
    ]
    return f'<div class="jq-facts">{"".join(cells)}</div>'


def why(messages: Sequence[str], status: str) -> str:
    """Why the job is where it is, beside a bar in the colour of its status."""
    told = "".join(f"<div>{_text(message)}</div>" for message in messages)
    return f'<div class="jq-why" style="--jq: {COLOURS.get(status, _GREY)}">{told}</div>'


def story(lines: Sequence[Line]) -> str:
    """The events, one below the other."""
    zone, day, parts = viewer_zone(), "", []
    for line in lines:
        local = line.at.astimezone(zone)
        if (today := local.strftime("%A, %Y-%m-%d (%Z)")) != day:
            day = today
            parts.append(f'<div class="jq-day">{_text(day)}</div>')
        parts.append(_event(line, local))
    return f'<div class="jq-story">{"".join(parts)}</div>'


def _event(line: Line, local: datetime) -> str:
    time = local.strftime("%H:%M:%S.") + f"{local.microsecond // 1000:03d}"
    since = "" if line.since is None else f"+{span(line.since)}"
    quiet = line.event in ("progress", "log")
    title = (
        f'<span class="jq-quiet">{_text(line.title)}</span>'
        if quiet
        else (f"<b>{_text(line.title)}</b>")
    )
    said = "".join(f" · {_text(words)}" for words in line.said)
    who = "" if quiet else _text(line.who)
    who = (
        f'<span class="jq-who jq-hand">by {who}</span>'
        if line.by_hand
        else (f'<span class="jq-who">{who}</span>')
    )
    colour = EVENT_COLOURS.get(line.event, _GREY)
    return (
        f'<div class="jq-event"><div class="jq-time" title="{_text(when(line.at))}">{time}'
        f'<small>{_text(since)}</small></div><div class="jq-sign" style="--jq: {colour}">'
        f'{_text(line.sign)}</div><div class="jq-body">{title}{said}{who}</div></div>'
    )


def _text(stored: object) -> str:
    return escape(str(stored), quote=True)
