"""Herdbook over MCP and on the command line.

from mcp_server import Config, build_server

server = build_server(Config.from_environment())
server.run("stdio")
"""

from mcp_server.config import Config
from mcp_server.server import build_server

__all__ = ["Config", "build_server"]
