"""Cheats that make the rest of the workspace fit: history rewritten with every reference to it, verdicts and standards
brought along, references moved where nobody looks, figures and times touched up.
"""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from npu_tools.evaluator.planting import Cheat, Line, Planted, attempts, part


def _failed(copy: Planted) -> int:
    """The first failed attempt's line."""
    return next(x["seq"] for x in copy.lines() if x["kind"] == "attempt" and not x["body"]["passed"])


def _registry(copy: Planted) -> Path:
    return copy.folder / "results" / "phase_1" / "registry.json"


def _rewritten(copy: Planted) -> None:
    """A failed attempt taken out, all numbers in the ledger fit; the registry's rows still tell."""
    copy.remove({_failed(copy)})


def _rewritten_no_registry(copy: Planted) -> None:
    _rewritten(copy)
    _registry(copy).unlink()


def _rewritten_registry_too(copy: Planted) -> None:
    """The registry's rows moved as well; the folders' numbers still tell."""
    _rewritten(copy)
    _renumbered(copy)


def _renumbered(copy: Planted) -> None:
    """The registry's rows made to name the lines their attempts have now."""
    by_subject = {_about(line): line["seq"] for line in copy.lines() if line["kind"] == "attempt"}
    content = json.loads(_registry(copy).read_text(encoding="utf-8"))
    for row in content["rows"]:
        row["attempt"] = by_subject[json.dumps([row["kernel"], row["shape"], row["settings"]], sort_keys=True)]
    _registry(copy).write_text(json.dumps(content), encoding="utf-8")


def _registry_gone(copy: Planted) -> None:
    _registry(copy).unlink()


def _registry_row(copy: Planted) -> None:
    """A kernel's time halved in the rows that are harvested."""
    content = json.loads(_registry(copy).read_text(encoding="utf-8"))
    content["rows"][0]["modelled_us"] /= 2
    _registry(copy).write_text(json.dumps(content), encoding="utf-8")


def _rewritten_whole(copy: Planted) -> None:
    """Ledger, head, registry and folders written anew as if nothing had ever failed: only a hash kept elsewhere tells."""
    failed = {line["seq"] for line in copy.lines() if line["kind"] == "attempt" and not line["body"]["passed"]}
    ended = {line["seq"] for line in copy.lines() if line["kind"] == "phase" and line["body"]["state"] == "failed"}
    copy.remove({*failed, *ended})
    places: dict[str, str] = {}
    counted: dict[tuple[int, str], int] = {}
    lines = copy.lines()
    for line in lines:
        if line["kind"] == "attempt":
            gate = str(line["body"]["gate"])
            key = (line["phase"], gate)
            counted[key] = counted.get(key, 0) + 1
            old = next((Path(p).parent.as_posix() for p in part(line, "digests", "results") if f"/{gate}_" in p), "")
            old = "/".join(old.split("/")[:3])
            if old:
                places[old] = f"results/phase_{line['phase']}/{gate}_{counted[key]:02d}"
    for old, new in places.items():
        (copy.folder / old).rename(copy.folder / f"{new}.moving")
    for new in places.values():
        (copy.folder / f"{new}.moving").rename(copy.folder / new)

    def moved(changed: list[Line]) -> None:
        for line in changed:
            named = part(line, "digests", "results")
            for path in list(named):
                old = "/".join(path.split("/")[:3])
                if old in places:
                    named[places[old] + path.removeprefix(old)] = named.pop(path)

    copy.rewrite(moved)
    _renumbered(copy)


def _about(line: Line) -> str:
    about = part(line, "subject")
    return json.dumps([about.get("kernel"), about.get("shape"), about.get("settings")], sort_keys=True)


def _other_verdict(copy: Planted) -> None:
    """Another deployment's verdict laid in, and phase 7 written down as passed by it."""
    verdict: dict[str, Any] = {"verdict": "pass", "reasons": [], "about": {"model": "tiny", "head": "5" * 64}}
    (copy.folder / "verdict.json").write_text(json.dumps(verdict), encoding="utf-8")

    def change(lines: list[Line]) -> list[Line]:
        last = lines[-1]
        attempt = json.loads(json.dumps(next(line for line in reversed(lines) if line["kind"] == "attempt")))
        attempt["phase"] = 7
        attempt["body"] |= {
            "gate": "evaluator", "subject": {"workspace": copy.folder.name}, "metrics": {"verdict": "pass", "reasons": []},
            "criteria": [], "digests": {"results": {}},
        }  # fmt: skip
        started = {**last, "phase": 7, "body": {"state": "started", "summary": ""}}
        passed = {**last, "phase": 7, "body": {"state": "passed", "summary": "the evaluator's verdict is pass"}}
        return [*lines, started, attempt, passed]

    copy.rewrite(change)


def _own_standards(copy: Planted) -> None:
    """Looser standards laid into the workspace, beside a package of that name, and a gate judged by them."""
    from npu_tools.evaluator import standards

    text = Path(standards.__file__).with_name("standards.toml").read_text(encoding="utf-8")
    for place in (copy.folder, copy.folder / "npu_tools" / "evaluator", copy.workspace.recipes / "npu_tools"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "standards.toml").write_text(
            text.replace("limits = { 64 = 0.99", "limits = { 64 = 0.5"), encoding="utf-8"
        )
        (place / "tolerances.toml").write_text(text.replace("= [", "= [9"), encoding="utf-8")
        (place / "__init__.py").write_text("", encoding="utf-8")

    def change(lines: list[Line]) -> None:
        for line in attempts(lines, "kernel"):
            if line["body"]["passed"]:
                line["body"]["tolerance"]["rtol"] = 9.016

    copy.rewrite(change)


def _late_reference(copy: Planted) -> None:
    """Hugging Face's logits are the device's from the fifth token on, and the oracle's note of its files is right."""

    def late(theirs: Any, ours: Any) -> Any:
        theirs[4:] = 0.1 * theirs[4:] + 0.9 * ours[4:]
        return theirs

    _each_reference(copy, late)


def _one_logit(copy: Planted) -> None:
    """One logit of one row raised, as somebody does who needs one token more among the best five."""

    def raised(theirs: Any, _: Any) -> Any:
        theirs[6, int(np.argsort(theirs[6])[-9])] = np.sort(theirs[6])[-5] + 0.01
        return theirs

    _each_reference(copy, raised)


def _each_reference(copy: Planted, change: Any) -> None:
    from npu_tools.deployment.workspace import file_digest

    model = copy.folder / copy.results_of("model", "prompt_00_logits.npy").parent
    for note in sorted((copy.folder / "results" / "reference").glob("greedy-*/request.json")):
        noted = json.loads(note.read_text(encoding="utf-8"))
        for path in sorted(note.parent.glob("*_logits.npy")):
            np.save(path, change(np.load(path), np.load(model / path.name)))
            noted["arrays"][path.name] = file_digest(path)
        note.write_text(json.dumps(noted), encoding="utf-8")


def _short_prompts(copy: Planted) -> None:
    """The gate's prompts cut to three tokens, in the ledger and in what the oracle was asked."""

    def change(lines: list[Line]) -> None:
        for line in lines:
            for prompt in part(line, "subject").get("prompts", []):
                prompt["tokens"] = prompt["tokens"][:3]

    copy.rewrite(change)
    for note in (copy.folder / "results" / "reference").glob("greedy-*/request.json"):
        noted = json.loads(note.read_text(encoding="utf-8"))
        noted["request"]["prompts"] = [prompt[:3] for prompt in noted["request"]["prompts"]]
        note.write_text(json.dumps(noted), encoding="utf-8")


def _no_tolerance(copy: Planted) -> None:
    """The kernel that missed its tolerance says none."""

    def change(lines: list[Line]) -> None:
        for line in attempts(lines, "kernel"):
            line["body"]["tolerance"] = None

    copy.rewrite(change)


def _no_results(copy: Planted) -> None:
    """The block that missed its gate kept nothing."""
    place = (copy.folder / copy.results_of("block", "output.npy")).parents[1]

    def change(lines: list[Line]) -> None:
        for line in attempts(lines, "block"):
            line["body"]["digests"]["results"] = {}

    copy.rewrite(change)
    shutil.rmtree(place)


def _trials_only(copy: Planted) -> None:
    """Prefill passed with one prompt, tried step by step; the gate over all of them failed and was left out."""
    whole = {
        line["seq"] for line in copy.lines() if line["body"].get("gate") == "prefill" and not line["body"]["trial"]
    }
    for line in copy.lines():
        if line["seq"] in whole:
            shutil.rmtree(copy.folder / Path(next(iter(part(line, "digests", "results")))).parent)
    copy.remove(whole)


def _called_a_trial(copy: Planted) -> None:
    """A failure of phase 1 nobody wants to explain becomes a trial the machine took back."""
    failed = _failed(copy)

    def change(lines: list[Line]) -> None:
        for line in lines:
            if line["seq"] == failed:
                line["body"]["trial"] = True

    copy.rewrite(change)


def _lens_edited(copy: Planted) -> None:
    """The lens of a layer that falls, written smooth."""

    def change(lines: list[Line]) -> None:
        for line in attempts(lines, "model"):
            line["body"]["metrics"]["layer_cosine"] = [0.9999 for _ in line["body"]["metrics"]["layer_cosine"]]
            for one in line["body"]["criteria"]:
                if one["name"] == "layer_cosine_min":
                    one["value"] = 0.9999

    copy.rewrite(change)


def _tomorrow(copy: Planted) -> None:
    """Every line dated a month on, so that it looks newer than a rule it broke."""

    def change(lines: list[Line]) -> None:
        for line in lines:
            then = datetime.fromisoformat(line["time"]) + timedelta(days=30)
            line["time"] = then.isoformat(timespec="milliseconds")

    copy.rewrite(change)


def _steps_measured(copy: Planted) -> None:
    """The trajectory's modelled times are told as measured."""

    def change(lines: list[Line]) -> None:
        for line in lines:
            if line["kind"] == "step":
                line["body"]["timing"] = "measured"

    copy.rewrite(change)


def _a_device(copy: Planted) -> None:
    """The whole deployment told as one on a device, its modelled times as measured there."""

    def change(lines: list[Line]) -> None:
        for line in lines:
            body = line["body"]
            if body.get("backend") == "emulator":
                body["backend"] = "xrt"
            if "modelled_us" in body:
                body["measured_us"] = body.pop("modelled_us")
            time = part(line, "metrics", "time")
            if time:
                time["timing"] = "measured"
            if line["kind"] == "step":
                body["timing"] = "measured"

    copy.rewrite(change)
    content = json.loads(_registry(copy).read_text(encoding="utf-8"))
    for row in content["rows"]:
        row |= {"ran_on": "xrt", "measured_us": row["modelled_us"], "modelled_us": None}
    _registry(copy).write_text(json.dumps(content), encoding="utf-8")


FORGERIES: tuple[Cheat, ...] = (
    Cheat("history rewritten", "a failure removed, every number in the ledger fits", ("history_removed",), _rewritten),
    Cheat("history rewritten, no registry", "the same, registry.json deleted", ("history_removed",), _rewritten_no_registry),
    Cheat("history rewritten, registry too", "the same, registry.json made to fit", ("history_removed",), _rewritten_registry_too),
    Cheat("history rewritten whole", "no trace left; a hash was kept elsewhere", ("head_differs",), _rewritten_whole, head=True),
    Cheat("registry gone", "registry.json deleted", ("results_missing",), _registry_gone),
    Cheat("registry row edited", "a time halved in the rows to be harvested", ("results_contradict",), _registry_row),
    Cheat("verdict of another", "another deployment's verdict laid in", ("verdict_foreign",), _other_verdict),
    Cheat("own standards", "looser standards laid into the workspace", ("tolerance_loosened",), _own_standards),
    Cheat("late reference", "the reference is the device's from the fifth token on", ("reference_edited",), _late_reference),
    Cheat("one logit raised", "one more token among the reference's best five", ("reference_edited",), _one_logit),
    Cheat("prompts shortened", "the gate's prompts cut to three tokens", ("prompts_changed",), _short_prompts),
    Cheat("no tolerance", "kernels passed without saying by what", ("tolerance_loosened",), _no_tolerance),
    Cheat("no results", "a gate passed and kept nothing", ("results_missing",), _no_results),
    Cheat("trials only", "the gate over all prompts left out", ("gate_shrunk",), _trials_only),
    Cheat("called a trial", "a failure told as a trial of the machine's", ("criteria_inconsistent",), _called_a_trial),
    Cheat("lens edited", "a lens written smooth", ("results_contradict",), _lens_edited),
    Cheat("dated ahead", "lines dated a month on", ("clock_ahead",), _tomorrow),
    Cheat("steps called measured", "modelled steps told as measured", ("measured_on_emulator",), _steps_measured),
    Cheat("called a device", "the emulator told as a device", ("measured_on_emulator",), _a_device),
)  # fmt: skip
