"""The trajectory as a picture: time after every step, kept ones joined, the ones taken back beside. Plain SVG, no library."""

from __future__ import annotations

from html import escape

from npu_tools.deployment.ledger import Entry
from npu_tools.deployment.state import State

WIDTH, PANEL, LEFT, RIGHT, TOP = 860, 260, 90, 30, 46
KEPT, TAKEN_BACK, AXIS = "#228833", "#cc3311", "#444444"


def trajectory_svg(state: State) -> str:
    """One panel a phase (4 prefill, 5 decode), steps from left to right, milliseconds upwards from zero."""
    panels = [(number, [entry for entry in state.steps if entry.phase == number]) for number in (4, 5)]
    panels = [(number, entries) for number, entries in panels if entries]
    height = TOP + PANEL * len(panels)
    title = f"{state.head.get('model', 'model')}: optimisation steps, {_timings(state)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{WIDTH // 2}" y="24" text-anchor="middle" font-size="15">{escape(title)}</text>',
    ]
    for row, (number, entries) in enumerate(panels):
        parts += _panel("prefill" if number == 4 else "decode, one token", entries, TOP + row * PANEL)
    return "\n".join([*parts, "</svg>\n"])


def _panel(name: str, entries: list[Entry], top: int) -> list[str]:
    first = float(entries[0].body["before_us"])
    most = max([first, *(float(e.body["after_us"]) for e in entries if e.body.get("after_us"))]) or 1.0
    bottom, usable = top + PANEL - 64, PANEL - 100
    places = len(entries) + 1

    def x(at: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (at + 0.5) / places

    def y(us: float) -> float:
        return bottom - usable * us / most

    parts = [
        f'<text x="{LEFT - 70}" y="{top + 12}" fill="{AXIS}">{escape(name)} (ms)</text>',
        f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}" stroke="{AXIS}"/>',
        f'<line x1="{LEFT}" y1="{top + 24}" x2="{LEFT}" y2="{bottom}" stroke="{AXIS}"/>',
        f'<text x="{LEFT - 8}" y="{bottom + 4}" text-anchor="end">0</text>',
        f'<text x="{LEFT - 8}" y="{y(most) + 4:.1f}" text-anchor="end">{most / 1e3:.3g}</text>',
        *_point(x(0), y(first), first, "baseline", KEPT, bottom),
    ]
    now, last = first, (x(0), y(first))
    for at, entry in enumerate(entries, 1):
        body, kept = entry.body, bool(entry.body["kept"])
        after = body.get("after_us")
        if after is None:
            parts += _missing(x(at), bottom, str(body["name"]), str(body["why"]))
            continue
        here = (x(at), y(float(after)))
        colour = KEPT if kept else TAKEN_BACK
        dashed = "" if kept else ' stroke-dasharray="4 3"'
        parts.append(
            f'<line x1="{last[0]:.1f}" y1="{last[1]:.1f}" x2="{here[0]:.1f}" y2="{here[1]:.1f}" stroke="{colour}" stroke-width="2"{dashed}/>'
        )
        parts += _point(*here, float(after), str(body["name"]) + ("" if kept else " (taken back)"), colour, bottom)
        if kept:
            now, last = float(after), here
    gain = f"{first / 1e3:.3g} → {now / 1e3:.3g} ms, {first / now:.2f} times as fast" if now else ""
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{top + 12}" text-anchor="end" fill="{KEPT}">{escape(gain)}</text>')
    return parts


def _point(x: float, y: float, us: float, label: str, colour: str, bottom: int) -> list[str]:
    return [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>',
        f'<text x="{x:.1f}" y="{y - 9:.1f}" text-anchor="middle" fill="{colour}">{us / 1e3:.3g}</text>',
        f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(label)}</text>',
    ]


def _missing(x: float, bottom: int, name: str, why: str) -> list[str]:
    short = why if len(why) < 46 else why[:44] + "…"
    return [
        f'<text x="{x:.1f}" y="{bottom - 6}" text-anchor="middle" fill="{TAKEN_BACK}">×<title>{escape(why)}</title></text>',
        f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(name)}</text>',
        f'<text x="{x:.1f}" y="{bottom + 34}" text-anchor="middle" font-size="9" fill="{AXIS}">{escape(short)}</text>',
    ]


def _timings(state: State) -> str:
    found = sorted({str(entry.body.get("timing", "modelled")) for entry in state.steps})
    return " and ".join(found)
