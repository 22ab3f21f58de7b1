"""Weights of a model: where they come from, and what contradicts a config."""

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from npu_tools.architectures import published
from npu_tools.errors import UnusableInput
from npu_tools.models import find_config, open_weights
from npu_tools.models.gguf import QUANTISATIONS, read_gguf
from npu_tools.models.weights import expected, read_config

BF16 = ml_dtypes.bfloat16
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_hidden_layers": 2, "hidden_size": 64,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 96, "vocab_size": 50,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "max_position_embeddings": 512,
}  # fmt: skip


def made_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape, np.float32).astype(BF16)
        for name, shape in expected(read_config(config)).items()  # pyright: ignore
    }


def checkpoint(folder: Path, tensors: dict[str, Any], config: dict[str, Any] = CONFIG) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_safetensors_come_as_they_are_and_the_tied_head_is_the_embedding(tmp_path: Path):
    tensors = made_tensors(CONFIG)
    weights = open_weights(checkpoint(tmp_path / "m", tensors), find_config(tmp_path / "m"))
    for name, values in tensors.items():
        np.testing.assert_array_equal(weights.tensor(name), values)
    np.testing.assert_array_equal(weights.tensor("lm_head.weight"), tensors["model.embed_tokens.weight"])
    assert weights.describe()["stored_as"] == ["BF16"]


def test_float32_is_rounded_to_nearest_even_once(tmp_path: Path):
    tensors = {name: values.astype(np.float32) + 1e-4 for name, values in made_tensors(CONFIG).items()}
    weights = open_weights(checkpoint(tmp_path / "m", tensors), CONFIG)
    name = "model.layers.1.mlp.up_proj.weight"
    np.testing.assert_array_equal(weights.tensor(name), tensors[name].astype(BF16))


def test_shards_are_read_and_a_missing_one_is_said(tmp_path: Path):
    tensors = made_tensors(CONFIG)
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, tmp_path / file)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    weights = open_weights(tmp_path, CONFIG)
    np.testing.assert_array_equal(weights.tensor(names[1]), tensors[names[1]])
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(UnusableInput, match=r"lacks 1 of 2 shards: b\.safetensors"):
        open_weights(tmp_path, CONFIG)


def test_a_file_cut_short_is_said_before_anything_runs(tmp_path: Path):
    folder = checkpoint(tmp_path / "m", made_tensors(CONFIG))
    whole = (folder / "model.safetensors").read_bytes()
    for size in (4, 100, len(whole) - 10):
        (folder / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(UnusableInput, match=r"cut short|damaged"):
            open_weights(folder, CONFIG)


def test_a_missing_tensor_is_named(tmp_path: Path):
    tensors = made_tensors(CONFIG)
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(UnusableInput, match=r"lacks 1 of 20 tensors, first model\.layers\.1\.self_attn\.k_proj"):
        open_weights(checkpoint(tmp_path / "m", tensors), CONFIG)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"intermediate_size": 128}, r"gate_proj\.weight is \[96, 64\] .* make it \[128, 64\]"),
        ({"num_hidden_layers": 1}, r"model\.layers\.1\.\S+ and 8 more"),
        ({"num_hidden_layers": 3}, r"lacks 9 of 29"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"architectures": ["Qwen2ForCausalLM"]}, r"self_attn\.q_proj\.bias"),
    ],
)
def test_a_config_that_contradicts_the_weights_is_refused(tmp_path: Path, change: dict[str, Any], said: str):
    folder = checkpoint(tmp_path / "m", made_tensors(CONFIG))
    with pytest.raises(UnusableInput, match=said):
        open_weights(folder, {**CONFIG, **change})


def test_biases_the_config_does_not_know_are_refused(tmp_path: Path):
    qwen = {**CONFIG, "architectures": ["Qwen2ForCausalLM"]}
    folder = checkpoint(tmp_path / "m", made_tensors(qwen))
    with pytest.raises(UnusableInput, match=r"proj\.bias and 5 more"):
        open_weights(folder, CONFIG)


def test_a_tied_config_beside_a_head_of_its_own_is_refused(tmp_path: Path):
    tensors = made_tensors(CONFIG)
    same = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].copy()}
    open_weights(checkpoint(tmp_path / "same", same), CONFIG)
    other = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"][::-1].copy()}
    with pytest.raises(UnusableInput, match="wrong head"):
        open_weights(checkpoint(tmp_path / "other", other), CONFIG)


def test_an_architecture_that_cannot_run_is_refused_with_what_can():
    moe = {**CONFIG, "architectures": ["MixtralForCausalLM"], "num_local_experts": 8}
    with pytest.raises(UnusableInput, match=r"mixture of experts.*nearest that runs"):
        open_weights("random:1", moe)


def test_places_where_nothing_is_are_said(tmp_path: Path):
    for source, said in [
        (tmp_path, "no \\*.safetensors"),
        (tmp_path / "nowhere", "there is no"),
        ("models/missing.gguf", r"there is no models/missing\.gguf"),
        ("random:x", "random:SEED"),
    ]:
        with pytest.raises(UnusableInput, match=said):
            open_weights(source, CONFIG)


def test_seeded_weights_depend_on_the_seed_and_the_name_alone():
    one, again, other = (open_weights(f"random:{seed}", CONFIG) for seed in (7, 7, 8))
    name = "model.layers.0.mlp.down_proj.weight"
    np.testing.assert_array_equal(one.tensor(name), again.tensor(name))
    assert np.any(one.tensor(name) != other.tensor(name))
    assert one.digest() == again.digest() != other.digest()
    assert np.any(one.tensor(name) != one.tensor("model.layers.1.mlp.down_proj.weight"))


def test_seeded_weights_have_the_spread_that_keeps_activations_sane():
    config = published()[3].config
    weights = open_weights("random:3", config)
    q = weights.tensor("model.layers.0.self_attn.q_proj.weight").astype(np.float32)
    assert abs(q.std() * q.shape[1] ** 0.5 - 1) < 0.02
    assert abs(q.mean()) < 1e-3
    down = weights.tensor("model.layers.0.mlp.down_proj.weight").astype(np.float32)
    assert abs(down.std() * (down.shape[1] * 2 * 24) ** 0.5 - 1) < 0.02


def test_seeded_weights_are_the_same_everywhere():
    """Pinned, ours: a change here makes old runs with random:SEED incomparable."""
    first = open_weights("random:0", CONFIG).tensor("model.layers.0.self_attn.q_proj.weight")
    assert first[0, :4].view(np.uint16).tolist() == PINNED


PINNED = [15838, 48661, 15628, 48013]


def gguf_bytes(metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int, bytes]]) -> bytes:
    """A GGUF file as docs/gguf.md of ggml lays it out."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def entry(value: Any) -> bytes:
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        if isinstance(value, bool):
            return struct.pack("<I?", 7, value)
        if isinstance(value, int):
            return struct.pack("<II", 4, value)
        if isinstance(value, float):
            return struct.pack("<If", 6, value)
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(one) for one in value)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += text(key) + entry(value)
    at = 0
    for name, (shape, kind, data) in tensors.items():
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", kind, at)
        at += -(-len(data) // 32) * 32
    body = b"".join(data + bytes(-len(data) % 32) for _, _, data in tensors.values())
    return head + bytes(-len(head) % 32) + body


def gguf_model(tensors: dict[str, Any]) -> bytes:
    """The checkpoint as llama.cpp converts it: Q and K with the halves of each head interleaved."""
    from npu_tools.models.sources import _GGUF_LAYER, _GGUF_NAMES  # pyright: ignore

    layer = {new: old for old, new in _GGUF_LAYER.items()}
    once = {new: old for old, new in _GGUF_NAMES.items()}
    stored: dict[str, tuple[tuple[int, ...], int, bytes]] = {}
    for name, array in tensors.items():
        values = array.astype(np.float32)
        for part, heads in (("q", 2), ("k", 1)):
            if f"self_attn.{part}_proj.weight" in name:
                values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        pieces = name.split(".")
        mapped = once.get(name) or f"blk.{pieces[2]}.{layer['.'.join(pieces[3:-1])]}.{pieces[-1]}"
        stored[mapped] = (values.shape, 0, np.ascontiguousarray(values).tobytes())
    metadata = {
        "general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 64,
        "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1, "llama.feed_forward_length": 96,
        "llama.context_length": 512, "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.tokens": [str(n) for n in range(50)],
    }  # fmt: skip
    return gguf_bytes(metadata, stored)


def test_a_gguf_file_gives_config_and_weights_with_heads_put_back(tmp_path: Path):
    tensors = made_tensors(CONFIG)
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_model(tensors))
    config = find_config(path)
    for key in CONFIG:
        assert config[key] == CONFIG[key], key
    weights = open_weights(path, config)
    for name, values in tensors.items():
        np.testing.assert_array_equal(weights.tensor(name), values, err_msg=name)


def test_a_gguf_file_cut_short_or_damaged_is_said(tmp_path: Path):
    whole = gguf_model(made_tensors(CONFIG))
    path = tmp_path / "m.gguf"
    for data, said in [
        (whole[:-64], "cut short"),
        (whole[:300], "ends within its head"),
        (b"PK" + whole[2:], "no GGUF file"),
        (whole[:4] + struct.pack("<I", 1) + whole[8:], "version 1"),
        (whole[:8] + struct.pack("<Q", 1 << 60) + whole[16:], "damaged"),
    ]:
        path.write_bytes(data)
        with pytest.raises(UnusableInput, match=said):
            read_gguf(path)


def test_a_quantisation_that_is_not_read_is_named_with_what_to_take(tmp_path: Path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({}, {"blk.0.attn_q.weight": ((256,), 10, bytes(84))}))
    with pytest.raises(UnusableInput, match=r"Q2_K, which is not read here; take a file with F32.*Q4_K"):
        read_gguf(path)


def test_an_architecture_of_a_gguf_file_that_cannot_run_is_refused(tmp_path: Path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({"general.architecture": "gemma3"}, {}))
    with pytest.raises(UnusableInput, match="'gemma3'; those that run are llama, qwen2, qwen3"):
        find_config(path)


@pytest.mark.parametrize("kind", [kind for kind, one in QUANTISATIONS.items() if one.values > 1])
def test_every_quantisation_is_dequantised_as_the_gguf_library_does(kind: int):
    quants = pytest.importorskip("gguf.quants", reason="the gguf library is in herdbook[models]")
    import gguf

    form = QUANTISATIONS[kind]
    rng = np.random.default_rng(kind)
    blocks = rng.integers(0, 256, (40, form.size), dtype=np.uint8)
    halves = {2: (0,), 3: (0, 2), 6: (0,), 7: (0, 2), 8: (0,), 12: (0, 2), 13: (0, 2), 14: (208,)}[kind]
    for at in halves:
        blocks[:, at : at + 2] = rng.standard_normal((40, 1)).astype(np.float16).view(np.uint8)
    wanted = quants.dequantize(blocks, gguf.GGMLQuantizationType(kind))
    np.testing.assert_array_equal(form.floats(blocks), wanted.reshape(40, form.values))
