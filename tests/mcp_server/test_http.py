"""Streamable HTTP: who gets in, what is refused and how, and that a refusal costs the next caller nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx2
import pytest
from starlette.testclient import TestClient

from mcp_server import Config, build_server
from mcp_server.http import MAX_BODY_BYTES, SetupRefused, TrimmedHeaders, http_app
from mcp_server.serve import main

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

HERDBOOK = str(Path(sys.executable).with_name("herdbook"))
PORT = 8765
HERE = f"http://127.0.0.1:{PORT}"
TOKEN = "a-token-of-sufficient-length"
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
MODERN = {"MCP-Protocol-Version": "2026-07-28", "MCP-Method": "server/discover"}
PATIENCE_S = 60


def message(method: str, **params: object) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


HELLO = message(
    "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "1"}
)
DISCOVER = message(
    "server/discover",
    _meta={
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    },
)


def post(client: Any, body: str | bytes = HELLO, **headers: str) -> Any:
    return client.post("/mcp", content=body, headers=HEADERS | {k.replace("_", "-"): v for k, v in headers.items()})


@pytest.fixture
def client(lexical_config: Config) -> Iterator[TestClient]:
    """A client of a server on loopback without a token; it must still be served when the test is over."""
    with TestClient(http_app(build_server(lexical_config), "127.0.0.1", PORT, None), base_url=HERE) as opened:
        yield opened
        assert post(opened).status_code == 200


@pytest.fixture
def guarded(lexical_config: Config) -> Iterator[TestClient]:
    """The same with a token."""
    with TestClient(http_app(build_server(lexical_config), "127.0.0.1", PORT, TOKEN), base_url=HERE) as opened:
        yield opened
        assert post(opened, Authorization=f"Bearer {TOKEN}").status_code == 200


# -- the token --------------------------------------------------------------------------------------


def test_loopback_without_a_token_serves_both_eras(client: TestClient) -> None:
    assert '"protocolVersion":"2025-06-18"' in post(client).text
    found = client.post("/mcp", content=DISCOVER, headers=HEADERS | MODERN).json()["result"]
    assert "2026-07-28" in found["supportedVersions"]
    assert not any(value for part in found["capabilities"].values() for value in part.values())


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "Bearer wrong-token-of-some-length")],
        [("Authorization", f"Bearer {TOKEN}x")],
        [("Authorization", f"Bearer {TOKEN[:-1]}")],
        [("Authorization", "Bearer ")],
        [("Authorization", TOKEN)],
        [("Authorization", f"Basic {TOKEN}")],
        [("Authorization", f"Bearer {TOKEN}"), ("Authorization", f"Bearer {TOKEN}")],
        [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer wrong")],
        [("X-Authorization", f"Bearer {TOKEN}")],
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "OPTIONS"])
def test_without_the_one_right_token_nothing_is_answered(
    guarded: TestClient, headers: list[tuple[str, str]], method: str
) -> None:
    answer = guarded.request(method, "/mcp", content=HELLO, headers=[*HEADERS.items(), *headers])
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert "HERDBOOK_TOKEN" in answer.json()["error_description"]
    assert TOKEN not in answer.text


def test_the_scheme_of_the_token_is_read_in_any_case(guarded: TestClient) -> None:
    assert post(guarded, Authorization=f"bearer {TOKEN}").status_code == 200


def test_blanks_around_a_header_value_do_not_count() -> None:
    """RFC 9110, 5.5; some HTTP parsers leave them for the application to take off."""
    seen: list[tuple[bytes, bytes]] = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(scope["headers"])

    scope = {"type": "http", "headers": [(b"mcp-name", b" \t explain_error  ")]}
    asyncio.run(TrimmedHeaders(inner)(scope, cast("Receive", None), cast("Send", None)))
    assert seen == [(b"mcp-name", b"explain_error")]


def test_the_token_does_not_replace_the_other_checks(guarded: TestClient) -> None:
    assert post(guarded, Authorization=f"Bearer {TOKEN}", Host="evil.example").status_code == 421


# -- where it may be bound --------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.20", "build-host", "fd00::2"])
def test_an_address_others_reach_needs_a_token(lexical_config: Config, host: str) -> None:
    with pytest.raises(SetupRefused, match=r"set HERDBOOK_TOKEN .* or bind to 127\.0\.0\.1"):
        http_app(build_server(lexical_config), host, PORT, None)


@pytest.mark.parametrize("host", ["127.0.0.1", "192.168.1.20"])
def test_a_short_token_is_refused_everywhere(lexical_config: Config, host: str) -> None:
    with pytest.raises(SetupRefused, match="has 5 characters; use at least 16"):
        http_app(build_server(lexical_config), host, PORT, "short")


def test_all_addresses_need_the_names_clients_use(lexical_config: Config) -> None:
    with pytest.raises(SetupRefused, match="--allow-host NAME"):
        http_app(build_server(lexical_config), "0.0.0.0", PORT, TOKEN)


@pytest.mark.parametrize(
    ("environment", "options", "said"),
    [
        ({}, ["--host", "0.0.0.0"], "set HERDBOOK_TOKEN"),
        ({"HERDBOOK_TOKEN": "short"}, ["--host", "0.0.0.0"], "at least 16"),
        ({"HERDBOOK_TOKEN": TOKEN}, ["--host", "0.0.0.0"], "--allow-host"),
        ({"HERDBOOK_CHROMA": "nonsense"}, [], "host:port"),
    ],
)
def test_the_command_refuses_with_advice_and_exit_code_2(
    environment: dict[str, str],
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in os.environ if name.startswith("HERDBOOK_")]:
        monkeypatch.delenv(name)
    for name, value in {"HERDBOOK_HOME": str(tmp_path), **environment}.items():
        monkeypatch.setenv(name, value)
    assert main(["--http", *options]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("port", ["0", "70000", "-1", "http", "1" * 5000])
def test_an_impossible_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--http", f"--port={port}"])
    assert "give a number from 1 to 65535" in capsys.readouterr().err


# -- Host and Origin --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}"])
def test_the_names_of_this_machine_are_served(client: TestClient, host: str) -> None:
    assert post(client, Host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"evil.example:{PORT}",
        f"127.0.0.1.evil.example:{PORT}",
        f"localhost.evil.example:{PORT}",
        "127.0.0.1:80",
        f"127.0.0.1:{PORT}@evil.example",
        f"0.0.0.0:{PORT}",
        f"2130706433:{PORT}",
        "",
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
def test_any_other_host_is_refused(client: TestClient, host: str, method: str) -> None:
    """A page whose name was rebound to 127.0.0.1 sends its own name."""
    assert client.request(method, "/mcp", content=HELLO, headers=HEADERS | {"Host": host}).status_code == 421


@pytest.mark.parametrize("origin", [f"http://127.0.0.1:{PORT}", f"http://localhost:{PORT}"])
def test_a_page_of_this_machine_may_ask(client: TestClient, origin: str) -> None:
    assert post(client, Origin=origin).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:1", f"http://localhost:{PORT}.evil.example", "file://", "*"],
)
def test_any_other_origin_is_refused(client: TestClient, origin: str) -> None:
    answer = post(client, Origin=origin)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("bound", "called"),
    [("127.0.0.2", "127.0.0.2"), ("::1", "[::1]"), ("fd00::2", "[fd00::2]"), ("192.168.1.20", "192.168.1.20")],
)
def test_the_bound_address_is_a_name_of_the_server(lexical_config: Config, bound: str, called: str) -> None:
    app = http_app(build_server(lexical_config), bound, PORT, TOKEN)
    with TestClient(app, base_url=HERE) as client:
        assert post(client, Host=f"{called}:{PORT}", Authorization=f"Bearer {TOKEN}").status_code == 200


def test_a_name_given_by_hand_is_served_and_no_other(lexical_config: Config) -> None:
    app = http_app(build_server(lexical_config), "0.0.0.0", PORT, TOKEN, ("herdbook.lan",))
    with TestClient(app, base_url=HERE) as client:
        for host, status in ((f"herdbook.lan:{PORT}", 200), ("herdbook.lan", 200), (f"0.0.0.0:{PORT}", 421)):
            assert post(client, Host=host, Authorization=f"Bearer {TOKEN}").status_code == status


# -- bodies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_over_the_limit_is_refused(client: TestClient, declared: bool) -> None:
    """Whether the client says how long it is or sends it in pieces."""
    piece = b"x" * (1024 * 1024)
    pieces = (piece for _ in range(MAX_BODY_BYTES // len(piece) + 1))
    body = b"".join(pieces) if declared else pieces
    answer = client.post("/mcp", content=body, headers=HEADERS)
    assert answer.status_code == 413
    assert "too large" in answer.text


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_that_is_not_declared_as_json_is_refused(client: TestClient, content_type: str) -> None:
    """What a form on a web page can send without asking first."""
    answer = post(client, Content_Type=content_type)
    assert answer.status_code == 400
    assert "Content-Type" in answer.text


@pytest.mark.parametrize(
    "body",
    [b"", b"garbage", b"\xff\xfe\x00", b"[]", b"{}", b"null", b'{"jsonrpc": "2.0"', b'{"a": "\x00"}', b"[" * 100_000,
     rb'{"jsonrpc": "2.0", "id": 1, "method": "\ud800"}'],
)  # fmt: skip
def test_a_body_that_is_no_message_is_a_json_rpc_error(client: TestClient, body: bytes) -> None:
    answer = post(client, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in (-32700, -32602, -32600)
    assert len(answer.text) < 5000


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/mcp", 405),
        ("PATCH", "/mcp", 405),
        ("POST", "/", 404),
        ("GET", "/.env", 404),
        ("POST", "/../mcp/x", 404),
    ],
)
def test_other_methods_and_paths_are_refused(client: TestClient, method: str, path: str, status: int) -> None:
    assert client.request(method, path, content=HELLO, headers=HEADERS).status_code == status


def test_an_unknown_session_is_refused(client: TestClient) -> None:
    assert post(client, message("tools/list"), MCP_Session_Id="nope").status_code == 404
    assert post(client, message("tools/list")).status_code == 400


# -- a real process ---------------------------------------------------------------------------------


def test_a_real_server_serves_refuses_and_ends(environment: dict[str, str], tmp_path: Path) -> None:
    """`herdbook serve --http` on a socket: a call with the token, one without, a second server on its port, an end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment["HERDBOOK_TOKEN"] = TOKEN
    command = [HERDBOOK, "serve", "--http", "--port", str(port)]
    errors = tmp_path / "stderr"
    with errors.open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, trust_env=False) as client:
            deadline = time.monotonic() + PATIENCE_S
            while True:
                try:
                    assert post(client).status_code == 401
                    break
                except httpx2.TransportError:
                    assert server.poll() is None, errors.read_text(encoding="utf-8")
                    assert time.monotonic() < deadline, "no answer"
            hello = post(client, Authorization=f"Bearer {TOKEN}")
            assert hello.status_code == 200
            asked = message(
                "tools/call",
                name="explain_error",
                arguments={"error_text": "error: Repeat count exceeds the [0:255] range."},
            )
            answer = post(
                client, asked, Authorization=f"Bearer {TOKEN}", MCP_Session_Id=hello.headers["mcp-session-id"]
            )
            result = json.loads(answer.text.partition("data: ")[2])["result"]
            assert result["structuredContent"]["lessons"]
        second = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert second.returncode == 2
        assert f"cannot bind 127.0.0.1:{port}" in second.stderr
    finally:
        server.send_signal(signal.SIGTERM if sys.platform == "win32" else signal.SIGINT)
        code = server.wait(PATIENCE_S)
    assert server.stdout is not None
    with server.stdout as printed:
        assert printed.read() == b""
    if sys.platform != "win32":
        assert code == 0, errors.read_text(encoding="utf-8")
    said = errors.read_text(encoding="utf-8")
    assert f"http://127.0.0.1:{port}/mcp" in said
    assert TOKEN not in said
