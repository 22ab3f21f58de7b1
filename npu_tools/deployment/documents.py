"""The workspace's documents, in the paper's form, written from the ledger between two markers.

What stands outside the markers is the agent's or a person's and is kept as it is; what stands between them is written
anew every time. plan.md, progress.md, issues.md, perf_opt_traj.md, kernels.md, and notes/kernels/<kernel>.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_tools.deployment.criteria import phases
from npu_tools.deployment.ledger import Entry
from npu_tools.deployment.measured import told
from npu_tools.deployment.picture import trajectory_svg
from npu_tools.deployment.state import State
from npu_tools.deployment.workspace import Workspace, write_text
from npu_tools.errors import UnusableInput

BEGIN = "<!-- herdbook: written from the ledger; what you write below the end mark is kept -->"
END = "<!-- herdbook: end -->"
PICTURE = "trajectory.svg"


def write_documents(workspace: Workspace, entries: Sequence[Entry]) -> list[Path]:
    """Write every document; the paths.

    Raises:
        UnusableInput: one cannot be written, or its markers are damaged; the others are written all the same.
    """
    state = State.of(entries)
    pages = {
        "plan.md": _plan(state),
        "progress.md": _progress(state, entries),
        "issues.md": _issues(state),
        "perf_opt_traj.md": _trajectory(state),
        "kernels.md": _kernels(state),
        **{f"notes/kernels/{name}.md": _kernel(state, name) for name in _kernel_names(state)},
    }
    written: list[Path] = []
    damaged: list[str] = []
    for name, text in pages.items():
        path = workspace.folder / name
        try:
            write_text(path, _between(path, text))
            written.append(path)
        except UnusableInput as error:
            damaged.append(str(error))
    if state.steps:
        picture = workspace.folder / PICTURE
        write_text(picture, trajectory_svg(state))
        written.append(picture)
    if damaged:
        raise UnusableInput("; ".join(damaged))
    return written


def _between(path: Path, text: str) -> str:
    """The file with the generated part replaced."""
    block = f"{BEGIN}\n{text.rstrip()}\n{END}\n"
    if not path.is_file():
        return f"{block}\n## Notes\n"
    try:
        old = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableInput(f"{path} cannot be read: {error}") from None
    begins, ends = old.count(BEGIN), old.count(END)
    if not begins and not ends:
        return f"{block}\n{old}"
    if begins != 1 or ends != 1 or old.index(BEGIN) > old.index(END):
        raise UnusableInput(
            f"{path.name}: the marks around the generated part are damaged ({begins} begin, {ends} end): put "
            f"'{BEGIN}' before and '{END}' behind it, or remove both; your text stays"
        )
    before, rest = old.split(BEGIN, 1)
    after = rest.split(END, 1)[1].removeprefix("\n")
    return f"{before}{block}{after}"


def _plan(state: State) -> str:
    head = state.head
    lines = [f"# Plan: {_line(head.get('model'))}", ""]
    lines += [
        f"- weights: `{_line(head.get('weights'))}`",
        f"- prompts padded to {head.get('seq_len')} tokens, {head.get('layers')} layers, backend {head.get('backend')}, "
        f"device {head.get('device')}, convention {head.get('convention')}",
        "",
        "| Phase | Aim | Status |",
        "|---|---|---|",
    ]
    lines += [f"| {p.number} {p.title} | {p.aim} | {state.status(p.number)} |" for p in phases()]
    if state.settings:
        lines += ["", "## Settings chosen", ""]
        lines += [f"- {_line(name)}: {_pairs(chosen)}" for name, chosen in sorted(state.settings.items())]
    if state.recipes:
        lines += ["", "## Recipes changed", ""]
        lines += [f"- {name}: {', '.join(sorted(changed))}" for name, changed in sorted(state.recipes.items())]
    return "\n".join(lines)


def _progress(state: State, entries: Sequence[Entry]) -> str:
    lines = ["# Progress", ""]
    upcoming = state.next_phase()
    lines.append("All phases have passed." if upcoming is None else f"Next: phase {upcoming}.")
    for phase in phases():
        attempts = [entry for entry in state.attempts if entry.phase == phase.number]
        if not attempts and state.status(phase.number) in ("waiting", "ready"):
            continue
        lines += ["", f"## Phase {phase.number}: {phase.title} – {state.status(phase.number)}", ""]
        if state.summary(phase.number):
            lines += [_line(state.summary(phase.number)), ""]
        last = next((entry for entry in reversed(attempts) if not entry.body.get("trial")), None)
        if last is not None and phase.number != 1:
            lines += ["| Criterion | Value | Bound | Holds | Decides |", "|---|---|---|---|---|"]
            lines += [
                f"| {one['name']} | {_value(one['value'])} | {one['bound']} | {_yes(one['ok'])} | {_yes(one['decides'])} |"
                for one in last.body["criteria"]
            ]
        passed = sum(bool(entry.body["passed"]) for entry in attempts)
        lines += ["", f"{len(attempts)} attempts, {passed} passed."]
    lines += ["", f"The ledger has {len(entries)} lines, the last of {entries[-1].time if entries else 'never'}."]
    return "\n".join(lines)


def _issues(state: State) -> str:
    """Failures that were gates, in the form symptom, what it looks like, what was changed, when it passed."""
    failures = [entry for entry in state.failures()]
    lines = ["# Issues", "", f"{len(failures)} failed gates."]
    for entry in failures:
        body = entry.body
        diagnosis: Mapping[str, Any] = body.get("diagnosis") or {}
        lines += [
            "",
            f"## {entry.seq}: phase {entry.phase}, {body['gate']} {_about(body['subject'])}",
            "",
            f"- Symptom: {_line(diagnosis.get('message'))}",
        ]
        if diagnosis.get("looks_like"):
            lines.append(f"- Looks like: {_line(diagnosis['looks_like'])}")
        if body.get("lesson_titles"):
            lines += [f"- Lesson: {_line(each['title'])} (`{each['id']}`)" for each in body["lesson_titles"]]
        if body.get("skills"):
            lines.append(f"- Skills: {', '.join(body['skills'])}")
        solved = _solved_by(state, entry)
        if solved is not None:
            changes = [
                d for d in state.decisions if entry.seq < d.seq < solved.seq and d.body.get("subject") != "option"
            ]
            lines.append(
                f"- Passed at line {solved.seq}"
                + (f" after: {'; '.join(_change(d) for d in changes)}" if changes else "")
            )
        elif body.get("trial"):
            lines.append("- A trial of the machine's own; it was taken back")
        else:
            lines.append("- Open")
        lines += [f"- Note: {_line(note.body['text'])}" for note in state.notes if note.body.get("about") == entry.seq]
    return "\n".join(lines)


def _trajectory(state: State) -> str:
    lines = ["# Performance trajectory", ""]
    if not state.steps:
        return "\n".join([*lines, "No optimisation step was tried yet."])
    lines += [
        f"![Trajectory]({PICTURE})",
        "",
        "| Line | Phase | Step | Before ms | After ms | Timing | Gate | Kept | Why |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for entry in state.steps:
        body = entry.body
        after = body.get("after_us")
        gate = f"line {body['gate_seq']}" if body.get("gate_seq") else "–"
        lines.append(
            f"| {entry.seq} | {entry.phase} | {body['name']} | {body['before_us'] / 1e3:.3f} | "
            f"{'–' if after is None else f'{after / 1e3:.3f}'} | {body['timing']} | {gate} | {_yes(body['kept'])} | "
            f"{_line(body['why'])} |"
        )
    measured = [entry.body["measurement"] for entry in state.steps if entry.body.get("measurement")]
    said = f"Measured: {told(measured[-1])}" if measured else "Modelled times are the cost model's and no measurements."
    return "\n".join([*lines, "", said])


def _kernels(state: State) -> str:
    lines = [
        "# Kernels",
        "",
        "| Kernel | Shape | Passed | mean_rel_L1 | µs | Attempts | Line |",
        "|---|---|---|---|---|---|---|",
    ]
    latest: dict[tuple[str, str], list[Entry]] = {}
    for entry in _kernel_attempts(state):
        subject = entry.body["subject"]
        latest.setdefault((subject["kernel"], _extents(subject["shape"])), []).append(entry)
    for (kernel, extents), entries in sorted(latest.items()):
        body = entries[-1].body
        lines.append(
            f"| [{kernel}](notes/kernels/{kernel}.md) | {extents} | {_yes(body['passed'])} | "
            f"{_value(body['metrics'].get('mean_rel_l1'))} | {_time(body)} | {len(entries)} | {entries[-1].seq} |"
        )
    return "\n".join(lines)


def _kernel(state: State, name: str) -> str:
    lines = [f"# {name}", "", "| Line | Shape | Settings | Passed | mean_rel_L1 | µs |", "|---|---|---|---|---|---|"]
    for entry in _kernel_attempts(state):
        subject, body = entry.body["subject"], entry.body
        if subject["kernel"] == name:
            lines.append(
                f"| {entry.seq} | {_extents(subject['shape'])} | {_pairs(subject['settings'])} | {_yes(body['passed'])} | "
                f"{_value(body['metrics'].get('mean_rel_l1'))} | {_time(body)} |"
            )
    notes = [note for note in state.notes if note.body.get("kernel") == name]
    return "\n".join([*lines, "", *(f"- {_line(note.body['text'])}" for note in notes)])


def _solved_by(state: State, failed: Entry) -> Entry | None:
    """The next attempt of the same gate on the same thing that passed."""
    mine: Mapping[str, Any] = failed.body.get("subject") or {}
    for entry in state.attempts:
        theirs: Mapping[str, Any] = entry.body.get("subject") or {}
        same = entry.body["gate"] == failed.body["gate"] and entry.phase == failed.phase
        same = same and all(mine.get(key) == theirs.get(key) for key in ("kernel", "shape", "step"))
        if entry.seq > failed.seq and same and entry.body["passed"]:
            return entry
    return None


def _kernel_attempts(state: State) -> Iterable[Entry]:
    return (entry for entry in state.attempts if entry.body["gate"] == "kernel")


def _kernel_names(state: State) -> list[str]:
    return sorted({str(entry.body["subject"]["kernel"]) for entry in _kernel_attempts(state)})


def _change(decision: Entry) -> str:
    body = decision.body
    if body.get("subject") == "recipe":
        return f"recipe {_line(body['key'])} {'taken back' if body.get('after') is None else 'changed'}"
    return f"{_line(body['key'])}: {body.get('before')} → {body.get('after')}"


def _about(subject: Mapping[str, Any]) -> str:
    if "kernel" in subject:
        return f"{subject['kernel']} {_extents(subject.get('shape') or {})}"
    return str(subject.get("step") or "")


def _extents(shape: Mapping[str, Any]) -> str:
    return "x".join(str(extent) for extent in shape.values())


def _pairs(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_line(value)}" for name, value in sorted(settings.items())) or "–"


def _time(body: Mapping[str, Any]) -> str:
    if body.get("measured_us") is not None:
        return f"{body['measured_us']:.1f} measured"
    return f"{body['modelled_us']:.1f} modelled" if body.get("modelled_us") is not None else "not modelled"


def _value(value: Any) -> str:
    return (
        f"{value:.6g}"
        if isinstance(value, float)
        else "–"
        if value is None
        else _yes(value)
        if isinstance(value, bool)
        else str(value)
    )


def _yes(value: Any) -> str:
    return "yes" if value else "no"


def _line(value: Any) -> str:
    """Text on one line, without what would break a table or the marks."""
    return " ".join(str(value if value is not None else "").split()).replace("|", "\\|").replace("<!--", "<! --")[:600]
