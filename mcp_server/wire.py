"""The two ends of the stdio transport: what is no message is answered, not swallowed.

The SDK drops a line it cannot read, and whoever sent it waits until it gives up. One such line is
common: a log cut in the middle of an emoji ends in half a surrogate pair, which JSON writers escape
as `"\\ud83d"` and strict readers refuse. Here that half becomes U+FFFD, and every other line that is no
JSON-RPC message gets an error saying so. Imports nothing heavy: `claim` comes before everything else.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    import anyio

_SURROGATE = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""An escaped backslash or a whole pair, to step over; in group 1, a half."""


class NoMessage(ValueError):
    """A line that is no JSON-RPC message; the text is the error to answer with."""


@cache
def claim() -> tuple[int, int]:
    """Private copies of standard input and output; from the first call on, 0 is empty and 1 is standard error.

    So neither a module that prints while it loads nor a child process reaches the client.
    """
    wire = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return wire


def ends() -> tuple[anyio.AsyncFile[str], anyio.AsyncFile[str]]:
    """The claimed wire as `mcp.server.stdio.stdio_server` takes it."""
    import anyio

    incoming, outgoing = claim()
    out = _Outgoing(os.fdopen(outgoing, "wb", buffering=0, closefd=False), anyio.Lock())
    lines = _Incoming(os.fdopen(incoming, "rb", closefd=False), out)
    return cast("anyio.AsyncFile[str]", lines), cast("anyio.AsyncFile[str]", out)


class _Outgoing:
    """One whole message a `write`, whoever writes."""

    def __init__(self, file: BinaryIO, lock: anyio.Lock) -> None:
        self._file = file
        self._lock = lock

    async def write(self, text: str) -> None:
        from anyio import to_thread

        async with self._lock:
            await to_thread.run_sync(self._write, text.encode("utf-8"))

    async def flush(self) -> None:
        """Nothing is held back."""

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]


class _Incoming:
    """The client's messages, line by line."""

    def __init__(self, file: BinaryIO, out: _Outgoing) -> None:
        self._file = file
        self._out = out

    def __aiter__(self) -> _Incoming:
        return self

    async def __anext__(self) -> str:
        from anyio import to_thread

        while True:
            try:
                line = await to_thread.run_sync(self._read)
            except NoMessage as error:
                await self._out.write(f"{error}\n")
                continue
            if not line:
                raise StopAsyncIteration
            return line

    def _read(self) -> str:
        for line in self._file:
            if not line.isspace():
                return message(line)
        return ""


def message(line: bytes) -> str:
    """The line as text the SDK will read.

    Raises:
        NoMessage: it is no JSON-RPC message.
    """
    text = line.decode("utf-8", "replace")
    wrong = _wrong(text)
    if wrong is None:
        return text
    mended = _SURROGATE.sub(lambda found: "\\ufffd" if found[1] else found[0], text)
    if mended != text:
        wrong = _wrong(mended)
        if wrong is None:
            return mended
    raise NoMessage(_refusal(mended, wrong))


def _wrong(text: str) -> str | None:
    """What keeps `text` from being JSON, "" if it is JSON but no message, None if nothing is wrong."""
    from mcp_types import jsonrpc_message_adapter
    from pydantic import ValidationError

    try:
        jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return str(first.get("ctx", {}).get("error", "?")) if first["type"] == "json_invalid" else ""
    return None


def _refusal(text: str, wrong: str) -> str:
    from mcp_types import INVALID_REQUEST, PARSE_ERROR

    if wrong:
        error = {"code": PARSE_ERROR, "message": f"not JSON ({wrong}): send one JSON-RPC 2.0 message a line"}
    else:
        said = 'not a JSON-RPC 2.0 message: send {"jsonrpc": "2.0", "id": …, "method": …, "params": {…}}, one a line'
        error = {"code": INVALID_REQUEST, "message": said}
    return json.dumps({"jsonrpc": "2.0", "id": None if wrong else _id_in(text), "error": error})


def _id_in(text: str) -> int | str | None:
    data: object = json.loads(text)
    found = cast("dict[str, object]", data).get("id") if isinstance(data, dict) else None
    return found if isinstance(found, int | str) and not isinstance(found, bool) else None
