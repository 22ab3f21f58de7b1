"""What an installed Herdbook carries and what it must not."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

from mcp_server import Config

ROOT = Path(__file__).resolve().parent.parent


def run(code: str, *, cwd: Path | None = None, safe: bool = True) -> str:
    command = [sys.executable, *(["-P"] if safe else []), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd).stdout.strip()


def test_no_package_named_kernels_becomes_importable(tmp_path: Path) -> None:
    """Any importable `kernels` that is not Hugging Face's breaks transformers (design section 1)."""
    code = "import importlib.util as u; s = u.find_spec('kernels'); print(s is None or s.origin is not None)"
    assert run(code) == "True"
    (tmp_path / "kernels").mkdir()
    assert run(code, cwd=tmp_path, safe=False) == "False"  # the control: a stray folder would be seen


def test_the_base_install_asks_for_neither_torch_nor_chromadb() -> None:
    base = [line for line in requires("herdbook") or [] if "extra ==" not in line]
    assert base
    assert not [
        line
        for line in base
        if line.split(">")[0].split("=")[0].strip() in ("torch", "chromadb", "sentence-transformers")
    ]


def test_the_corpus_its_compiled_form_and_the_demo_logs_are_installed() -> None:
    config = Config.from_environment({})
    assert (config.compiled / "manifest.json").is_file()
    assert any(config.corpus.rglob("*.md"))
    assert len(list((config.corpus.parent.parent / "mcp_server" / "demo").glob("*.log"))) == 3


def test_public_names_exist() -> None:
    import kb
    import mcp_server

    for package in (kb, mcp_server):
        for name in package.__all__:
            assert hasattr(package, name)


def test_every_package_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {
        ".".join(init.parent.relative_to(ROOT).parts)
        for name in ("kb", "npu_tools", "harvest", "mcp_server")
        for init in (ROOT / name).rglob("__init__.py")
    }
    assert set(project["tool"]["setuptools"]["packages"]) == found
