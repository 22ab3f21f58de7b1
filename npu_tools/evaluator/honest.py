"""Small deployments made honestly by the machine, in processes of their own, for the evaluator's bench.

    make_honest(Making(folder, kernels))
    python -m npu_tools.evaluator.honest MAKING.json

Each takes a tiny seeded model through phases 0 to 6 on the emulator, with one gate that fails and is then put right.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from npu_tools.errors import UnusableInput
from npu_tools.process import blas_threads, run_child

TINY: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_hidden_layers": 2, "hidden_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "vocab_size": 512,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip
SEQ_LEN, PROMPTS, STEPS = 64, 2, 32
TOO_LARGE = 8192
TIMEOUT_S = 1200.0


@dataclass(frozen=True, slots=True)
class Making:
    """How a deployment is made. `recipes` are texts put at the end of recipe files; `stop_at` kills the process when
    the ledger has so many lines, and starts it again."""

    folder: str
    kernels: str
    seed: int = 7
    threads: int = 1
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    settings: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    recipes: dict[str, str] = field(default_factory=dict[str, str])
    checkpoints: tuple[int, ...] = ()
    fails_first: bool = True
    stop_at: int = 0


def make_honest(making: Making) -> Path:
    """The workspace, deployed as far as phase 6.

    Raises:
        UnusableInput: the deployment did not come so far; the text has its last words.
    """
    with tempfile.TemporaryDirectory(prefix="honest-", ignore_cleanup_errors=True) as place:
        path = Path(place) / "making.json"
        path.write_text(json.dumps(asdict(making)), encoding="utf-8")
        if making.stop_at:
            _killed(making, path)
        done = run_child(_command(making, path), timeout_s=TIMEOUT_S)
    if not done.ok:
        said = done.text.strip()[-1500:]
        raise UnusableInput(f"the deployment in {making.folder} ended with {done.code}: {said}")
    return Path(making.folder)


def _command(making: Making, path: Path) -> list[str]:
    code = f"import os,sys;{blas_threads(making.threads)}from npu_tools.evaluator.honest import main; sys.exit(main(sys.argv[1]))"
    return [sys.executable, "-P", "-c", code, str(path)]


def _killed(making: Making, path: Path) -> None:
    """Start it, and end it hard once its ledger is long enough."""
    ledger = Path(making.folder) / "ledger.jsonl"
    process = subprocess.Popen(  # noqa: S603
        _command(making, path), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < until:
        if ledger.is_file() and ledger.read_bytes().count(b"\n") >= making.stop_at:
            break
        time.sleep(0.02)
    ended = process.poll()
    process.kill()
    process.wait()
    if ended is not None:
        raise UnusableInput(f"the deployment in {making.folder} ended with {ended} before it could be killed")


def main(path: str) -> int:
    """Make the deployment of a making's file; 0 when phases 0 to 6 have passed."""
    made: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    made["checkpoints"] = tuple(made["checkpoints"])
    return _made(Making(**made))


def _made(making: Making) -> int:
    from npu_tools.deployment.machine import Machine, Model, OpenOptions
    from npu_tools.deployment.workspace import Workspace
    from npu_tools.deployment.world import RealWorld

    kernels = Path(making.kernels)
    machine = Machine(Workspace(Path(making.folder)), RealWorld(kernels), kernels)
    options = OpenOptions(seq_len=SEQ_LEN, prompts=PROMPTS, steps=STEPS, checkpoints=making.checkpoints)
    fresh = not (Path(making.folder) / "ledger.jsonl").exists()
    machine.open(Model("tiny", {**TINY, **making.config}, f"random:{making.seed}"), options)
    if making.fails_first:
        _fail_and_mend(machine, fresh)
    if fresh:
        for key, values in making.settings.items():
            machine.set(key, values, why="tried by hand")
        for name, text in making.recipes.items():
            kernel, _, file = name.partition("/")
            machine.write_recipe(kernel, file, machine.read_recipe(kernel, file) + text, why="said more clearly")
    while True:
        ran = machine.run(last=6)
        if ran.state != "asked" or ran.question is None:
            break
        machine.answer(ran.question.options[0], checkpoint=ran.question.seq)
    print(ran.state, ran.phase, ran.summary)
    return 0 if ran.state in ("passed", "finished") else 1


def _fail_and_mend(machine: Any, fresh: bool) -> None:
    """A tile no core has room for, what the gate said of it, and the choice taken back; also after a kill in it."""
    if fresh:
        machine.set("gemm", {"tile_m": TOO_LARGE}, why="fewer, larger tiles")
    if machine.state().settings.get("gemm", {}).get("tile_m") != TOO_LARGE:
        return
    ran = machine.run(last=1)
    for failed in ran.failures:
        machine.note("the tile does not fit a core; the rules choose again", about=failed.seq)
    machine.set("gemm", {"tile_m": None}, why="back to the rules")


def run_shallow(folder: Path, kernels: Path) -> None:
    """The logits of every gated prompt made again without the last layer: not honest, for cheats.py."""
    import numpy as np

    from npu_tools.backends import EmulatorBackend
    from npu_tools.evaluator.claims import prompts_of, read_claims, subject
    from npu_tools.gate.tokens import top_k
    from npu_tools.models.runner import Runner
    from npu_tools.models.weights import open_weights

    claims = read_claims(folder, kernels)
    weights = open_weights(claims.weights, claims.config)
    runner = Runner(
        claims.dims, weights, [kernels], EmulatorBackend(), claims.seq_len, layers=claims.dims.layers - 1
    )  # fmt: skip
    for entry in claims.model_gates():
        steps = int(subject(entry)["steps"])
        places = {Path(path).parent for path in entry.body["digests"]["results"] if path.endswith("_logits.npy")}
        for number, prompt in enumerate(prompts_of(entry)):
            rows = [np.asarray(runner.prefill(prompt).logits, np.float32).reshape(-1)]
            while len(rows) < steps:
                rows.append(np.asarray(runner.decode(top_k(rows[-1], 1)[0]), np.float32).reshape(-1))
            for place in places:
                np.save(folder / place / f"prompt_{number:02d}_logits.npy", np.stack(rows))
