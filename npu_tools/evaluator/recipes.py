"""Recipes a deployment changed: read, compared with the shipped ones, and laid over them afresh."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from npu_tools.deployment.workspace import recipe_digest
from npu_tools.errors import NpuToolsError, UnusableInput
from npu_tools.evaluator.claims import Claims
from npu_tools.evaluator.reasons import Reason
from npu_tools.evaluator.recipe_code import read_recipe_code, same_code
from npu_tools.recipes.manifest import Manifest, read_manifest


def overridden(claims: Claims) -> list[str]:
    """Kernels with changed code or manifest."""
    found = {path.parent.name for path in claims.workspace.recipes.glob("*/*") if path.suffix in (".py", ".toml")}
    return sorted(found)


def affected(claims: Claims, together: Path) -> list[str]:
    """The changed kernels and those built from them: whoever names one in its code or manifest, at any remove."""
    found = set(overridden(claims))
    texts = {
        path.parent.name: "".join(
            each.read_text(encoding="utf-8", errors="replace") for each in (path, *sorted(path.parent.glob("*.py")))
        )
        for path in together.glob("*/kernel.toml")
    }
    while True:
        more = {name for name, text in texts.items() if any(f'"{one}"' in text for one in found)} - found
        if not more:
            return sorted(found)
        found |= more


def merged(claims: Claims, place: Path) -> Path:
    """The recipes as the deployment has them, laid together anew under `place`: nothing kept in results is trusted."""
    folder = place / "recipes"
    ignored = shutil.ignore_patterns("__pycache__")
    try:
        shutil.copytree(claims.shipped, folder, ignore=ignored)
        if claims.workspace.recipes.is_dir():
            shutil.copytree(claims.workspace.recipes, folder, dirs_exist_ok=True, ignore=ignored)
    except OSError as error:
        raise UnusableInput(f"{folder} cannot be written: {error.strerror or error}") from None
    return folder


def audit_recipes(claims: Claims, together: Path) -> Iterator[Reason]:
    """What speaks against the changed recipes, and against merged ones kept in the workspace."""
    for name in overridden(claims):
        yield from _recipe(claims, name)
    current, plain = digests(together), digests(claims.shipped)
    kept = sorted(path for path in claims.folder.glob("results/recipes_*") if path.is_dir() and path.suffix != ".part")
    decided = claims.state.recipes
    if kept and not any(digests(path) == current for path in kept) and not _older(claims):
        relative = kept[-1].relative_to(claims.folder).as_posix()
        text = f"{relative} is what the gates ran with, and is not the shipped recipes with recipes/ laid over them"
        yield Reason("recipe_hidden", text, relative)
    if decided and current == plain:
        yield Reason(
            "stale",
            f"the ledger decided changes to {', '.join(sorted(decided))}; recipes/ has none of them",
            "recipes/",
        )


def digests(kernels: Path) -> dict[str, str]:
    """What the recipes of a folder are identified by."""
    return {path.parent.name: recipe_digest(path.parent) for path in sorted(kernels.glob("*/kernel.toml"))}


def _older(claims: Claims) -> bool:
    """Whether recipes changed more than once, so that kept merges of earlier states are as they should be."""
    return sum(entry.body.get("subject") == "recipe" for entry in claims.state.decisions) > 1


def _recipe(claims: Claims, name: str) -> Iterator[Reason]:
    folder, shipped = claims.workspace.recipes / name, claims.shipped / name
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.stem == "reference":
            original = shipped / path.name
            if not original.is_file() or not same_code(text, original.read_text(encoding="utf-8")):
                told = f"recipes/{name}/reference.py replaces the reference its kernel is judged by"
                yield Reason("reference_edited", told, f"recipes/{name}/reference.py")
            continue
        yield from read_recipe_code(path, text)
    if (folder / "kernel.toml").is_file() and (shipped / "kernel.toml").is_file():
        yield from _manifest(name, folder / "kernel.toml", shipped / "kernel.toml")


def _manifest(name: str, changed: Path, original: Path) -> Iterator[Reason]:
    try:
        now, before = read_manifest(changed), read_manifest(original)
    except NpuToolsError as error:
        yield Reason(
            "verify_only", f"recipes/{name}/kernel.toml cannot be read: {error}", f"recipes/{name}/kernel.toml"
        )
        return
    evidence = f"recipes/{name}/kernel.toml"
    if (now.tolerance.kernel, now.tolerance.tier) != (before.tolerance.kernel, before.tolerance.tier):
        text = f"{name} names another tolerance: {now.tolerance.kernel} {now.tolerance.tier or ''}".rstrip()
        yield Reason("tolerance_loosened", f"{text}; the shipped recipe has {before.tolerance.kernel}", evidence)
    if _trials(now) != _trials(before):
        yield Reason("inputs_weakened", f"{name} changes the values its trials are made of", evidence)


def _trials(manifest: Manifest) -> list[tuple[str, str, str]]:
    listed = manifest.tensors or manifest.arguments
    return [(one.name, str(one.scale), one.dtype) for one in listed if one.role in ("input", "static")]
