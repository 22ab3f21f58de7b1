"""Who may import whom: kb knows nobody, only mcp_server/config.py reads the environment."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = {"kb", "npu_tools", "mcp_server", "harvest", "kernels"}
ALLOWED = {
    "kb": {"kb"}, "npu_tools": {"npu_tools"}, "harvest": {"harvest", "kb", "npu_tools"},
    "mcp_server": {"mcp_server", "kb", "npu_tools", "harvest"},
}  # fmt: skip


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


def environment_readers(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb") for node in ast.walk(tree)
    )


def test_packages_import_only_what_they_may() -> None:
    for package, allowed in ALLOWED.items():
        for path in (ROOT / package).rglob("*.py"):
            assert imports(path) & OURS <= allowed, path


def test_only_the_configuration_reads_the_environment() -> None:
    readers = {p.name for package in ALLOWED for p in (ROOT / package).rglob("*.py") if environment_readers(p)}
    # The bench hands its child processes the environment it got; it reads no setting from it.
    assert readers == {"config.py", "bench_server.py"}


def test_the_guards_bite(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import os\nfrom harvest import x\nprint(os.environ['A'])\n", encoding="utf-8")
    assert "harvest" in imports(bad)
    assert environment_readers(bad)
