"""Let the MCP Inspector's command line list and call every tool, on stdio and on HTTP with a token.

    tests/inspector/run          # about a minute, plus npm's downloads the first time

It is a client Herdbook shares no code with, so what it accepts an agent's will. Each transport gets a
fresh home; the steps build on each other: a lesson is contributed, then found, read and voted for.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import node_tools

INSPECTOR = ("@modelcontextprotocol/inspector", "2.12.0")
TOOLS = [
    "explain_error", "search", "get", "contribute_lesson", "report_outcome", "check", "compile", "run", "job", "gate",
    "deployment", "harvest",
]  # fmt: skip
HERDBOOK = str(Path(sys.executable).with_name("herdbook"))
SYMPTOM = "error: frobnication of quux 77 exceeded its zork budget"
LESSON = {
    "title": "The frobnicator refuses large quuxes",
    "symptom": f"Building stops.\n```\n{SYMPTOM}\n```",
    "cause": "quux 77 is larger than the zork budget",
    "fix": "1. Make quux 77 smaller.",
}
COPY = """
func.func @copy(%arg0: memref<8xi32>, %arg1: memref<8xi32>) {
  memref.copy %arg0, %arg1 : memref<8xi32> to memref<8xi32>
  return
}
"""
TOOL_ERROR = 5
"""What the inspector exits with when a tool answers with an error."""


class Inspector:
    """The Inspector's command line, aimed at one server."""

    def __init__(self, home: Path, target: list[str]) -> None:
        self._command = [node_tools.node(), str(node_tools.package(*INSPECTOR) / "clients/launcher/build/index.js")]
        self._command += ["--cli", "--format", "json", "--quiet", "--stored-auth-only"]
        self._target = target
        self._environment = os.environ | {"HOME": str(home), "USERPROFILE": str(home)}  # where it keeps its own files

    def run(self, method: str, *options: str) -> subprocess.CompletedProcess[str]:
        """One connection, one request."""
        return subprocess.run(
            [*self._command, "--method", method, *options, *self._target],
            env=self._environment, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False,
        )  # fmt: skip

    def ask(self, method: str, *options: str) -> Any:
        """The result of a request that must succeed."""
        done = self.run(method, *options)
        assert done.returncode == 0, f"{method} {options}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)["result"]

    def call(self, tool: str, arguments: dict[str, object], *options: str) -> Any:
        """The structured answer of a tool; its text form must say the same."""
        result = self.ask("tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments), *options)
        assert not result.get("isError"), result
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"], "text and structure differ"
        return result["structuredContent"]


def check(name: str, inspector: Inspector) -> None:
    """Every tool, a resource and a prompt; raises AssertionError with what was wrong."""
    tools = inspector.ask("tools/list", "--strict")["tools"]
    assert [tool["name"] for tool in tools] == TOOLS, tools
    for tool in tools:
        assert tool["description"], tool
        assert tool["outputSchema"]["type"] == "object", tool
        assert tool["annotations"]["destructiveHint"] is False, tool
    say(name, "tools/list, schemas strictly portable")

    stored = inspector.call("contribute_lesson", dict(LESSON))
    assert stored["action"] == "stored", stored
    lesson = stored["id"]
    say(name, "contribute_lesson")

    for era in ("legacy", "modern"):
        found = inspector.call("explain_error", {"error_text": SYMPTOM}, "--protocol-era", era)
        assert found["no_match"] is False, found
        assert found["lessons"][0]["id"] == lesson, found
        say(name, f"explain_error ({era} protocol)")

    hits = inspector.call("search", {"query": "zork budget of the quux", "kind": "lesson"})["hits"]
    assert lesson in [hit["id"] for hit in hits], hits
    say(name, "search")

    record = inspector.call("get", {"id": lesson, "detail": "full"})
    assert LESSON["cause"] in record["markdown"], record
    say(name, "get")

    outcome = inspector.call("report_outcome", {"id": lesson, "helped": True, "note": "it built"})
    assert (outcome["helped"], outcome["did_not"]) == (1, 0), outcome
    say(name, "report_outcome")

    (content,) = inspector.ask("resources/read", "--uri", f"herdbook://record/{lesson}")["contents"]
    assert content["mimeType"] == "text/markdown", content
    assert LESSON["cause"] in content["text"], content
    say(name, "resources/read")

    prompt = inspector.ask("prompts/get", "--prompt-name", "look_up_error", "--prompt-args", "error_text=zork overflow")
    assert "zork overflow" in prompt["messages"][0]["content"]["text"], prompt
    say(name, "prompts/get")

    checked = inspector.call("check", {"kernel": "gemm", "shape": "512x512x512"})
    assert checked["ok"], checked
    say(name, "check")

    compiled = inspector.call("compile", {"program_text": COPY})
    assert compiled["ok"], compiled
    say(name, "compile")

    ran = inspector.call("run", {"artefact": compiled["artefact"]})
    assert ran["ok"], ran
    say(name, "run")

    assert inspector.call("job", {"id": ran["job"]})["job"]["state"] == "done"
    say(name, "job")

    verdict = inspector.call(
        "gate", {"actual": f"{ran['outputs']}#arg0", "reference": f"{ran['outputs']}#arg1", "rtol": 0, "atol": 0}
    )
    assert verdict["passed"], verdict
    say(name, "gate")

    refused = inspector.run("tools/call", "--tool-name", "get", "--tool-args-json", '{"id": "zzzz"}')
    assert refused.returncode == TOOL_ERROR, refused
    assert "use search to find records" in refused.stdout, refused
    say(name, "an unknown id is a tool error that says what to do")


def over_stdio(folder: Path) -> None:
    """`herdbook serve`, started by the Inspector."""
    home = ["-e", f"HERDBOOK_HOME={folder / 'home'}", "-e", "HERDBOOK_DENSE=0"]
    check("stdio", Inspector(folder, [*home, "--", HERDBOOK, "serve"]))


def over_http(folder: Path) -> None:
    """`herdbook serve --http` with a token."""
    token = secrets.token_urlsafe(24)
    with serving(folder, token) as url:
        check("http", Inspector(folder, ["--header", f"Authorization: Bearer {token}", "--server-url", url]))
        refused = Inspector(folder, ["--server-url", url]).run("tools/list")
        assert refused.returncode not in (0, TOOL_ERROR), refused
        assert "401" in refused.stderr or "auth" in refused.stderr.lower(), refused
        say("http", "without the token nothing is answered")


@contextmanager
def serving(folder: Path, token: str) -> Iterator[str]:
    """The URL of a running HTTP server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HERDBOOK_")}
    environment |= {"HERDBOOK_HOME": str(folder / "home"), "HERDBOOK_DENSE": "0", "HERDBOOK_TOKEN": token}
    with (folder / "stderr").open("w", encoding="utf-8") as log:
        server = subprocess.Popen([HERDBOOK, "serve", "--http", "--port", str(port)], env=environment, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                said = (folder / "stderr").read_text(encoding="utf-8")
                assert server.poll() is None, f"the server ended: {said}"
                assert time.monotonic() < deadline, f"the server does not listen: {said}"
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.terminate()
        server.wait(10)


def say(transport: str, what: str) -> None:
    print(f"PASS inspector {transport}: {what}", flush=True)


def main() -> int:
    """The exit code."""
    failures = 0
    for over in (over_stdio, over_http):
        with tempfile.TemporaryDirectory(prefix="herdbook-inspector-", ignore_cleanup_errors=True) as folder:
            try:
                over(Path(folder))
            except (AssertionError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
                failures += 1
                print(f"FAIL inspector {over.__name__.removeprefix('over_')}: {error!r}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
