"""The process of a job that may need the memory: `python -m mcp_server.work FOLDER`.

Deployments ask the memory about failed gates; npu_tools, whose jobs these are, does not know it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

WORKER = "mcp_server.work"


def main(folder: Path) -> int:
    """Do the job of `folder`; 0 when it ended with a result."""
    from mcp_server.config import Config, one_blas_thread

    one_blas_thread()
    from mcp_server.deployments import perform
    from npu_tools.jobs.worker import main as work

    config = Config.from_environment()

    def done(kind: str, request: dict[str, Any], teller: Any) -> dict[str, Any]:
        return perform(config, kind, request, teller)

    return work(folder, done)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
