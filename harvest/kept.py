"""The recipe files an attempt ran with, where its workspace still keeps them, so that the attempt can be run again.

>>> changed_files(workspace, "gemm", digest, shipped)
{'design.py': '…'}
"""

from __future__ import annotations

from pathlib import Path

from kb.redact import redact
from npu_tools.deployment.workspace import recipe_digest

MAX_CHARS = 64_000
"""Of all files of one attempt; what is longer is not kept."""
JUDGES = "reference.py"
"""What a kernel is judged by is never a deployment's own."""


def changed_files(workspace: Path, kernel: str, digest: str, shipped: Path | None) -> dict[str, str]:
    """The files of `kernel` that differ from the shipped ones and make the recipe with this digest, by name.

    Empty where the recipe is the shipped one, or its files are not kept, too long, or hold something like a secret.
    """
    if shipped is None or not kernel.isidentifier() or not digest or digest_of(shipped, kernel) == digest:
        return {}
    for whole in sorted((workspace / "results").glob("recipes_*")):
        if digest_of(whole, kernel) == digest:
            return _differing(whole / kernel, shipped / kernel)
    return {}


def digest_of(recipes: Path, kernel: str) -> str:
    """The digest of a recipe in a folder of recipes; empty where there is none or it cannot be read."""
    folder = recipes / kernel
    try:
        return recipe_digest(folder) if folder.is_dir() and not folder.is_symlink() else ""
    except OSError:
        return ""


def is_recipe_file(name: str) -> bool:
    """Whether a kept file may be laid over a recipe: its manifest or code, and not what it is judged by."""
    return name == "kernel.toml" or (name.endswith(".py") and name[:-3].isidentifier() and name != JUDGES)


def _differing(folder: Path, shipped: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted([*folder.glob("kernel.toml"), *folder.glob("*.py")]):
        theirs = shipped / path.name
        content = path.read_bytes()
        if theirs.is_file() and theirs.read_bytes() == content:
            continue
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            return {}
        if path.is_symlink() or not is_recipe_file(path.name) or redact(text).removed:
            return {}
        found[path.name] = text
    return found if sum(map(len, found.values())) <= MAX_CHARS else {}
