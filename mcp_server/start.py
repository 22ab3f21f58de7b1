"""The `herdbook` command's first step: `serve` starts at once, everything else brings the command line.

An agent waits for `herdbook serve`, and its standard output belongs to the protocol, so nothing is
imported on its way that is not needed.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from mcp_server.config import one_blas_thread


def main() -> NoReturn:
    """Entry point of the console script."""
    one_blas_thread()
    if sys.argv[1:2] == ["serve"]:
        from mcp_server.serve import main as serve

        sys.exit(serve(sys.argv[2:]))
    from mcp_server.cli import main as command_line

    command_line()
