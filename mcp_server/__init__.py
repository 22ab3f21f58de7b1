"""Herdbook over MCP and on the command line.

from mcp_server import Config, build_server

server = build_server(Config.from_environment())
server.run("stdio")
"""

from typing import TYPE_CHECKING

from mcp_server.config import Config

if TYPE_CHECKING:
    from mcp_server.server import build_server

__all__ = ["Config", "build_server"]


def __getattr__(name: str) -> object:
    """`build_server`, at first use: the SDK takes most of a second, and `herdbook explain` needs none of it."""
    if name == "build_server":
        from mcp_server.server import build_server

        return build_server
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
