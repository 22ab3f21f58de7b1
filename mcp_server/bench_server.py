"""Measure the server from outside, as a client sees it: start, memory, warm latency as the store grows.

The bare server it is compared with is the SDK's own with one trivial tool, started in turn with
ours in the same run. Records that grow the store are seeded combinations of corpus words; their
vectors are random unit vectors, since the time of a product does not depend on what is in it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from mcp_server.config import Config

STARTS = 5
"""Starts of each server, in turn; medians are reported."""
PASTE_LINES = 60

_BARE = """
from mcp.server import MCPServer
server = MCPServer("bare")
@server.tool()
def echo(text: str) -> str:
    return text
server.run("stdio")
"""


def run(config: Config, sizes: list[int], questions: int, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """All figures, as the command prints them."""
    with tempfile.TemporaryDirectory(prefix="herdbook-bench-") as folder:
        home = Path(folder) / "home"
        models = config.home / "models"
        if models.exists():  # weights put there by `setup` serve the bench home too
            shutil.copytree(models, home / "models")
        chosen = replace(config, home=home)
        start = asyncio.run(_starts(chosen))
        warm: list[dict[str, Any]] = []
        grown = 0
        for size in sorted(sizes):
            _grow(chosen, grown, size, progress)
            grown = max(grown, size)
            for dense in (True, False):
                warm.append({"records": size, "dense": dense, **asyncio.run(_warm(chosen, dense, questions))})
        for row in warm:
            first = next(r for r in warm if r["dense"] == row["dense"])
            row["ratio"] = row["p95_ms"] / first["p95_ms"]
    conditions = {"questions": questions, "paste_lines": PASTE_LINES, "starts": STARTS, "cpus": os.cpu_count(),
                  "python": platform.python_version(), "load_1m": _load()}  # fmt: skip
    return {"start": start, "warm": warm, "conditions": conditions}


def environment(config: Config, dense: bool = True) -> dict[str, str]:
    """What a child server needs to see of `config`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HERDBOOK_")}
    env["HERDBOOK_HOME"] = str(config.home)
    env["HERDBOOK_DENSE"] = "1" if dense else "0"
    weights = next((str(f) for f in config.weights if (f / "model.safetensors").exists()), "")
    if weights:
        env["HERDBOOK_WEIGHTS"] = weights
    return env


async def _starts(config: Config) -> dict[str, Any]:
    ours: list[float] = []
    bare: list[float] = []
    answers: list[float] = []
    resident: float | None = None
    for _ in range(STARTS):
        bare.append((await _one_start([sys.executable, "-c", _BARE], environment(config), ask=False))[0])
        command = [sys.executable, "-c", "from mcp_server.serve import main; main([])"]
        initialized, answered, memory = await _one_start(command, environment(config), ask=True)
        ours.append(initialized)
        answers.append(answered)
        resident = memory or resident
    return {
        "initialize_s": statistics.median(ours), "bare_initialize_s": statistics.median(bare),
        "first_answer_s": statistics.median(answers), "resident_mb": resident,
    }  # fmt: skip


async def _one_start(command: list[str], env: dict[str, str], *, ask: bool) -> tuple[float, float, float | None]:
    """Seconds from process start to the answers of `initialize` and of `explain_error`; resident MB."""
    began = time.perf_counter()
    server = await _Server.start(command, env)
    await server.initialize()
    initialized = time.perf_counter() - began
    answered, memory = 0.0, None
    if ask:
        await server.call("explain_error", {"error_text": paste(random.Random(1))})
        answered = time.perf_counter() - began
        memory = _resident_mb(server.process.pid)
    await server.stop()
    return initialized, answered, memory


async def _warm(config: Config, dense: bool, questions: int) -> dict[str, float]:
    command = [sys.executable, "-c", "from mcp_server.serve import main; main([])"]
    server = await _Server.start(command, environment(config, dense))
    await server.initialize()
    rng = random.Random(2)
    for _ in range(8):
        await server.call("explain_error", {"error_text": paste(rng)})
    # The background thread may still be taking in vectors; wait until answers settle.
    for _ in range(40):
        began = time.perf_counter()
        await server.call("explain_error", {"error_text": paste(rng)})
        if time.perf_counter() - began < 0.5:
            break
        await asyncio.sleep(0.5)
    await asyncio.sleep(1.0)
    times: list[float] = []
    for _ in range(questions):
        text = paste(rng)
        began = time.perf_counter()
        await server.call("explain_error", {"error_text": text})
        times.append((time.perf_counter() - began) * 1000)
    await server.stop()
    times.sort()
    return {"p50_ms": times[len(times) // 2], "p95_ms": times[min(len(times) - 1, int(0.95 * len(times)))]}


class _Server:
    """A stdio server spoken to in plain JSON-RPC lines, so that the client adds nothing to the times."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._id = 0

    @classmethod
    async def start(cls, command: list[str], env: dict[str, str]) -> _Server:
        process = await asyncio.create_subprocess_exec(
            *command, env=env, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, limit=2**26,
        )  # fmt: skip
        return cls(process)

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._id += 1
        await self._send({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        assert self.process.stdout is not None
        while True:
            line = await self.process.stdout.readline()
            if not line:
                raise RuntimeError(f"the server ended before it answered {method}")
            message = _parse(line)
            if message.get("id") == self._id:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    async def initialize(self) -> None:
        info = {"name": "herdbook-bench", "version": "1"}
        await self.request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info})
        await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result = await self.request("tools/call", {"name": tool, "arguments": arguments})
        if result.get("isError"):
            raise RuntimeError(str(result["content"])[:300])
        return result

    async def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 5)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    async def _send(self, message: dict[str, Any]) -> None:
        import json

        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()


def _parse(line: bytes) -> dict[str, Any]:
    import json

    return json.loads(line)


_NOISE = (
    "[aircc] pass {n}/51 air-dependency            {n}.36 s", "make[1]: Entering directory '/data/ws/{n}/examples'",
    "warning: overriding the module target triple with aie2p-none-unknown-elf [-Woverride-module]",
    "  mm_{n}.o   1.{n} s", "[ {n}/99] building module text ({n}0{n} lines)", "-- Generating done ({n}.4s)",
    "INFO:root:using artifacts in build_{n}", "Loading checkpoint shards: {n}%|###       |", "collected {n} items",
)  # fmt: skip
_ERRORS = (
    "error: 'aiex.dma_configure_task' op Allocator exhausted available buffer descriptor IDs.",
    "error: 'aie.tile' op allocated buffers exceeded available memory",
    "RuntimeError: Command failed to complete successfully (ERT_CMD_STATE_TIMEOUT)",
    "DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=-22)",
    "error: Repeat count exceeds the [0:255] range.",
    "ImportError: DLL load failed while importing pyxrt: The specified module could not be found.",
)


def paste(rng: random.Random) -> str:
    """A raw paste of 60 lines: build noise around one real diagnostic and its neighbours."""
    lines = [rng.choice(_NOISE).format(n=rng.randint(1, 50)) for _ in range(PASTE_LINES)]
    at = rng.randint(20, PASTE_LINES - 4)
    lines[at : at + 3] = [f"matvec M={rng.choice([512, 2048])} K=8192 tile_m={rng.choice([2, 4, 8])}", rng.choice(_ERRORS),
                          f"note: tile ({rng.randint(0, 7)}, {rng.randint(2, 5)}) see current operation"]  # fmt: skip
    return "\n".join(lines)


def _grow(config: Config, have: int, want: int, progress: Callable[[int, int], None]) -> None:
    """Add seeded lessons and random vectors until the home holds `want` user records."""
    from kb import Lesson, open_memory
    from kb.embed import DIMENSIONS, MODEL_NAME
    from kb.records import Provenance
    from kb.store import fingerprint
    from kb.tokens import terms

    if want <= have:
        return
    memory = open_memory(config.memory())
    store = memory.store
    assert store is not None
    words = sorted(
        {w for r in memory.corpus.records.values() if isinstance(r, Lesson) for w in terms(r.symptom) if w.isalpha()}
    )
    rng = random.Random(have)
    generator = np.random.default_rng(have)

    def some(count: int) -> str:
        return " ".join(rng.choices(words, k=count))

    source = [Provenance(evidence="bench", date=date(2026, 1, 1))]
    for start in range(have, want, 1000):
        vectors: list[tuple[str, str, bytes]] = []
        with store.transaction():
            for number in range(start, min(start + 1000, want)):
                lesson = Lesson(
                    id=f"bench-{number}", title=some(8), category="process", provenance=source,
                    symptom=f"{some(20)}\n```\nerror: {some(9)} {number}\n```", cause=some(30), fix=some(30),
                )  # fmt: skip
                store.add(lesson)
                vector = generator.standard_normal(DIMENSIONS)
                vector /= np.linalg.norm(vector)
                vectors.append((lesson.id, fingerprint(lesson), vector.astype(np.float16).tobytes()))
            store.put_vectors(MODEL_NAME, vectors)
        memory.refresh()
        progress(start, want)
    memory.close()


def _resident_mb(pid: int) -> float | None:
    """Resident memory of a process; None where the platform does not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    line = next((line for line in status.splitlines() if line.startswith("VmRSS")), "")
    return round(int(line.split()[1]) / 1024, 1) if line else None


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
