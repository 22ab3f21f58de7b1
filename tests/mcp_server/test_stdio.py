"""`herdbook serve` as a client meets it: protocol versions, a clean standard output, bad input, no network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Start = Callable[[], Any]
Site = Callable[[str], None]

TOOLS = [
    "explain_error", "search", "get", "contribute_lesson", "report_outcome", "check", "compile", "run", "job", "gate",
    "deployment", "harvest",
]  # fmt: skip
STATELESS = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def text(result: dict[str, Any]) -> str:
    return result["content"][0]["text"]


# -- protocol versions -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
def test_a_client_with_a_handshake_gets_the_version_it_asked_for(serve: Start, version: str) -> None:
    server = serve()
    hello = server.initialize(version)
    assert hello["protocolVersion"] == version
    assert hello["serverInfo"]["name"] == "herdbook"
    assert "explain_error" in hello["instructions"]
    assert [tool["name"] for tool in server.request("tools/list")["result"]["tools"]] == TOOLS
    assert server.leave() == 0


def test_an_unknown_version_is_answered_with_one_we_speak(serve: Start) -> None:
    assert serve().initialize("1999-01-01")["protocolVersion"] == "2025-11-25"


def test_a_stateless_client_needs_no_handshake(serve: Start) -> None:
    server = serve()
    found = server.request("server/discover", {"_meta": STATELESS})["result"]
    assert "2026-07-28" in found["supportedVersions"]
    assert "explain_error" in found["instructions"]
    result = server.request(
        "tools/call",
        {"name": "search", "arguments": {"query": "buffer descriptor"}, "_meta": STATELESS},
    )["result"]
    assert result["structuredContent"]["hits"]
    assert server.leave() == 0


def test_no_announcements_are_promised_in_either_era(serve: Start) -> None:
    """Nothing in the server announces a change, so a client must not wait for one."""
    with_handshake = serve().initialize()["capabilities"]
    stateless = serve().request("server/discover", {"_meta": STATELESS})["result"]["capabilities"]
    for capabilities in (with_handshake, stateless):
        assert set(capabilities) == {"prompts", "resources", "tools"}
        assert not any(value for part in capabilities.values() for value in part.values())


# -- standard output belongs to the protocol -------------------------------------------------------

NOISY = """
import os, sys
class Noisy:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"mcp", "pydantic", "numpy", "kb", "anyio"}:
            print("printed while importing", name)
            sys.stdout.flush()
            os.write(1, f"written while importing {name}\\n".encode())
        return None
"""


def test_nothing_but_protocol_reaches_standard_output(serve: Start, sitecustomize: Site) -> None:
    """A module that prints while it is imported, at the start or at the first question, is heard on standard error."""
    sitecustomize(
        NOISY
        + """
import mcp_server.wire
real = mcp_server.wire.claim
def claim():
    wire = real()
    if not any(isinstance(finder, Noisy) for finder in sys.meta_path):
        sys.meta_path.insert(0, Noisy())
    return wire
mcp_server.wire.claim = claim
"""
    )
    server = serve()
    server.initialize()
    server.call("explain_error", {"error_text": "error: Allocator exhausted available buffer descriptor IDs."})
    assert server.leave() == 0
    said = server.errors.read_text(encoding="utf-8")
    for package in ("mcp", "numpy", "kb"):
        assert f"printed while importing {package}" in said
        assert f"written while importing {package}" in said


def test_a_module_that_prints_would_be_seen(serve: Start, sitecustomize: Site) -> None:
    """Guards the guard above: without the claim the same module spoils standard output."""
    sitecustomize(NOISY + "import mcp_server.wire\nsys.meta_path.insert(0, Noisy())\nimport numpy\n")
    server = serve()
    with pytest.raises(ValueError, match="Expecting value"):
        server.receive()


def test_a_child_process_and_a_print_during_a_call_stay_off_the_wire(serve: Start, sitecustomize: Site) -> None:
    sitecustomize(
        """
import subprocess, sys
import kb.memory
explain = kb.memory.Memory.explain
def loud(self, *args, **options):
    print("printed during a call", flush=True)
    subprocess.run([sys.executable, "-S", "-c", "import sys; print('child', repr(sys.stdin.read()))"])
    return explain(self, *args, **options)
kb.memory.Memory.explain = loud
"""
    )
    server = serve()
    server.initialize()
    assert "no_match" in text(server.call("explain_error", {"error_text": "error: boom"}))
    assert server.leave() == 0
    said = server.errors.read_text(encoding="utf-8")
    assert "printed during a call" in said
    assert "child ''" in said


# -- bad input --------------------------------------------------------------------------------------


@pytest.fixture
def server(lasting_server: Any) -> Any:
    """The server all tests of bad input share; it must still answer when each is over."""
    yield lasting_server
    assert lasting_server.request("ping", request_id="still there")["result"] == {}


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (b"garbage", -32700, "not JSON (expected value at line 1 column 1)"),
        (b"\xff\xfe\x00", -32700, "not JSON"),
        (b'{"jsonrpc": "2.0", "id": 5, "method": "ping"', -32700, "EOF while parsing"),
        (b'{"jsonrpc": "2.0", "id": 5, "method": "a\x00b"}', -32700, "control character"),
        (b"[" * 100_000, -32700, "recursion limit"),
        (b"[]", -32600, "not a JSON-RPC 2.0 message"),
        (b"null", -32600, "not a JSON-RPC 2.0 message"),
        (b'"ping"', -32600, "not a JSON-RPC 2.0 message"),
        (b'[{"jsonrpc": "2.0", "id": 5, "method": "ping"}]', -32600, "one a line"),
        (b'{"id": 5, "method": "ping"}', -32600, "jsonrpc"),
        (b'{"jsonrpc": "1.0", "id": 5, "method": "ping"}', -32600, "2.0"),
    ],
)
def test_a_line_that_is_no_message_is_answered(server: Any, line: bytes, code: int, said: str) -> None:
    server.send(line)
    answer = server.receive()
    assert answer["error"]["code"] == code
    assert said in answer["error"]["message"]
    assert answer["id"] == (5 if line.startswith(b"{") and code == -32600 else None)


def test_empty_lines_are_nothing(server: Any) -> None:
    server.send(b"")
    server.send(b"  \r")


def test_half_a_surrogate_pair_is_read_as_a_replacement_character(server: Any) -> None:
    """What a JSON writer makes of a log cut in the middle of an emoji."""
    halves = (r"\ud83d", r"\uDE00 \uD83D", r"a\ud83d\u0041")
    for half in halves:
        server.send(
            b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "explain_error", '
            b'"arguments": {"error_text": "error: Repeat count exceeds the [0:255] range. %s"}}}' % half.encode()
        )
        assert server.receive()["result"]["structuredContent"]["lessons"]


def test_whole_pairs_and_escaped_backslashes_are_left_alone(server: Any) -> None:
    server.send(
        rb'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "get\ud83d\ude00\\ud83d\ud83d"}}'
    )
    assert server.receive()["result"]["content"][0]["text"] == "Unknown tool: get\U0001f600\\ud83d\ufffd"


def test_a_paste_of_fifty_megabytes_is_answered(server: Any) -> None:
    line = "error: 'aie.tile' op allocated buffers exceeded available memory\n"
    result = server.call("explain_error", {"error_text": line * (50_000_000 // len(line))})
    assert result["structuredContent"]["lessons"]
    assert len(text(result)) < 10_000


def test_a_larger_paste_is_refused_with_advice(server: Any) -> None:
    result = server.call("explain_error", {"error_text": "x" * (64 * 1024 * 1024 + 1)})
    assert result["isError"]
    assert "send the end of the log" in text(result)
    assert len(text(result)) < 1000


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("explain_error", {}, "error_text\n  Field required"),
        ("explain_error", {"error_text": 5}, "error_text\n  Input should be a valid string"),
        ("explain_error", {"error_text": None}, "error_text\n  Input should be a valid string"),
        ("explain_error", {"error_text": ["a"]}, "error_text\n  Input should be a valid string"),
        ("explain_error", {"error_text": "x", "limit": 99}, "limit\n  Input should be less than or equal to 10"),
        ("explain_error", {"error_text": "x", "detail": "huge"}, "'concise' or 'full'"),
        ("explain_error", {"error_text": "x", "versions": "new"}, "versions\n  Input should be a valid dictionary"),
        ("explain_error", {"error_text": "x", "device": "d" * 41}, "at most 40 characters"),
        ("search", {"query": ""}, "query\n  String should have at least 1 character"),
        ("search", {"query": "x" * 20_001}, "at most 20000 characters"),
        ("search", {"query": "x", "kind": "poem"}, "'lesson', 'kernel_note'"),
        ("get", {}, "id\n  Field required"),
        ("get", {"id": "../../../etc/passwd"}, "no record '../../../etc/passwd'"),
        ("get", {"id": "zz\u0000zz"}, "use search to find records"),
        ("report_outcome", {"id": "zzzz", "helped": True}, "no record 'zzzz'; use search to find records"),
        ("report_outcome", {"id": "x", "helped": "perhaps"}, "helped\n  Input should be a valid boolean"),
        ("contribute_lesson", {"title": "a title"}, "symptom\n  Field required"),
        ("contribute_lesson", {"title": "t" * 161, "symptom": "sss", "cause": "ccc", "fix": "fff"}, "at most 160"),
        ("no_such_tool", {}, "Unknown tool: no_such_tool"),
    ],
)
def test_a_bad_call_is_an_error_that_names_what_to_change(
    server: Any, tool: str, arguments: dict[str, Any], said: str
) -> None:
    result = server.call(tool, arguments)
    assert result["isError"]
    assert said in text(result)
    assert len(text(result)) < 2500


@pytest.mark.parametrize("arguments", ["text", 5, ["a"]])
def test_arguments_that_are_no_object_are_refused(server: Any, arguments: object) -> None:
    answer = server.request("tools/call", {"name": "search", "arguments": arguments})
    assert answer["error"]["code"] == -32602


def test_an_unknown_method_is_refused(server: Any) -> None:
    assert server.request("tools/explode")["error"]["code"] == -32601


@pytest.mark.parametrize(
    "paste", ["a\u0000b", "\x1b[31merror:\x1b[0m boom", "\u202e\u0007", "\ufffe", "   ", "\n" * 5000]
)
def test_odd_text_is_answered(server: Any, paste: str) -> None:
    assert server.call("explain_error", {"error_text": paste})["structuredContent"]["next_step"]


# -- leaving, and the network ----------------------------------------------------------------------


def test_a_closed_standard_input_ends_the_server_with_zero(serve: Start) -> None:
    never_spoken_to = serve()
    assert never_spoken_to.leave() == 0
    asked = serve()
    asked.initialize()
    asked.call("search", {"query": "x"})
    assert asked.leave() == 0


NO_NETWORK = """
import socket
def refuse(*args, **options):
    raise RuntimeError("the network was used: %r" % (args[1:] or args,))
class Guarded(socket.socket):
    connect = connect_ex = sendto = refuse
socket.socket = socket.SocketType = Guarded
socket.getaddrinfo = socket.gethostbyname = socket.create_connection = refuse
"""


def test_answering_takes_no_network(serve: Start, sitecustomize: Site, environment: dict[str, str]) -> None:
    """Dense search included where the weights are here: nothing is fetched to make it work."""
    sitecustomize(NO_NETWORK)
    environment["HERDBOOK_DENSE"] = "1"
    server = serve()
    server.initialize()
    asked = {"error_text": "error: Repeat count exceeds the [0:255] range."}
    assert server.call("explain_error", asked)["structuredContent"]["lessons"]
    for tool, arguments in (("search", {"query": "output is all zeros"}), ("get", {"id": "zzzz"})):
        assert "network" not in text(server.call(tool, arguments))
    assert server.leave() == 0
    assert "the network was used" not in server.errors.read_text(encoding="utf-8")


def test_the_network_guard_bites(serve: Start, sitecustomize: Site) -> None:
    """Guards the guard: a memory made to fetch something is caught."""
    sitecustomize(
        NO_NETWORK
        + """
import kb.memory
explain = kb.memory.Memory.explain
def curious(self, *args, **options):
    import urllib.request
    urllib.request.urlopen("http://127.0.0.1:9/")
    return explain(self, *args, **options)
kb.memory.Memory.explain = curious
"""
    )
    server = serve()
    server.initialize()
    assert server.call("explain_error", {"error_text": "error: boom"})["isError"]
    assert server.leave() == 0
    assert "RuntimeError: the network was used" in server.errors.read_text(encoding="utf-8")
