"""Hugging Face's own model, from a config and our weights. Imported only in the oracle's child process.

The FP32 forward goes layer by layer: modules are built without memory, one is filled, run and emptied again, so that a
4B model needs one layer and the embedding. Greedy decoding in bf16 holds the whole model (8 GB for 4B).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from npu_tools.errors import UnusableInput
from npu_tools.gate.tokens import GATE_K, top_k
from npu_tools.oracle.requests import WeightsSource

Array = NDArray[Any]


class HuggingFace:
    """A causal model of transformers, still without weights.

    Raises:
        UnusableInput: torch or transformers is missing, or transformers does not take the config.
    """

    def __init__(self, config: Mapping[str, Any], weights: WeightsSource, *, threads: int = 0) -> None:
        try:
            self.torch: Any = importlib.import_module("torch")
            transformers: Any = importlib.import_module("transformers")
        except ImportError as error:
            raise UnusableInput(
                f"{error.name} is not installed here: pip install 'herdbook[models]', or name a Python that has it"
            ) from None
        transformers.logging.set_verbosity_error()
        if threads:
            self.torch.set_num_threads(threads)
        self._weights = weights
        fields = {key: value for key, value in config.items() if key not in ("torch_dtype", "dtype")}
        kind = fields.pop("model_type", None) or _model_type(fields)
        try:
            self.config: Any = transformers.AutoConfig.for_model(kind, **fields)
            self.config._attn_implementation = "sdpa"
            with self.torch.device("meta"):
                self.model: Any = transformers.AutoModelForCausalLM.from_config(self.config, dtype=self.torch.float32)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnusableInput(f"transformers {transformers.__version__} does not take this config: {error}") from None
        self.model.eval()

    def layers(self, tokens: list[int], depth: int | None = None, last: int = -1) -> Iterator[tuple[str, Array]]:
        """FP32, by name: "embedding", "output" a layer, "final_norm", and "logits" [1, vocab] of position `last`."""
        torch, inner = self.torch, self.model.model
        with torch.inference_mode():
            ids = torch.tensor(tokens)[None]
            hidden = self._filled(inner.embed_tokens, "model.embed_tokens")(ids)
            yield "embedding", hidden[0].numpy()
            self._emptied(inner.embed_tokens)
            rotary = type(inner.rotary_emb)(self.config)  # outside meta: its frequencies are computed, not loaded
            positions = torch.arange(len(tokens))[None]
            angles = rotary(hidden, positions)
            mask = torch.full((len(tokens), len(tokens)), float("-inf")).triu(1)[None, None]
            for at, layer in enumerate(inner.layers[: depth or len(inner.layers)]):
                self._filled(layer, f"model.layers.{at}")
                out = layer(hidden, attention_mask=mask, position_ids=positions, position_embeddings=angles)
                hidden = cast("Any", out[0] if isinstance(out, tuple) else out)
                self._emptied(layer)
                yield "output", hidden[0].numpy()
            normed = self._filled(inner.norm, "model.norm")(hidden)
            yield "final_norm", normed[0].numpy()
            head = self._head()
            yield "logits", self._filled(self.model.lm_head, head)(normed[0, last][None]).numpy()
            self._emptied(self.model.lm_head)

    def greedy(self, prompts: list[list[int]], steps: int, dtype: str) -> Iterator[dict[str, Array]]:
        """A prompt at a time: tokens [steps], best [steps, 5] ids, logits [steps, vocab] float32."""
        torch = self.torch
        self.model.to(getattr(torch, dtype))
        self._filled(self.model, "", tied=self.config.tie_word_embeddings)
        parameters = inspect.signature(self.model.forward).parameters
        cache_name = "cache" if "cache" in parameters else "past_key_values"
        with torch.inference_mode():
            for prompt in prompts:
                cache, fed, rows = None, prompt, list[Array]()
                for _ in range(steps):
                    answer = self.model(
                        torch.tensor(fed)[None], **{cache_name: cache}, use_cache=True, logits_to_keep=1
                    )
                    cache = getattr(answer, cache_name)
                    rows.append(answer.logits[0, -1].float().numpy())
                    fed = [top_k(rows[-1], 1)[0]]
                best = np.array([top_k(row, GATE_K) for row in rows], np.int64)
                yield {"tokens": best[:, 0].copy(), "best": best, "logits": np.stack(rows)}

    def _head(self) -> str:
        return "model.embed_tokens" if self.config.tie_word_embeddings else "lm_head"

    def _filled(self, module: Any, prefix: str, *, tied: bool = False) -> Any:
        """The module with our weights in its parameters; every one must be there, of its shape."""
        torch = self.torch
        whole = module is self.model
        for name, parameter in list(module.named_parameters()):
            full = f"{prefix}.{name}" if prefix else name
            if full == "lm_head.weight" and tied:
                continue
            values = np.asarray(self._weights.tensor(full), np.float32)
            if tuple(values.shape) != tuple(parameter.shape):
                raise UnusableInput(
                    f"the weights contradict the config: {full} is {list(values.shape)}, "
                    f"Hugging Face's module has {list(parameter.shape)}"
                )
            tensor = torch.from_numpy(np.array(values)).to(parameter.dtype)
            _place(module, name, torch.nn.Parameter(tensor, requires_grad=False))
        if whole:
            if tied:
                self.model.lm_head.weight = self.model.model.embed_tokens.weight
            self.model.model.rotary_emb = type(self.model.model.rotary_emb)(self.config)
        return module

    def _emptied(self, module: Any) -> None:
        module.to("meta")


def _place(module: Any, name: str, parameter: Any) -> None:
    *path, last = name.split(".")
    for step in path:
        module = getattr(module, step)
    setattr(module, last, parameter)


def _model_type(config: Mapping[str, Any]) -> str:
    names: Any = config.get("architectures") or [""]
    return str(names[0]).removesuffix("ForCausalLM").lower()
