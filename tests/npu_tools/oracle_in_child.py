"""Run in a child process by test_oracle.py: the oracle's work on seeded weights, one JSON line a request.

torch and transformers must not load in the test process.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from npu_tools.errors import NpuToolsError
from npu_tools.oracle.requests import GreedyRequest, StagesRequest
from npu_tools.oracle.work import perform

_spec = importlib.util.spec_from_file_location("oracle_weights", Path(__file__).with_name("oracle_weights.py"))
assert _spec is not None
assert _spec.loader is not None
oracle_weights = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle_weights)


def answered(asked: dict[str, Any]) -> dict[str, Any]:
    what = asked.pop("what", "")
    request = GreedyRequest(**asked) if asked.get("kind") == "greedy" else StagesRequest(**asked)

    def opened(_: str, config: dict[str, Any]) -> Any:
        return oracle_weights.Seeded(config)

    if what == "whole":
        return whole(request)
    if what == "epsilon":  # our side believes another epsilon than the config says
        import npu_tools.oracle.work as work

        read = work.read_config
        work.read_config = lambda config: read({**config, "rms_norm_eps": 1e-4})
        try:
            return perform(request, opened, lambda *_: None)
        finally:
            work.read_config = read
    return perform(request, opened, lambda *_: None)


def whole(request: Any) -> dict[str, Any]:
    """Hugging Face's forward in one piece beside the layer-by-layer one."""
    from npu_tools.oracle.hugging_face import HuggingFace

    weights = oracle_weights.Seeded(request.config)
    parts = dict(HuggingFace(request.config, weights).layers(request.tokens))
    other = HuggingFace(request.config, weights)
    other._filled(other.model, "", tied=other.config.tie_word_embeddings)
    with other.torch.inference_mode():
        once = other.model(other.torch.tensor(request.tokens)[None]).logits[0, -1].numpy()
    return {"worst": float(abs(once - parts["logits"][0]).max())}


if __name__ == "__main__":
    for line in sys.stdin:
        try:
            reply = answered(json.loads(line))
        except NpuToolsError as error:
            reply = {"error": str(error)}
        print(json.dumps(reply), flush=True)
