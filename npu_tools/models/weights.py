"""A model's weights, checked against its config, one tensor at a time and in bf16.

    weights = open_weights("random:7", config)
    weights.tensor("model.layers.0.self_attn.q_proj.weight")      # bf16 [q_dim, emb], as Hugging Face has it

Every tensor comes in bf16, rounded to nearest even from whatever the source stores: the kernels take bf16, and runner
and oracle so see the same values. Nothing is kept; who asks twice waits twice.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from npu_tools.architectures import Dimensions, read_config
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding
from npu_tools.models.gguf import GgufFile, read_gguf
from npu_tools.models.sources import BF16, Array, GgufWeights, SafetensorsFolder, Seeded, Source

EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_IGNORED = re.compile(r"rotary_emb\.inv_freq$|rope_freqs")
"""Tables that files carry beside the weights."""


def expected(dims: Dimensions) -> dict[str, tuple[int, ...]]:
    """Every tensor the config asks for, with its shape; the head only where it is not the embedding."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (dims.vocab, dims.emb)}
    for layer in range(dims.layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes(dims).items()}
    shapes[FINAL_NORM] = (dims.emb,)
    if not dims.tied:
        shapes[HEAD] = (dims.vocab, dims.emb)
    return shapes


def layer_shapes(dims: Dimensions) -> dict[str, tuple[int, ...]]:
    """One layer's tensors by the end of their names."""
    emb, q, kv, hidden = dims.emb, dims.q_dim, dims.kv_dim, dims.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (emb,),
        "self_attn.q_proj.weight": (q, emb),
        "self_attn.k_proj.weight": (kv, emb),
        "self_attn.v_proj.weight": (kv, emb),
    }
    if dims.qkv_bias:
        shapes |= {f"self_attn.{part}_proj.bias": (width,) for part, width in (("q", q), ("k", kv), ("v", kv))}
    if dims.qk_norm:
        shapes |= {f"self_attn.{part}_norm.weight": (dims.head_dim,) for part in "qk"}
    return shapes | {
        "self_attn.o_proj.weight": (emb, q),
        "post_attention_layernorm.weight": (emb,),
        "mlp.gate_proj.weight": (hidden, emb),
        "mlp.up_proj.weight": (hidden, emb),
        "mlp.down_proj.weight": (emb, hidden),
    }


class Weights:
    """An open source that has everything the config asks for."""

    def __init__(self, source: Source, dims: Dimensions) -> None:
        self._source, self.dims = source, dims
        self._expected = expected(dims)
        self._digest: str | None = None

    def names(self) -> tuple[str, ...]:
        """Every tensor the model uses."""
        return tuple(self._expected)

    def tensor(self, name: str) -> Array:
        """One tensor in bf16 and Hugging Face's orientation; the head of a tied model is its embedding.

        Raises:
            UnusableInput: no such tensor, or one that cannot be read.
        """
        if name == HEAD and self.dims.tied:
            name = EMBEDDING
        if name not in self._expected:
            raise UnusableInput(f"{self.dims.name} has no tensor {name!r}")
        found = self._source.values(name)
        return found if found.dtype == BF16 else np.asarray(found, np.float32).astype(BF16)

    def layer(self, index: int) -> dict[str, Array]:
        """One layer's tensors by the end of their names."""
        return {name: self.tensor(f"model.layers.{index}.{name}") for name in layer_shapes(self.dims)}

    def describe(self) -> dict[str, Any]:
        """JSON-ready: where they come from and as what they are stored."""
        return {**self._source.describe(), "tensors": len(self._expected), "weights": self.dims.weights}

    def digest(self) -> str:
        """sha256 of the contents; reads every byte once."""
        if self._digest is None:
            self._digest = self._source.fingerprint()
        return self._digest


def open_weights(source: str | Path, config: Mapping[str, Any]) -> Weights:
    """Open a folder of safetensors, a .gguf file, `random:SEED`, or a hub id where the hub can be reached.

    Raises:
        UnusableInput: nothing there, damaged, cut short, or in contradiction to the config; the text says where.
    """
    dims = read_config(config)
    if isinstance(dims, Finding):
        raise UnusableInput(f"{dims.message}; {dims.remedy}")
    opened = _open(str(source), dims)
    _agree(opened, dims)
    return Weights(opened, dims)


def _open(source: str, dims: Dimensions) -> Source:
    if source.startswith("random:"):
        seed = source.removeprefix("random:")
        if not seed.isdecimal():
            raise UnusableInput(f"{source!r}: write random:SEED with a whole number, as in random:7")
        return Seeded(int(seed), expected(dims), dims.layers)
    path = Path(source).expanduser()
    if path.is_file():
        if path.suffix == ".safetensors":
            return SafetensorsFolder(path.parent)
        return GgufWeights(path, dims)
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        return GgufWeights(files[0], dims) if len(files) == 1 else SafetensorsFolder(path)
    return SafetensorsFolder(hub_folder(source))


def _agree(source: Source, dims: Dimensions) -> None:
    """Whether names and shapes are the config's.

    Raises:
        UnusableInput: they are not.
    """
    wanted, found = expected(dims), source.shapes()
    where = source.describe()["source"]
    missing = [name for name in wanted if name not in found]
    if missing:
        hint = ""
        if missing == [HEAD]:
            hint = "; the config says that the head is not tied to the embedding (tie_word_embeddings)"
        elif len(missing) == len(wanted):
            hint = f"; it has {len(found)} tensors of other names. Is it a decoder's checkpoint?"
        raise UnusableInput(f"{where} lacks {len(missing)} of {len(wanted)} tensors, first {missing[0]}{hint}")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise UnusableInput(
                f"the weights contradict the config: {name} is {list(found[name])} in {where}, and the config's sizes "
                f"make it {list(shape)}. Give the config.json these weights came with"
            )
    beyond = sorted(
        name for name in found if name not in wanted and name != HEAD and not _IGNORED.search(name)
    )  # fmt: skip
    deeper = [name for name in beyond if name.startswith("model.layers.")]
    if deeper:
        raise UnusableInput(
            f"the weights contradict the config: {where} has {deeper[0]} and {len(deeper) - 1} more that a "
            f"{dims.architecture} of {dims.layers} layers has not. Give the config.json these weights came with"
        )
    if dims.tied and HEAD in found and not np.array_equal(source.values(HEAD), source.values(EMBEDDING)):
        raise UnusableInput(
            f"the weights contradict the config: {where} has an lm_head.weight of its own, and the config says that "
            "the head is the embedding (tie_word_embeddings). With the wrong head every token comes out wrong"
        )


def hub_folder(name: str) -> Path:
    """A model of the hub, fetched by huggingface_hub, or as its cache has it.

    Raises:
        UnusableInput: no such path and no hub id, or the hub cannot be reached.
    """
    is_file = name.endswith((".gguf", ".safetensors", ".json"))
    if is_file or not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith((".", "/")):
        raise UnusableInput(f"there is no {name}; give a folder, a .gguf file, random:SEED, or a hub id OWNER/NAME")
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise UnusableInput(
            f"there is no {name} here, and to fetch it from the hub huggingface_hub is needed: "
            "pip install 'herdbook[models]'"
        ) from None
    try:
        found = hub.snapshot_download(name, allow_patterns=["*.safetensors", "*.json", "*.txt"])
    except Exception as error:  # the hub's errors are many, and its own
        raise UnusableInput(
            f"{name} is no folder here and could not be fetched from the hub ({type(error).__name__}); check the name "
            "and the network, or give the folder of a downloaded checkpoint"
        ) from None
    return Path(str(found))


def find_config(source: str | Path) -> dict[str, Any]:
    """The config.json beside weights, or what a GGUF file says of the model.

    Raises:
        UnusableInput: neither is there.
    """
    path = Path(source).expanduser()
    if path.is_file() and path.suffix == ".json":
        return _json(path)
    if path.is_file() and path.suffix == ".gguf":
        return gguf_config(read_gguf(path))
    folder = path if path.is_dir() else path.parent if path.is_file() else hub_folder(str(source))
    if (folder / "config.json").is_file():
        return _json(folder / "config.json")
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return gguf_config(read_gguf(files[0]))
    raise UnusableInput(f"there is no config.json in {folder}; give the model's config")


def gguf_config(file: GgufFile) -> dict[str, Any]:
    """A config.json from a GGUF file's metadata.

    Raises:
        UnusableInput: an architecture that is none of the supported, or sizes that are missing.
    """
    said = file.metadata
    kind = str(said.get("general.architecture"))
    if kind not in _ARCHITECTURES:
        raise UnusableInput(
            f"{file.path} holds a model of architecture {kind!r}; those that run are {', '.join(_ARCHITECTURES)}"
        )

    def number(key: str, default: float | None = None) -> Any:
        found = said.get(f"{kind}.{key}", default)
        if not isinstance(found, int | float):
            raise UnusableInput(f"{file.path} does not say {kind}.{key}; give the model's config.json")
        return found

    heads, emb = number("attention.head_count"), number("embedding_length")
    # Stored as float32: the shortest decimal is the number that was meant.
    eps = float(str(np.float32(number("attention.layer_norm_rms_epsilon"))))
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[kind]],
        "hidden_act": "silu",
        "num_hidden_layers": number("block_count"),
        "hidden_size": emb,
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv", heads),
        "head_dim": number("attention.key_length", emb // heads),
        "intermediate_size": number("feed_forward_length"),
        "vocab_size": len(cast("list[Any]", said.get("tokenizer.ggml.tokens", []))) or number("vocab_size"),
        "rope_theta": float(number("rope.freq_base", 10000.0)),
        "rms_norm_eps": eps,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "max_position_embeddings": number("context_length"),
        "_name_or_path": str(said.get("general.name", file.path.stem)),
    }
    if "rope_freqs.weight" in file.tensors:
        config["rope_scaling"] = _llama3_scaling(file, config)
    return config


def _llama3_scaling(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """The llama3 scaling whose factors the file carries; Llama 3.1 has factor 8, 3.2 has 32."""
    from npu_tools.rope import inverse_frequencies

    stored = file.values("rope_freqs.weight")
    for factor in (8.0, 32.0):
        scaling = {
            "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }  # fmt: skip
        scaled, plain = read_config({**config, "rope_scaling": scaling}), read_config(config)
        if isinstance(scaled, Dimensions) and isinstance(plain, Dimensions):
            ratio = inverse_frequencies(plain) / inverse_frequencies(scaled)
            if ratio.shape == stored.shape and np.allclose(ratio, stored, rtol=1e-3):
                return scaling
    raise UnusableInput(f"{file.path} scales its rotation in a way that is not llama3's; give the model's config.json")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnusableInput(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UnusableInput(f"{path} is no JSON ({error}); fetch the model's config.json again") from None
    if not isinstance(found, dict):
        raise UnusableInput(f"{path} holds no JSON object, and so is no config.json of a model; fetch it again")
    return cast("dict[str, Any]", found)
