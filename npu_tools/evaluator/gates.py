"""The gates a deployment rests on: held against the shipped criteria, tolerances, depth, length and breadth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from npu_tools.deployment.criteria import Criterion, phases
from npu_tools.deployment.ledger import Entry
from npu_tools.deployment.world import RealWorld
from npu_tools.errors import NpuToolsError
from npu_tools.evaluator import standards
from npu_tools.evaluator.claims import LAST_PHASE, Claims, line, mapping, prompts_of, rows, subject
from npu_tools.evaluator.reasons import Reason
from npu_tools.recipes import Recipe, recipe


def audit_gates(claims: Claims) -> Iterator[Reason]:
    """What speaks against the attempts the deployment rests on."""
    yield from _opened(claims)
    yield from _measured(claims)
    for phase in phases():
        if phase.number > LAST_PHASE or claims.state.status(phase.number) != "passed":
            continue
        vouching = claims.vouching(phase.number)
        yield from _shown(claims, phase.number, vouching)
        for entry in vouching:
            yield from _criteria(claims, entry)
            yield from _extent(claims, entry)
            if entry.body.get("gate") == "kernel":
                yield from _tolerance(claims, entry)
        if phase.number in (3, 4, 5):
            yield from _breadth(claims, vouching)
            yield from _over_all(claims, phase.number, vouching)
    yield from _prompts(claims)
    for entry in claims.state.attempts:
        if entry.body.get("passed") is False:
            continue
        yield from _consistent(claims, entry)


def _shown(claims: Claims, number: int, vouching: list[Entry]) -> Iterator[Reason]:
    """Every deciding criterion of the phase is held somewhere among its attempts."""
    shown = {str(one.get("name")) for entry in vouching for one in rows(entry.body.get("criteria"))}
    for name, row in standards.criteria(number).items():
        if row["decides"] and _decides(row["convention"], claims.convention) and name not in shown:
            yield Reason("criteria_missing", f"phase {number} passed without {name}", f"phase {number}")


def _criteria(claims: Claims, entry: Entry) -> Iterator[Reason]:
    """Each criterion judged again from its value, by the standards' bound."""
    number = _judged_as(entry)
    convention = str(entry.body.get("convention") or claims.convention)
    if _family(convention) != _family(claims.convention):
        text = f"judged by the {convention} convention; the deployment was opened with {claims.convention}"
        yield Reason("convention_swapped", text, line(entry))
    known = standards.criteria(number)
    for one in rows(entry.body.get("criteria")):
        name = str(one.get("name"))
        row = known.get(name) or _shipped(number, name)
        if row is None:
            yield Reason("criteria_changed", f"phase {number} has no criterion {name}", line(entry))
            continue
        again = _criterion(name, row).judge(
            one.get("value"), head_dim=claims.dims.head_dim, convention=claims.convention
        )
        bound = str(one.get("bound") or "")
        if bound and bound != again.bound:
            yield Reason(
                "criteria_changed", f"{name} was held against '{bound}', and must be {again.bound}", line(entry)
            )
        if one.get("decides") is False and again.decides:
            yield Reason("convention_swapped", f"{name} decides here, and was written down as a lens", line(entry))
        if again.decides and one.get("ok") is True and not again.ok:
            text = f"{name} is marked met with value {one.get('value')}, which is not {again.bound}"
            yield Reason("criteria_inconsistent", text, line(entry))


def _judged_as(entry: Entry) -> int:
    """The phase whose criteria an attempt is judged by: a kernel's are phase 1's, whichever phase brings it in."""
    return 1 if entry.body.get("gate") == "kernel" else entry.phase or 0


def _shipped(number: int, name: str) -> Mapping[str, Any] | None:
    """A criterion of the shipped phases that the standards do not know yet."""
    found = next((one for one in next(p for p in phases() if p.number == number).criteria if one.name == name), None)
    if found is None:
        return None
    return {
        "bound": found.bound, "limits": found.limits, "convention": found.convention, "decides": found.decides
    }  # fmt: skip


def _consistent(claims: Claims, entry: Entry) -> Iterator[Reason]:
    """Passed although one of its own deciding criteria was not met."""
    known = standards.criteria(_judged_as(entry))
    for one in rows(entry.body.get("criteria")):
        row = known.get(str(one.get("name")))
        decides = row is not None and row["decides"] and _decides(row["convention"], claims.convention)
        if decides and one.get("ok") is False:
            yield Reason("criteria_inconsistent", f"passed although {one.get('name')} was not met", line(entry))


def _extent(claims: Claims, entry: Entry) -> Iterator[Reason]:
    """Depth and length of what ran."""
    about = subject(entry)
    if entry.phase in (0, 3, 4, 5) and isinstance(about.get("layers"), int) and about["layers"] != claims.dims.layers:
        text = f"ran {about['layers']} layers; the model has {claims.dims.layers}"
        yield Reason("layers_skipped", text, line(entry))
    length = about.get("seq_len")
    if isinstance(length, int) and claims.seq_len and length != claims.seq_len:
        text = f"ran at {length} tokens; the deployment is for {claims.seq_len}"
        yield Reason("sequence_shortened", text, line(entry))


def _over_all(claims: Claims, phase: int, vouching: list[Entry]) -> Iterator[Reason]:
    """A phase ends with a gate over all prompts of what it kept; trials see one."""
    kept = max((step.seq for step in claims.state.steps if step.phase == phase and step.body.get("kept")), default=0)
    if not any(not entry.body.get("trial") and prompts_of(entry) and entry.seq > kept for entry in vouching):
        text = f"phase {phase} passed on trials with one prompt; nothing it kept was gated with all of them"
        yield Reason("gate_shrunk", text, f"phase {phase}")


def _prompts(claims: Claims) -> Iterator[Reason]:
    """The prompts are not the deployment's to choose: texts by the model's tokenizer, else seeded token ids."""
    source, world = claims.weights, RealWorld(claims.shipped)
    room = claims.seq_len
    if claims.dims.max_positions:
        room = min(room, claims.dims.max_positions - _asked(claims, "steps", standards.TOKEN_STEPS))
    count = _asked(claims, "prompts", standards.TOKEN_PROMPTS)
    wanted = world.prompts(source, claims.dims, count, room)
    for entry in claims.model_gates():
        if prompts_of(entry) == wanted[: len(prompts_of(entry))]:
            continue
        text = f"the gate's prompts are not those of {source}: {prompts_of(entry)[:1]} for {wanted[:1]}"[:300]
        seeded = not source.startswith("random:") and wanted == world.prompts("random:0", claims.dims, count, room)
        if claims.same_version and not seeded:
            yield Reason("prompts_changed", text, line(entry))
        else:  # another version may have other texts; without its tokenizer they cannot be made
            yield Reason("not_checked", f"{text}; another version or no tokenizer here", line(entry))
        return


def _measured(claims: Claims) -> Iterator[Reason]:
    """Times called measured where no device ran, or that are the cost model's."""
    backend = str(claims.opened.get("backend") or "")
    for entry in (*claims.state.attempts, *claims.state.steps):
        noted = mapping(mapping(entry.body.get("metrics")).get("time"))
        measured = entry.body.get("measured_us") is not None or "measured" in (
            entry.body.get("timing"),
            noted.get("timing"),
        )
        if measured and (backend == "emulator" or entry.body.get("backend") == "emulator"):
            yield Reason("measured_on_emulator", "a time from the emulator is called measured", line(entry))
        elif entry.kind == "attempt" and entry.body.get("backend") not in (backend, None):
            text = f"ran on {entry.body.get('backend')}; the deployment is for {backend}"
            yield Reason("criteria_inconsistent", text, line(entry))


def _tolerance(claims: Claims, entry: Entry) -> Iterator[Reason]:
    """The kernel's own tolerance, by the shipped recipe."""
    about, said = subject(entry), mapping(entry.body.get("tolerance"))
    name = str(about.get("kernel") or "")
    if not name:
        return
    rule = shipped_tolerance(claims, name, about)
    if rule is None:
        return
    if not said:
        yield Reason("tolerance_loosened", f"{name} passed without saying by which tolerance", line(entry))
        return
    kernel, tier, rtol, atol = rule
    for key, wanted in (("rtol", rtol), ("atol", atol)):
        given = said.get(key)
        if not isinstance(given, int | float) or given > wanted * (1 + 1e-9):
            text = f"{name} was judged with {key} {given}; {kernel} ({tier}) has {wanted:g}"
            yield Reason("tolerance_loosened", text, line(entry))


def shipped_tolerance(claims: Claims, name: str, about: Mapping[str, Any]) -> tuple[str, str, float, float] | None:
    """(kernel, tier, rtol, atol) by which a kernel's outputs are judged, from the shipped recipe and the standards."""
    try:
        found = recipe(claims.shipped, name)
        resolved = found.resolve(about.get("shape") or {}, _given(found, mapping(about.get("settings"))))
        rule = found.tolerance(resolved)
    except NpuToolsError:
        return None
    own = standards.tolerance(str(rule.kernel), rule.convention, rule.tier)
    rtol, atol = own or (rule.rtol, rule.atol)
    return str(rule.kernel), rule.tier, rtol, atol


def _given(found: Recipe, settings: Mapping[str, Any]) -> dict[str, Any]:
    known = found.manifest.settings
    return {name: value for name, value in settings.items() if not known or name in known}


def _breadth(claims: Claims, vouching: list[Entry]) -> Iterator[Reason]:
    """The token gate's prompts and steps: as many as the deployment was opened for, which should be upstream's."""
    wanted = _asked(claims, "prompts", standards.TOKEN_PROMPTS)
    steps = _asked(claims, "steps", standards.TOKEN_STEPS)
    for entry in vouching:
        if not any(one.get("name") == "token_sets" for one in rows(entry.body.get("criteria"))):
            continue
        if entry.body.get("trial"):
            continue
        about = subject(entry)
        prompts, seen = _count(about.get("prompts")), about.get("steps")
        if prompts < wanted:
            yield Reason("gate_shrunk", f"the token gate saw {prompts} prompts of {wanted}", line(entry))
        if isinstance(seen, int) and seen < steps:
            yield Reason("gate_shrunk", f"the token gate saw {seen} steps of {steps}", line(entry))


def _asked(claims: Claims, name: str, usual: int) -> int:
    said = claims.opened.get(name)
    return said if isinstance(said, int) else usual


def _opened(claims: Claims) -> Iterator[Reason]:
    prompts = _asked(claims, "prompts", standards.TOKEN_PROMPTS)
    steps = _asked(claims, "steps", standards.TOKEN_STEPS)
    if prompts < standards.TOKEN_PROMPTS or steps < standards.TOKEN_STEPS:
        text = f"opened for {prompts} prompts of {steps} steps; upstream's full gate has {standards.TOKEN_PROMPTS} of {standards.TOKEN_STEPS}"
        yield Reason("gate_small", text, "the opening line")


def _count(prompts: object) -> int:
    return prompts if isinstance(prompts, int) else len(rows(prompts))


def _criterion(name: str, row: Mapping[str, Any]) -> Criterion:
    limits = {int(top): float(limit) for top, limit in mapping(row["limits"]).items()}
    return Criterion(name, row["bound"], limits, row["convention"], row["decides"], "", "", "")


def _decides(convention: str, chosen: str) -> bool:
    return convention in (_family(chosen), "both", "ours")


def _family(convention: str) -> str:
    """`upstream` is what the gates of HEAD are called at kernel level."""
    return {"upstream": "head"}.get(convention, convention)
