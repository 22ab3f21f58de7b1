"""One layer of a model in prefill on the emulator, beside the same layer in torch's f32 on one thread, in one run.

>>> measured = measure_layer(None, "llama-3.2-1b", 2048)
>>> measured.ratio, measured.steps

Rules are those of speed.py: both sides in children with one BLAS thread, taking turns, the best of each counts; weights
and angles are in place beforehand on both sides. The emulator's seconds are of every kernel of the layer one after the
other, through the runner: arguments in, lowering where it was not done before, the run, outputs as new arrays. Faithful
numerics, weights from a seed. What the first call took more (weights made, rounded and bound, programs lowered) is
`first_s`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from npu_tools.architectures import Dimensions, published, read_config
from npu_tools.bench.speed import NoPeer, Side, SideFailed

TARGET = 4.0
"""The emulator's seconds over torch's, at most."""


@dataclass(frozen=True, slots=True)
class LayerMeasured:
    """The outcome: (emulator, peer) seconds of each round, processor seconds of the same, and seconds by kernel."""

    model: str
    seq_len: int
    fused: bool
    rounds: tuple[tuple[float, float], ...]
    processor: tuple[tuple[float, float], ...]
    first_s: float
    steps: dict[str, float]
    conditions: dict[str, Any]

    @property
    def ratio(self) -> float:
        """The best of the emulator over the best of the peer, of the clock."""
        return min(ours for ours, _ in self.rounds) / min(theirs for _, theirs in self.rounds)

    @property
    def processor_ratio(self) -> float:
        """The same of processor seconds, which a busy machine does not lengthen."""
        return min(ours for ours, _ in self.processor) / min(theirs for _, theirs in self.processor)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"ratio": self.ratio, "processor_ratio": self.processor_ratio}


def measure_layer(
    peer_python: Path | None,
    model: str,
    seq_len: int,
    *,
    kernels: Path,
    fused: bool = True,
    repeats: int = 2,
) -> LayerMeasured | NoPeer:
    """A layer of one of the published models; NoPeer where torch is not to be had or a side fails."""
    known = {one.name: one for one in published()}
    if model not in known:
        return NoPeer(f"no model is named {model!r}; there are {', '.join(known)}")
    dims = read_config(known[model].config)
    assert isinstance(dims, Dimensions), "published configs are of supported models"
    if dims.qk_norm or dims.qkv_bias:
        return NoPeer(
            f"{model} has biases or norms the peer's layer is written without; take one of the Llama topology"
        )
    python = str(peer_python) if peer_python is not None else sys.executable
    sizes = {
        "seq": seq_len, "emb": dims.emb, "heads": dims.heads, "kv_heads": dims.kv_heads, "head_dim": dims.head_dim,
        "hidden": dims.hidden,
    }  # fmt: skip
    request = {"model": model, "seq": seq_len, "kernels": str(kernels), "fused": fused}
    try:
        with Side(python, _PEER) as peer, Side(sys.executable, _OURS) as ours:
            conditions = {"peer": peer.ask({"sizes": sizes}), "blas_threads": 1, "best_of": repeats}
            first = float(ours.ask(request)["seconds"])
            rounds: list[tuple[float, float]] = []
            processor: list[tuple[float, float]] = []
            steps: dict[str, float] = {}
            for _ in range(repeats):
                mine, theirs = ours.ask({"run": True}), peer.ask({"run": True})
                rounds.append((float(mine["seconds"]), float(theirs["seconds"])))
                processor.append((float(mine["processor"]), float(theirs["processor"])))
                steps = dict(mine["steps"])
    except SideFailed as failed:
        return failed.no_peer(python)
    return LayerMeasured(model, seq_len, fused, tuple(rounds), tuple(processor), first, steps, conditions)


_PEER = """
import json, sys, time
import torch
import torch.nn.functional as F
torch.set_num_threads(1)
call = None
for line in sys.stdin:
    request = json.loads(line)
    if "sizes" in request:
        size = request["sizes"]
        S, E, D, FF = size["seq"], size["emb"], size["head_dim"], size["hidden"]
        H, K = size["heads"], size["kv_heads"]
        torch.manual_seed(0)
        made = lambda rows, columns: torch.randn(rows, columns) / columns ** 0.5
        wq, wk, wv, wo = made(H * D, E), made(K * D, E), made(K * D, E), made(E, H * D)
        wg, wu, wd, norm = made(FF, E), made(FF, E), made(E, FF), torch.ones(E)
        angles = torch.arange(S)[:, None] / 10000 ** (torch.arange(D // 2) * 2 / D)[None]
        cosine, sine, x = angles.cos(), angles.sin(), torch.randn(S, E)
        rms = lambda h: h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-5) * norm
        def turn(h):
            a, b = h[..., : D // 2], h[..., D // 2 :]
            return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)
        def call():
            h = rms(x)
            q, k, v = (F.linear(h, w).view(S, -1, D).transpose(0, 1) for w in (wq, wk, wv))
            q, k = turn(q), turn(k).repeat_interleave(H // K, 0)
            o = F.scaled_dot_product_attention(q, k, v.repeat_interleave(H // K, 0), is_causal=True)
            r = x + F.linear(o.transpose(0, 1).reshape(S, -1), wo)
            h = rms(r)
            return r + F.linear(F.silu(F.linear(h, wg)) * F.linear(h, wu), wd)
        with torch.no_grad():
            call()
        answer = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    else:
        with torch.no_grad():
            began, worked = time.perf_counter(), time.process_time()
            call()
        answer = {"seconds": time.perf_counter() - began, "processor": time.process_time() - worked}
    print(json.dumps(answer), flush=True)
"""

_OURS = "from npu_tools.bench.layer import serve; serve()"


def serve() -> None:
    """The emulator's side."""
    import json

    import numpy as np

    from npu_tools.backends import EmulatorBackend
    from npu_tools.models import open_weights
    from npu_tools.models.runner import Runner

    runner: Runner | None = None
    hidden = np.empty(0)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        began, worked = time.perf_counter(), time.process_time()
        if "model" in request:
            config = next(one.config for one in published() if one.name == request["model"])
            dims = read_config(config)
            assert isinstance(dims, Dimensions), "the caller has read it"
            weights, seq = open_weights("random:1", config), int(request["seq"])
            runner = Runner(
                dims, weights, [Path(request["kernels"])], EmulatorBackend(), seq, fused=request["fused"], layers=1
            )  # fmt: skip
            hidden = np.random.default_rng(1).standard_normal((seq, dims.emb), np.float32).astype(runner.dtype)
        assert runner is not None, "a model comes first"
        runner.spent.clear()
        try:
            runner.block(0, hidden)
            answer: dict[str, Any] = {
                "seconds": time.perf_counter() - began,
                "processor": time.process_time() - worked,
                "steps": {spent.step: round(spent.wall_s, 3) for spent in runner.spent.values()},
            }
        except Exception as error:  # told to the bench, which ends
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
