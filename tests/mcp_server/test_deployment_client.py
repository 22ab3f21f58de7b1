"""An agent that knows only MCP takes a tiny model through all eight phases, with one failure planted in each.

The script speaks JSON-RPC to `herdbook serve` and nothing else: no imports of ours, no shell, no files. Of a failed gate
it reads what the tool returns, looks the lesson or skill up, and does what PLAYBOOK has for the words of that text: the
failure's own name is not enough.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_hidden_layers": 2, "hidden_size": 512,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 512, "vocab_size": 512,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 256,
}  # fmt: skip
START = {"action": "start", "options": {"weights": "random:7", "seq_len": 64, "prompts": 2, "steps": 8}}


class Server(Protocol):
    """What the script has of the world."""

    def call(self, tool: str, arguments: object) -> dict[str, Any]: ...


class Agent:
    """The script: it plants, runs, reads, looks up, fixes, and says what fixed it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.planted: dict[str, Any] = {}
        self.fixed: list[tuple[int, str, str]] = []
        self.unnoted: list[tuple[int, str]] = []

    def deployment(self, **arguments: Any) -> dict[str, Any]:
        result = self.server.call("deployment", {"workspace": "tiny", **arguments})
        assert not result.get("isError"), result["content"]
        return result["structuredContent"]

    def run(self, until: int = 7) -> dict[str, Any]:
        reply = self.deployment(action="run", until=until, wait_s=25)
        while reply["state"] == "running":
            reply = self.deployment(action="run", until=until, wait_s=25)
        return reply

    def look_up(self, failure: dict[str, Any]) -> tuple[str, str]:
        """The first lesson's text, or without one the phase's skill, and its name."""
        name = failure["lessons"][0]["id"] if failure["lessons"] else failure["skills"][-1]
        result = self.server.call("get", {"id": name, "detail": "full"})
        assert not result.get("isError"), result["content"]
        return name, result["structuredContent"]["markdown"].casefold()

    def fix(self, reply: dict[str, Any]) -> None:
        """Look the first failure up and do what its lesson says."""
        failure = reply["failures"][0]
        assert failure["fixed_when"], failure
        name, text = self.look_up(failure)
        text += " ".join(failure["fixed_when"]).casefold()
        words, action = next((words, action) for words, action in PLAYBOOK if all(word in text for word in words))
        action(self, failure)
        self.fixed.append((reply["next_phase"], name, " ".join(words)))
        if reply["next_phase"] != 6:
            self.unnoted.append((failure["line"], f"{name}: {failure['message'][:200]}"))


def full_attention(agent: Agent, _: dict[str, Any]) -> None:
    agent.deployment(**START, config=CONFIG)


def remedied_tiles(agent: Agent, failure: dict[str, Any]) -> None:
    """The lesson says smaller tiles; the finding's remedy says which numbers pass for this shape."""
    numbers = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", failure["remedy"])}
    assert numbers, failure
    for key in agent.planted:
        agent.deployment(action="set", key=key, settings=numbers, why="the remedy")


def configured_epsilon(agent: Agent, _: dict[str, Any]) -> None:
    for key in list(agent.planted):
        agent.deployment(action="set", key=key, settings={"eps": CONFIG["rms_norm_eps"]}, why="as config.json has it")


def nothing_static(agent: Agent, _: dict[str, Any]) -> None:
    for key in list(agent.planted):
        agent.deployment(action="set", key=key, settings={"static": None}, why="activations are written at every call")


def notes_written(agent: Agent, _: dict[str, Any]) -> None:
    for line, text in agent.unnoted:
        agent.deployment(action="note", about=line, text=text)


def shipped_recipe(agent: Agent, _: dict[str, Any]) -> None:
    for kernel in agent.planted:
        agent.deployment(action="recipe", kernel=kernel, file="design.py", text="", why="the evaluator's reason")


PLAYBOOK: list[tuple[tuple[str, ...], Callable[[Agent, dict[str, Any]], None]]] = [
    (("sliding window", "mixture"), full_attention),
    (("sliding window", "moe"), full_attention),
    (("rms_norm_eps",), configured_epsilon),
    (("static", "activation"), nothing_static),
    (("allocated buffers exceeded",), remedied_tiles),
    (("phase 6", "a note about each"), notes_written),
    (("evaluator", "verdict.json"), shipped_recipe),
]


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None,
    reason="the reference needs torch and transformers: pip install 'herdbook[models]'",
)
def test_a_client_that_speaks_only_tools_deploys_a_model_and_mends_a_failure_in_every_phase(
    serve: Callable[[], Any], environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "workspace").mkdir()
    environment["HERDBOOK_WORKSPACE"] = str(tmp_path / "workspace")
    server = serve()
    server.initialize()
    agent = Agent(server)

    # 0: a config that attends to a window.
    agent.deployment(**START, config={**CONFIG, "sliding_window": 32, "use_sliding_window": True})
    failed(agent, 0)
    # 1: a tile that does not fit L1.
    plant(agent, "gemm 64x512x512", {"tile_n": 512})
    failed(agent, 1)
    # 2: a norm with another epsilon than the config's: right by itself, wrong in the block.
    plant(agent, "rmsnorm", {"eps": 0.25})
    failed(agent, 2)
    # 3: an activation's buffer declared static: the first token is right, decode is not.
    plant(agent, "buffers/lm_head_gemv", {"static": "0"})
    failed(agent, 3)
    # 4 and 5: the same in ELFs that only merging brings in.
    plant(agent, "buffers/o_ffn_head", {"static": "0,1,2"})
    failed(agent, 4)
    plant(agent, "buffers/o_gemv_ffn", {"static": "0,1,2"})
    failed(agent, 5)
    # 6: nobody wrote down what fixed the failures so far.
    failed(agent, 6)
    # 7: a recipe that passes every gate and reaches out of its bounds.
    design = agent.deployment(action="recipe", kernel="eltwise_add", file="design.py")["text"]
    agent.deployment(
        action="recipe",
        kernel="eltwise_add",
        file="design.py",
        text=design + "\nimport os\n\nHOME = os.environ.get('HOME')\n",
    )
    agent.planted = {"eltwise_add": {}}
    failed(agent, 7)
    reply = agent.run()
    while reply["state"] == "failed":  # what was fixed last needs its notes too
        agent.fix(reply)
        reply = agent.run()
    assert reply["state"] == "finished", json.dumps(reply)[:2000]
    assert {phase for phase, _, _ in agent.fixed} >= set(range(8)), agent.fixed
    assert [phase["status"] for phase in reply["phases"]] == ["passed"] * 8


def plant(agent: Agent, key: str, settings: dict[str, Any]) -> None:
    agent.planted = {key: settings}
    agent.deployment(action="set", key=key, settings=settings)


def failed(agent: Agent, phase: int) -> None:
    """Run into the planted failure, and mend it."""
    reply = agent.run(until=phase)
    assert reply["state"] == "failed", json.dumps(reply)[:3000]
    assert reply["next_phase"] == phase, json.dumps(reply)[:3000]
    agent.fix(reply)
