"""`herdbook generate` on a small model with made-up weights."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_hidden_layers": 1, "hidden_size": 128,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 512, "vocab_size": 300,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "max_position_embeddings": 256,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return path


def herdbook(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from mcp_server.start import main; main()"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True, encoding="utf-8", check=False
    )


def test_tokens_come_from_the_emulator_and_the_answer_says_so(config: Path):
    asked = ("generate", "random:3", "--config", str(config), "-p", "5 6 7", "--tokens", "3", "--seq-len", "64")
    done = herdbook(*asked, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["ran_on"] == ["emulator"]
    assert len(answer["answers"][0]["tokens"]) == 3
    assert "decode/attention" in answer["on_host"]
    assert answer["dispatches_per_layer"] == {"prefill": 4, "decode": 2}
    told = herdbook(*asked, "--leaves").stdout
    assert " ".join(map(str, answer["answers"][0]["tokens"])) in told, "fused kernels and leaves give the same bits"
    assert "on the emulator" in told
    assert "On the host: decode/attention" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("random:3", "-p", "1"), "needs --config"),
        (("random:3", "--config", "CONFIG", "-p", "hello"), "token numbers"),
        (("random:3", "--config", "CONFIG", "-p", "1", "--seq-len", "100"), "multiple of 64"),
        (("random:3", "--config", "CONFIG", "-p", "999"), "token 999 is outside the vocabulary"),
        (("nowhere", "-p", "1"), "there is no nowhere"),
        (("random:3", "--config", "CONFIG", "-p", "1", "--numerics", "bf8"), "faithful or f32"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(config: Path, arguments: tuple[str, ...], said: str):
    done = herdbook("generate", *(str(config) if one == "CONFIG" else one for one in arguments))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
