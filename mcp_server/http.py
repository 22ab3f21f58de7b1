"""Streamable HTTP with the guards a server on a network needs: bearer token, Host and Origin, body size.

Bound to loopback a token is optional; anywhere else it is required. Host and Origin are checked in
every case, so that a web page cannot reach a local server through DNS rebinding.
"""

from __future__ import annotations

import hmac
import ipaddress
from typing import TYPE_CHECKING, Any

from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_BODY_BYTES = 64 * 1024 * 1024
"""Largest request body: a 50 MB log must fit, JSON-escaped or not."""
MIN_TOKEN_CHARS = 16


class SetupRefused(ValueError):
    """The server would be open to others; the text says what to set."""


class BearerGuard:
    """Lets a request through only with the right bearer token; compares in constant time."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._admits(scope):
            refusal = JSONResponse(
                {"error": "invalid_token", "error_description": "send 'Authorization: Bearer <HERDBOOK_TOKEN>'"},
                status_code=401,
                headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
            )
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        if len(given) != 1 or not given[0].lower().startswith(b"bearer "):
            return False
        return hmac.compare_digest(given[0][7:].strip(), self._token)


class TrimmedHeaders:
    """Takes optional whitespace off header values (RFC 9110, 5.5).

    uvicorn's h11 parser does it, its httptools parser (used where chromadb brought it) leaves trailing blanks.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        await self._app(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Whether binding to `host` reaches only this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _in_url(host: str) -> str:
    """`host` as clients write it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def http_app(
    server: MCPServer[Any], host: str, port: int, token: str | None, allowed_hosts: tuple[str, ...] = ()
) -> ASGIApp:
    """The ASGI application for `server` bound to `host`.

    Raises:
        SetupRefused: the address is reachable by others and there is no (long enough) token.
    """
    if not is_loopback(host) and not token:
        raise SetupRefused(
            f"{host} can be reached from other machines: set HERDBOOK_TOKEN (at least {MIN_TOKEN_CHARS} characters) "
            "or bind to 127.0.0.1"
        )
    if token is not None and len(token) < MIN_TOKEN_CHARS:
        raise SetupRefused(f"HERDBOOK_TOKEN has {len(token)} characters; use at least {MIN_TOKEN_CHARS} random ones")
    names = {*allowed_hosts, _in_url(host)}
    if is_loopback(host):
        names |= {"127.0.0.1", "localhost", "[::1]"}
    names -= {"0.0.0.0", "[::]"}  # noqa: S104  (listening on all addresses; no client calls a host that)
    if not names:
        raise SetupRefused(f"binding to {host} needs --allow-host NAME for every name clients will use")
    hosts = [form for name in sorted(names) for form in (name, f"{name}:{port}")]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=hosts,
        allowed_origins=[f"{scheme}://{name}" for name in hosts for scheme in ("http", "https")],
    )
    app: ASGIApp = server.streamable_http_app(
        transport_security=security, max_request_body_size=MAX_BODY_BYTES, host=host
    )
    return TrimmedHeaders(BearerGuard(app, token) if token else app)
