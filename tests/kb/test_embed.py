"""The numpy forward pass agrees with sentence-transformers, and bad weights are refused."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kb.embed import MODEL_NAME, Encoder, find_weights, verify_weights
from kb.errors import WeightsMissing

REFERENCE = json.loads((Path(__file__).parent.parent / "data" / "minilm_reference.json").read_text(encoding="utf-8"))


def test_vectors_agree_with_recorded_sentence_transformers_ones(weights: Path) -> None:
    """Recorded from sentence-transformers with the same weights; the design asks for 1e-5."""
    got = Encoder.open(weights).encode(REFERENCE["texts"])
    assert np.abs(got - np.array(REFERENCE["vectors"], dtype=np.float32)).max() <= 1e-5


BERT = {
    "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": 384, "intermediate_size": 1536,
    "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12,
    "num_hidden_layers": 6, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30522,
}  # fmt: skip
"""The model's published configuration; our weights folder holds only the two files we need."""


def test_vectors_agree_with_sentence_transformers_itself(weights: Path, tmp_path: Path) -> None:
    """The reference implementation, in a child process as everywhere; runs where the extra `models` is installed."""
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("extra 'models' is not installed")
    for name in ("model.safetensors", "tokenizer.json"):
        shutil.copy(weights / name, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(BERT), encoding="utf-8")
    code = (
        "import sys, json; from sentence_transformers import SentenceTransformer, models;"
        "t = models.Transformer(sys.argv[1], max_seq_length=256); p = models.Pooling(384, pooling_mode='mean');"
        "m = SentenceTransformer(modules=[t, p, models.Normalize()], device='cpu');"
        "print(json.dumps(m.encode(json.loads(sys.argv[2])).tolist()))"
    )
    texts = json.dumps(REFERENCE["texts"])
    command = [sys.executable, "-P", "-W", "ignore", "-c", code, str(tmp_path), texts]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    reference = np.array(json.loads(done.stdout.splitlines()[-1]), dtype=np.float32)
    assert np.abs(Encoder.open(weights).encode(REFERENCE["texts"]) - reference).max() <= 1e-5


def test_batching_and_order_do_not_change_vectors(weights: Path) -> None:
    encoder = Encoder.open(weights)
    texts = REFERENCE["texts"]
    one_by_one = np.concatenate([encoder.encode([text]) for text in texts])
    assert np.abs(encoder.encode(texts, batch=3) - one_by_one).max() < 1e-5


def test_a_changed_weights_file_is_refused_by_name(weights: Path, tmp_path: Path) -> None:
    shutil.copy(weights / "tokenizer.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not the weights")
    with pytest.raises(WeightsMissing, match=r"model\.safetensors is not the published"):
        verify_weights(tmp_path)


def test_missing_weights_say_where_was_looked_and_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing, match=f"{MODEL_NAME}.*herdbook setup"):
        find_weights([tmp_path])
