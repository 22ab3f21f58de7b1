"""Text to tokens and back, and prompts as a model's chat has them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from npu_tools.errors import UnusableInput
from npu_tools.models.gguf import GgufFile
from npu_tools.models.tokenizer import ModelTokenizer, from_gguf, open_tokenizer

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a small model<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT = ["the cat sat on the mat in 2026", "the dog's bone isn't there", "naïve café, 12345 steps", "\n\n  two  spaces"]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    """Byte-level BPE with digits on their own, as SmolLM2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore
    marks = [AddedToken(mark, normalized=False) for mark in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    trainer = BpeTrainer(
        vocab_size=320, special_tokens=marks, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXT * 4, trainer)
    return tokenizer


def metadata(trained: Tokenizer, **changes: Any) -> dict[str, Any]:
    """What llama.cpp writes of a tokenizer."""
    inner = json.loads(trained.to_str())
    vocabulary = trained.get_vocab()
    listed = sorted(vocabulary, key=lambda token: vocabulary[token])
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": listed,
        "tokenizer.ggml.token_type": [3 if token.startswith("<|") else 1 for token in listed],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in inner["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.chat_template": CHATML, **changes,
    }  # fmt: skip


def gguf(trained: Tokenizer, **changes: Any) -> GgufFile:
    return GgufFile(Path("m.gguf"), metadata(trained, **changes), {})


def folder(trained: Tokenizer, place: Path, **config: Any) -> Path:
    trained.save(str(place / "tokenizer.json"))
    said = {"eos_token": "<|im_end|>", "chat_template": CHATML, **config}
    (place / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    return place


def test_a_gguf_file_gives_the_tokens_its_tokenizer_json_gives(trained: Tokenizer, tmp_path: Path):
    theirs, ours = open_tokenizer(folder(trained, tmp_path)), from_gguf(gguf(trained))
    for text in [*TEXT, "<|im_start|>user\nhello<|im_end|>", "日本語 🙂"]:
        assert ours.tokens(text) == theirs.tokens(text), text
        assert ours.text(ours.tokens(text)) == theirs.text(theirs.tokens(text))
    assert ours.stops == theirs.stops == {2}
    assert ours.form == theirs.form == "chatml"
    assert ours.system == theirs.system == "You are a small model"


def test_text_comes_back_whole(trained: Tokenizer):
    tokenizer = from_gguf(gguf(trained))
    for text in TEXT:
        assert tokenizer.text(tokenizer.tokens(text)) == text


def test_a_chat_prompt_is_what_the_template_writes(trained: Tokenizer):
    tokenizer = from_gguf(gguf(trained))
    wanted = (
        "<|im_start|>system\nYou are a small model<|im_end|>\n<|im_start|>user\nthe cat<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.chat([{"role": "user", "content": "the cat"}]) == wanted
    assert tokenizer.prompt("the cat", chat=True) == tokenizer.tokens(wanted)
    own = tokenizer.chat([{"role": "system", "content": "Be brief"}, {"role": "user", "content": "hi"}])
    assert own.startswith("<|im_start|>system\nBe brief<|im_end|>")


def test_llama_3_headers_are_written_out(trained: Tokenizer):
    template = "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    tokenizer = from_gguf(gguf(trained, **{"tokenizer.chat_template": template}))
    assert tokenizer.chat([{"role": "user", "content": " hi "}]) == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_a_beginning_mark_is_put_once_where_the_model_has_one(trained: Tokenizer):
    plain = from_gguf(gguf(trained))
    marked = from_gguf(gguf(trained, **{"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 1}))
    assert marked.prompt("the cat", chat=False) == [1, *plain.prompt("the cat", chat=False)]
    assert marked.prompt("<|im_start|>the", chat=False)[:2] != [1, 1]


def test_what_is_not_known_is_said_with_what_to_do(trained: Tokenizer, tmp_path: Path):
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tokenizer.ggml.model": "llama"}, r"kind 'llama'.*tokenizer\.json beside"),
        ({"tokenizer.ggml.pre": "tekken"}, r"cuts text as 'tekken'"),
        ({"tokenizer.ggml.token_type": [1]}, "in part only"),
    ]
    for changes, said in cases:
        with pytest.raises(UnusableInput, match=said):
            from_gguf(gguf(trained, **changes))
    with pytest.raises(UnusableInput, match=r"no tokenizer\.json"):
        open_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UnusableInput, match=r"is no tokenizer\.json"):
        open_tokenizer(tmp_path)


def test_a_model_without_a_chat_form_takes_prompts_as_they_are(trained: Tokenizer):
    tokenizer: ModelTokenizer = from_gguf(gguf(trained, **{"tokenizer.chat_template": ""}))
    assert tokenizer.prompt("the cat", chat=False)
    with pytest.raises(UnusableInput, match="--raw"):
        tokenizer.prompt("the cat", chat=True)
    with pytest.raises(UnusableInput, match="empty"):
        tokenizer.prompt("", chat=False)
