"""Real `herdbook serve` processes to talk to, and what to put in their way."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERDBOOK = str(Path(sys.executable).with_name("herdbook"))
PATIENCE_S = 60
"""After this a server is taken for dead; nothing waits that long otherwise."""


def child_environment(folder: Path) -> dict[str, str]:
    """A fresh home, no dense search, the weights where they are."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith("HERDBOOK_") or n == "HERDBOOK_WEIGHTS"}
    return kept | {"HERDBOOK_HOME": str(folder / "home"), "HERDBOOK_DENSE": "0"}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What a child started by this test gets to see; change it before starting one."""
    return child_environment(tmp_path)


@pytest.fixture
def sitecustomize(tmp_path: Path, environment: dict[str, str]) -> Callable[[str], None]:
    """Have every child run this code before anything else (after whatever sitecustomize the machine has)."""

    def write(code: str) -> None:
        folder = tmp_path / "site"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
        environment["PYTHONPATH"] = str(folder)

    return write


class StdioServer:
    """One `herdbook serve` on pipes, spoken to in raw lines."""

    def __init__(self, environment: dict[str, str], errors: Path) -> None:
        self.errors = errors
        self._log = errors.open("wb")
        self.process = subprocess.Popen(
            [HERDBOOK, "serve"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._pump, daemon=True)
        self._reader.start()

    def _pump(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next line of standard output, which must be a JSON-RPC message."""
        message = json.loads(self._lines.get(timeout=PATIENCE_S))
        assert message["jsonrpc"] == "2.0"
        return message

    def request(self, method: str, params: dict[str, Any] | None = None, request_id: object = 1) -> dict[str, Any]:
        """The whole answer, result or error."""
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}
        self.send(json.dumps(message).encode())
        answer = self.receive()
        assert answer["id"] == request_id
        return answer

    def initialize(self, version: str = "2025-06-18") -> dict[str, Any]:
        """The result of the handshake."""
        client = {"name": "test", "version": "1"}
        answer = self.request(
            "initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": client}, "hello"
        )
        self.send(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
        return answer["result"]

    def call(self, tool: str, arguments: object) -> dict[str, Any]:
        """The result of a tool call."""
        return self.request("tools/call", {"name": tool, "arguments": arguments}, "call")["result"]

    def leave(self) -> int:
        """Close its standard input; the exit code. Nothing may be left unread."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self._lines.empty(), self._lines.get()
        return code

    def close(self) -> None:
        """End it whatever it does."""
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout, self._log):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass


@pytest.fixture
def serve(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[[], StdioServer]]:
    """Starts servers in `environment`, and ends them."""
    servers: list[StdioServer] = []

    def start() -> StdioServer:
        servers.append(StdioServer(environment, tmp_path / f"stderr-{len(servers)}"))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def lasting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StdioServer]:
    """One server for a whole module, past the handshake: it has to survive all of it."""
    folder = tmp_path_factory.mktemp("lasting")
    server = StdioServer(child_environment(folder), folder / "stderr")
    server.initialize()
    yield server
    server.close()
