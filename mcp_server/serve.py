"""`herdbook serve`: the MCP server on stdio or HTTP, with as little imported as possible.

On stdio, standard output belongs to the protocol from the first moment: what is printed while modules
load or later goes to standard error instead.
"""

from __future__ import annotations

import argparse
import sys

from mcp_server.wire import claim


def main(arguments: list[str]) -> int:
    """Run the server until the client leaves; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.http:
        return _serve_http(options)
    claim()
    try:
        from mcp_server.config import Config
        from mcp_server.server import build_server

        server = build_server(Config.from_environment(), warm=True)
    except ValueError as error:
        print(f"herdbook: {error}", file=sys.stderr)
        return 2
    server.run("stdio")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="herdbook serve",
        description="Serve the memory to MCP clients: on stdio (default; what 'herdbook connect' configures) or over "
        "streamable HTTP at http://HOST:PORT/mcp.",
        epilog="HTTP asks for 'Authorization: Bearer $HERDBOOK_TOKEN' whenever HERDBOOK_TOKEN is set, and refuses to start "
        "on a non-loopback address without it.",
    )
    parser.add_argument("--http", action="store_true", help="serve streamable HTTP instead of stdio")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=8765, help="port to bind (default 8765)")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a Host header to accept besides the bound address",
    )
    return parser


def _serve_http(options: argparse.Namespace) -> int:
    import uvicorn

    from mcp_server.config import Config
    from mcp_server.http import SetupRefused, http_app
    from mcp_server.server import build_server

    try:
        config = Config.from_environment()
        app = http_app(
            build_server(config, warm=True, confined=True),
            options.host,
            options.port,
            config.token,
            tuple(options.allow_host),
        )
    except (SetupRefused, ValueError) as error:
        print(f"herdbook: {error}", file=sys.stderr)
        return 2
    print(f"herdbook: http://{options.host}:{options.port}/mcp", file=sys.stderr)
    try:
        uvicorn.run(app, host=options.host, port=options.port, log_level="warning", ws="none")
    except KeyboardInterrupt:
        return 0
    except SystemExit as error:
        if not error.code:
            return 0
        print(f"herdbook: cannot bind {options.host}:{options.port}; is another server running there?", file=sys.stderr)
        return 2
    return 0


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no port; give a number from 1 to 65535")
    return int(text)
