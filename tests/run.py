"""The checks of this repository in one command: ruff, pyright, pytest. Exits with the first failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKS = (
    ["ruff", "check", "."],
    ["ruff", "format", "--check", "kb", "mcp_server", "npu_tools", "harvest", "kernels", "tests"],
    ["pyright", "--pythonpath", sys.executable],
    ["pytest", "-q", "-n", "2", "--dist", "loadfile"],
)


def main() -> int:
    """Run every check from the repository's root."""
    for command in CHECKS:
        print("$", *command, flush=True)
        tool = [sys.executable, "-P", "-m", *command]
        code = subprocess.run(
            [*tool, *sys.argv[1:]] if command[0] == "pytest" else tool, cwd=ROOT, check=False
        ).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
