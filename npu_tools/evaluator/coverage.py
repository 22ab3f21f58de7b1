"""Whether what runs is what was gated: every kernel of the deployed plan, with the recipes and settings of today."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from npu_tools.deployment.ledger import Entry, plain
from npu_tools.deployment.site import BUFFERS
from npu_tools.deployment.state import as_settings
from npu_tools.deployment.workspace import recipe_digest
from npu_tools.deployment.world import KernelUse, Plan, RealWorld
from npu_tools.errors import NpuToolsError
from npu_tools.evaluator.claims import Claims, line, mapping, subject
from npu_tools.evaluator.reasons import Reason
from npu_tools.evaluator.rederive import KernelClaim
from npu_tools.evaluator.times import plan_request
from npu_tools.recipes import recipe

HEAD_FIRST = {"flash_attention": {"variant": "head-first"}}
"""What the machine adds itself while the layout step is not kept (deployment/steps.py)."""


def last_gates(claims: Claims) -> list[Entry]:
    """The gates that vouch for what runs now: of phase 4 and phase 5, else of phase 3."""
    last = _last(claims)
    return [last[phase] for phase in (4, 5) if phase in last] or ([last[3]] if 3 in last else [])


def _last(claims: Claims) -> dict[int, Entry]:
    """Of each phase the last gate over the whole model that was no trial."""
    return {entry.phase or 0: entry for entry in claims.model_gates() if not entry.body.get("trial")}


def deployed_kernels(claims: Claims, together: Path) -> tuple[list[KernelClaim], list[Reason]]:
    """Every distinct kernel the deployment runs, and what speaks against those it or its baseline of phase 3 gated."""
    claimed: dict[str, KernelClaim] = {}
    found: list[Reason] = []
    seen: set[str] = set()
    gated, deployed = _gated(claims), last_gates(claims)
    for _, entry in sorted(_last(claims).items()):
        try:
            plan = RealWorld(together).plan(plan_request(claims, subject(entry), together))
        except (NpuToolsError, ImportError) as error:
            found.append(Reason("not_checked", f"the model's plan cannot be made again: {error}", line(entry)))
            continue
        for use in _running(plan, entry.phase):
            key, digest, resolved = _key(use, together)
            known = gated.get(key, [])
            if key not in seen:
                seen.add(key)
                found += _vouched(use, digest, known, resolved, gated)
            if entry in deployed:
                evidence = line(known[-1]) if known else line(entry)
                claimed.setdefault(key, KernelClaim(use.kernel, dict(use.shape), dict(use.settings), evidence))
    return list(claimed.values()), found


def changed_kernels(claims: Claims, changed: list[str], running: list[KernelClaim]) -> list[KernelClaim]:
    """Changed kernels that run inside others only, at the first shape they were gated at."""
    found: dict[str, KernelClaim] = {}
    for entry in claims.kernel_gates():
        about = subject(entry)
        name = str(about.get("kernel"))
        if name in changed and not any(one.kernel == name for one in running):
            shape, settings = dict(mapping(about.get("shape"))), dict(mapping(about.get("settings")))
            found.setdefault(name, KernelClaim(name, shape, settings, line(entry)))
    return list(found.values())


def _running(plan: Plan, phase: int | None) -> list[KernelUse]:
    """Phase 4 vouches for prefill, phase 5 for decode, phase 3 for both; the head is in each."""
    whole = {3: Plan(plan.prefill, plan.decode, plan.head), 4: Plan(plan.prefill, (), plan.head)}
    return [use for use, _ in whole.get(phase or 3, Plan((), plan.decode, plan.head)).distinct()]


def audit_staleness(claims: Claims, together: Path) -> Iterator[Reason]:
    """Recipes and settings of the gates that vouch for the model beside those of today."""
    chosen = claims.state.settings
    today = {k: v for k, v in chosen.items() if not k.startswith((BUFFERS, "option/"))}
    for entry in last_gates(claims):
        about = subject(entry)
        for name, digest in mapping(about.get("recipes")).items():
            if (together / name).is_dir() and recipe_digest(together / name) != digest:
                text = f"the recipe of {name} is not the one the model was gated with"
                yield Reason("stale", text, line(entry))
        then = {str(key): dict(mapping(value)) for key, value in mapping(about.get("settings")).items()}
        for kernel in sorted({*today, *then}):
            now = {**HEAD_FIRST.get(kernel, {}), **today.get(kernel, {})} if kernel in then else today[kernel]
            if plain(then.get(kernel, {})) not in (plain(now), plain(today.get(kernel, {}))):
                text = (
                    f"settings of {kernel} changed after the model was gated: {_told(then.get(kernel))} → {_told(now)}"
                )
                yield Reason("stale", text, line(entry))
    yield from _copy(claims)


def _copy(claims: Claims) -> Iterator[Reason]:
    """settings.json is a copy for people; the ledger holds."""
    path = claims.workspace.settings
    try:
        said = as_settings(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
    except ValueError:
        said = {}
    if said is not None and plain(said) != plain(claims.state.settings):
        yield Reason("settings_differ", f"{path.name} is not what the ledger decided; the ledger holds", path.name)


def _gated(claims: Claims) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in claims.kernel_gates():
        about = subject(entry)
        key = _named(str(about.get("kernel")), mapping(about.get("shape")), mapping(about.get("settings")))
        found.setdefault(key, []).append(entry)
    return found


def _vouched(
    use: KernelUse, digest: str, known: list[Entry], resolved: str, gated: Mapping[str, list[Entry]]
) -> list[Reason]:
    title = f"{use.kernel} {use.extents}"
    if known and any(subject(entry).get("recipe_digest") in (digest, None) for entry in known):
        return []
    if known:
        return [Reason("stale", f"{title} was gated with another recipe than it runs with", line(known[-1]))]
    others = [key for key in gated if key.startswith(f"{use.kernel} ")]
    near = f"; it was at {len(others)} other shapes or settings" if others else ""
    return [Reason("kernel_ungated", f"{title} ({resolved[:120]}) was never gated{near}", f"the plan: {use.name}")]


def _key(use: KernelUse, together: Path) -> tuple[str, str, str]:
    """How a kernel is found among the gated ones, its recipe's digest, and its settings in words."""
    try:
        found = recipe(together, use.kernel)
        settings: Mapping[str, Any] = found.resolve(use.extents, dict(use.settings)).settings
        digest = recipe_digest(found.folder)
    except NpuToolsError:
        settings, digest = use.settings, ""
    words = " ".join(f"{name}={value}" for name, value in settings.items())
    return _named(use.kernel, use.shape, settings), digest, words


def _named(kernel: str, shape: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Shapes come back from the ledger with their axes sorted by name."""
    return f"{kernel} {json.dumps([plain(shape), plain(settings)], sort_keys=True)}"


def _told(settings: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name} {value}" for name, value in (settings or {}).items()) or "none"
