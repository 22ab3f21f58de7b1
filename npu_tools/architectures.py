"""A Hugging Face config.json as dimensions, and which model families can run here at all.

    match read_config(config):
        case Dimensions() as model: ...
        case Finding() as refused: ...

Supported is what upstream's bf16 pipeline covers (Xilinx/mlir-air programming_examples/llms/README.md @ e972f2942):
decoder-only, RMSNorm, SwiGLU, RoPE, full causal attention with grouped heads, with QKV bias (Qwen2) or per-head QK-norm
(Qwen3). `published()` are the nine models it measured.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding

README = "Xilinx/mlir-air programming_examples/llms/README.md @ e972f2942"
Family = Literal["llama", "qwen2", "qwen3"]
FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
ALIKE: Mapping[str, Family] = {"MistralForCausalLM": "llama"}
"""Of the same build as a supported family, and run by nobody upstream."""
MOST: Mapping[str, int] = {"num_hidden_layers": 1024, "vocab_size": 1 << 24, "max_position_embeddings": 1 << 30}
"""Largest believable sizes, each far beyond any published model; other dimensions go to 2^20."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_experts_per_tok")
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the rotation's frequencies are stretched beyond the trained length (npu_tools/rope.py applies it).

    `low`, `high` and `trained` (positions) are the llama3 form's; the linear form has only the factor.
    """

    kind: Literal["llama3", "linear"]
    factor: float
    low: float = 1.0
    high: float = 4.0
    trained: int = 8192


@dataclass(frozen=True, slots=True)
class Dimensions:
    """One decoder-only model. Widths in elements; `head_dim * heads` need not be `emb`."""

    name: str
    architecture: str
    family: Family
    layers: int
    emb: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    norm_eps: float
    rope_theta: float
    tied: bool
    max_positions: int
    rope_scaling: bool = False
    measured: bool = True
    """Whether upstream ran this architecture."""
    scaling: RopeScaling | None = None

    @property
    def q_dim(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def qkv_bias(self) -> bool:
        return self.family == "qwen2"

    @property
    def qk_norm(self) -> bool:
        return self.family == "qwen3"

    @property
    def layer_weights(self) -> int:
        """Weights of one layer, norms and biases included."""
        projections = self.emb * (self.q_dim + 2 * self.kv_dim) + self.q_dim * self.emb + 3 * self.emb * self.hidden
        extra = self.q_dim + 2 * self.kv_dim if self.qkv_bias else 2 * self.head_dim if self.qk_norm else 0
        return projections + 2 * self.emb + extra

    @property
    def weights(self) -> int:
        """All weights; an LM head that is not tied counts on its own."""
        return self.layers * self.layer_weights + self.emb + self.vocab * self.emb * (1 if self.tied else 2)


def read_config(config: Mapping[str, Any], *, name: str = "model") -> Dimensions | Finding:
    """The model's dimensions, or why it cannot run here and the nearest thing that can.

    Raises:
        UnusableInput: this is no config.json of a model, or a size in it is no positive whole number.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping) and "hidden_size" not in config:
        config = {**cast("Mapping[str, Any]", text), "architectures": config.get("architectures")}
    architecture = _architecture(config)
    refused = _refused(config, architecture)
    if refused is not None:
        return refused
    family = FAMILIES.get(architecture) or ALIKE[architecture]
    rope = _rope(config)
    heads, emb = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    kv_heads = _size(config, "num_key_value_heads") if config.get("num_key_value_heads") is not None else heads
    if heads % kv_heads:
        raise UnusableInput(f"config.json: {heads} query heads cannot share {kv_heads} key and value heads evenly")
    head_dim = _size(config, "head_dim") if config.get("head_dim") is not None else emb // heads
    return Dimensions(
        name=str(config.get("_name_or_path") or name),
        architecture=architecture,
        family=family,
        layers=_size(config, "num_hidden_layers"),
        emb=emb,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=max(1, head_dim),
        hidden=_size(config, "intermediate_size"),
        vocab=_size(config, "vocab_size"),
        norm_eps=_number(config, "rms_norm_eps", 1e-6),
        rope_theta=_number(rope if "rope_theta" in rope else config, "rope_theta", 10000.0),
        tied=bool(config.get("tie_word_embeddings", False)),
        max_positions=_size(config, "max_position_embeddings") if config.get("max_position_embeddings") else 0,
        rope_scaling=_rope_kind(rope) != "default",
        measured=architecture in FAMILIES,
        scaling=_scaling(config, rope),
    )


def _refused(config: Mapping[str, Any], architecture: str) -> Finding | None:
    """The first reason why this architecture cannot run, from the most telling."""
    if config.get("is_encoder_decoder"):
        return _finding("encoder_decoder", f"{architecture} is an encoder-decoder; there is no cross-attention builder")
    experts = next((key for key in _EXPERTS if _truthy(config.get(key))), None)
    if experts is not None or "Moe" in architecture:
        return _finding(
            "moe", f"{architecture} is a mixture of experts ({experts or 'by its name'}); no builder routes tokens"
        )
    latent = next((key for key in _LATENT if _truthy(config.get(key))), None)
    if latent is not None:
        return _finding(
            "mla", f"{architecture} uses latent attention ({latent}); FlashAttention here takes plain K and V"
        )
    if _windowed(config):
        return _finding(
            "sliding_window",
            f"{architecture} attends to a sliding window of {config.get('sliding_window')} tokens; the bf16 pipeline "
            "has full causal attention only",
            "head-first FlashAttention takes window=… for one layer (a multiple of lkp; upstream uses it in its 4-bit "
            "Gemma 3), or keep the sequence within the window and treat the layers as full attention",
        )
    if architecture not in FAMILIES and architecture not in ALIKE:
        return _finding("architecture", f"{architecture} is none of {', '.join([*FAMILIES, *ALIKE])}")
    activation = str(config.get("hidden_act", config.get("hidden_activation", "silu")))
    if activation not in {"silu", "swish"}:
        return _finding("activation", f"{architecture} has {activation} in its FFN; the FFN builders have SwiGLU only")
    if float(config.get("partial_rotary_factor") or 1.0) != 1.0:
        return _finding("rotary", f"{architecture} rotates part of a head ({config['partial_rotary_factor']})")
    kind = _rope_kind(_rope(config))
    if kind not in {"default", "llama3", "linear"}:
        return _finding(
            "rope_kind",
            f"{architecture} scales its rotation by {kind!r}; tables are built for the llama3 and linear forms",
            f"prompts within max_position_embeddings ({config.get('max_position_embeddings')}) need no scaling of the "
            "dynamic form: take rope_scaling out of the config" if kind == "dynamic" else "",
        )  # fmt: skip
    if isinstance(config.get("quantization_config"), Mapping):
        return _finding(
            "quantized",
            f"{architecture} comes with packed weights (quantization_config); the kernels here take bf16",
            "give the unquantised checkpoint, or a GGUF file, which is dequantised on reading",
        )
    if architecture != "Qwen2ForCausalLM" and (config.get("attention_bias") or config.get("mlp_bias")):
        return _finding("bias", f"{architecture} has biases beyond Q, K and V of Qwen2")
    return None


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotation's parameters: `rope_parameters` of newer configs, `rope_scaling` of older ones, empty without."""
    for key in ("rope_parameters", "rope_scaling"):
        found = config.get(key)
        if isinstance(found, Mapping) and found:
            return cast("Mapping[str, Any]", found)
    return {}


def _rope_kind(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default") if rope else "default"


def _scaling(config: Mapping[str, Any], rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = _rope_kind(rope)
    if kind == "default":
        return None
    factor = _number(rope, "factor", 1.0)
    if factor < 1:
        raise UnusableInput(f"config.json: rope factor must be at least 1, not {factor}")
    if kind == "linear":
        return RopeScaling("linear", factor)
    trained = rope.get("original_max_position_embeddings") or config.get("max_position_embeddings") or 8192
    scaling = RopeScaling(
        "llama3", factor, _number(rope, "low_freq_factor", 1.0), _number(rope, "high_freq_factor", 4.0), int(trained)
    )
    if not 0 < scaling.low < scaling.high or scaling.trained < 1:
        raise UnusableInput("config.json: llama3 rope needs 0 < low_freq_factor < high_freq_factor")
    return scaling


def _windowed(config: Mapping[str, Any]) -> bool:
    layers = cast("list[object]", config.get("layer_types") or [])
    if any("sliding" in str(kind) for kind in layers):
        return True
    if not _truthy(config.get("sliding_window")):
        return False
    return bool(config.get("use_sliding_window", True))


def _finding(code: str, message: str, remedy: str = "") -> Finding:
    nearest = "the nearest that runs: a dense decoder of the Llama, Qwen2.5 or Qwen3 families, such as "
    nearest += ", ".join(sorted(model.name for model in published()))
    return Finding(
        severity="error", code=code, message=message, op="model", source=README, remedy=f"{remedy}; {nearest}" if remedy else nearest
    )  # fmt: skip


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names:
        return str(cast("list[object]", names)[0])
    if config.get("model_type"):
        kind = str(config["model_type"])
        return {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}.get(kind, kind)
    raise UnusableInput("no architectures and no model_type: give a Hugging Face config.json")


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    most = MOST.get(key, 1 << 20)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
        raise UnusableInput(f"config.json: {key} must be a whole number from 1 to {most:,}, not {repr(value)[:40]}")
    return value


def _number(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UnusableInput(f"config.json: {key} must be a number, not {repr(value)[:40]}")
    return float(value)


def _truthy(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 1


@dataclass(frozen=True, slots=True)
class Published:
    """A model upstream measured: its config.json fields and the ELFs a layer it runs with."""

    name: str
    repo: str
    config: Mapping[str, Any]
    prefill_elfs: tuple[str, ...]
    decode_elfs: tuple[str, ...]
    lm_head: tuple[int, int]
    """Partitions and their rows."""


@cache
def published() -> tuple[Published, ...]:
    """The nine measured models of models.toml, in its order."""
    table = tomllib.loads(files("npu_tools").joinpath("models.toml").read_text(encoding="utf-8"))
    return tuple(
        Published(
            row["name"],
            row["repo"],
            row["config"],
            tuple(row["prefill_elfs"]),
            tuple(row["decode_elfs"]),
            (row["lm_head"][0], row["lm_head"][1]),
        )
        for row in cast("list[dict[str, Any]]", table["model"])
    )
