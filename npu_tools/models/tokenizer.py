"""Text to tokens and back: a tokenizer.json, or what a GGUF file says; and the chat templates in use here.

    tokenizer = open_tokenizer("folder")
    tokens = tokenizer.prompt("What is gravity?", chat=True)
    tokenizer.text(tokens)

Templates are Jinja programs; none is executed. The two forms of the supported families, ChatML and Llama 3's headers,
are recognised by their marks and written out here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from npu_tools.errors import UnusableInput
from npu_tools.models.gguf import GgufFile, read_gguf
from npu_tools.models.weights import hub_folder

Form = Literal["chatml", "llama3"]
_CONTROL, _USER_DEFINED = 3, 4
"""Token types of a GGUF file (gguf-py constants.TokenType)."""
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
_SPLITS = {"qwen2": _QWEN2, "llama-bpe": _LLAMA3}
_DIGITS = ("smollm", "starcoder", "refact", "command-r")
_PLAIN = ("gpt-2", "default")
"""How text is cut before merging, by tokenizer.ggml.pre (llama.cpp src/llama-vocab.cpp)."""


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """A tokenizer with the ends and the chat form its model knows."""

    inner: Tokenizer
    stops: frozenset[int]
    bos: int | None
    form: Form | None
    system: str | None
    """What the template says where the conversation has no system message."""

    @property
    def size(self) -> int:
        """Tokens it can give."""
        return int(self.inner.get_vocab_size(with_added_tokens=True))

    def tokens(self, text: str) -> list[int]:
        """The text's tokens as they are, marks among them recognised."""
        return list(self.inner.encode(text, add_special_tokens=False).ids)

    def prompt(self, text: str, *, chat: bool) -> list[int]:
        """A prompt: the text alone (after the beginning mark, where the model has one), or as a user's message.

        Raises:
            UnusableInput: a message for a model without a known chat form, or nothing at all.
        """
        if not text:
            raise UnusableInput("the prompt is empty")
        if chat:
            return self.tokens(self.chat([{"role": "user", "content": text}]))
        found = self.tokens(text)
        return found if self.bos is None or found[:1] == [self.bos] else [self.bos, *found]

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Messages of {"role", "content"} as the model's template has them, the assistant's turn begun.

        Raises:
            UnusableInput: the model has no chat form known here.
        """
        if self.form is None:
            raise UnusableInput(
                "this model has no chat template known here (ChatML and Llama 3 are); give the prompt as it is (--raw)"
            )
        listed = list(messages)
        if self.system and (not listed or listed[0]["role"] != "system"):
            listed.insert(0, {"role": "system", "content": self.system})
        if self.form == "chatml":
            turns = [f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in listed]
            return "".join(turns) + "<|im_start|>assistant\n"
        turns = [_llama3_turn(one["role"]) + one["content"].strip() + "<|eot_id|>" for one in listed]
        return "<|begin_of_text|>" + "".join(turns) + _llama3_turn("assistant")

    def text(self, tokens: Sequence[int]) -> str:
        """The tokens' text, marks left out."""
        return str(self.inner.decode(list(tokens), skip_special_tokens=True))


def open_tokenizer(source: str | Path) -> ModelTokenizer:
    """The tokenizer of a folder (tokenizer.json, or one .gguf file), a file of either kind, or a hub id.

    Raises:
        UnusableInput: there is none, it is damaged, or of a kind that is not read here.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return from_gguf(read_gguf(path)) if path.suffix == ".gguf" else _from_json(path)
    folder = path if path.is_dir() else hub_folder(str(source))
    if (folder / "tokenizer.json").is_file():
        return _from_json(folder / "tokenizer.json")
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return from_gguf(read_gguf(files[0]))
    raise UnusableInput(f"there is no tokenizer.json in {folder}; fetch it beside the weights")


def _from_json(path: Path) -> ModelTokenizer:
    try:
        inner = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise UnusableInput(f"{path} is no tokenizer.json ({error}); fetch it again") from None
    config = _read(path.parent / "tokenizer_config.json")
    template = config.get("chat_template")
    if not isinstance(template, str):
        beside = path.parent / "chat_template.jinja"
        template = beside.read_text(encoding="utf-8") if beside.is_file() else ""
    stops = {inner.token_to_id(_content(config.get("eos_token")) or "")}
    for name in ("generation_config.json", "config.json"):
        said: Any = _read(path.parent / name).get("eos_token_id")
        stops |= set(cast("list[int]", said)) if isinstance(said, list) else {said}
    adds_bos = bool(config.get("add_bos_token", _adds_bos(inner)))
    bos = inner.token_to_id(_content(config.get("bos_token")) or "") if adds_bos else None
    return _assembled(inner, {one for one in stops if isinstance(one, int)}, bos, template)


def from_gguf(file: GgufFile) -> ModelTokenizer:
    """The byte-level BPE tokenizer a GGUF file describes.

    Raises:
        UnusableInput: it describes none, or another kind.
    """
    said = file.metadata
    kind, pre = said.get("tokenizer.ggml.model"), str(said.get("tokenizer.ggml.pre", "default"))
    if kind != "gpt2":
        raise UnusableInput(
            f"{file.path} has a tokenizer of kind {kind!r}; byte-level BPE ('gpt2') is read. Put the model's "
            "tokenizer.json beside the file"
        )
    if pre not in (*_SPLITS, *_DIGITS, *_PLAIN):
        raise UnusableInput(
            f"{file.path} cuts text as {pre!r}, which is not known here ({', '.join((*_SPLITS, *_DIGITS, *_PLAIN))} "
            "are); put the model's tokenizer.json beside the file"
        )
    listed = cast("list[str]", said.get("tokenizer.ggml.tokens", []))
    types = cast("list[int]", said.get("tokenizer.ggml.token_type", [1] * len(listed)))
    merges = [pair.split(" ", 1) for pair in cast("list[str]", said.get("tokenizer.ggml.merges", []))]
    if not listed or len(types) != len(listed) or any(len(pair) != 2 for pair in merges):
        raise UnusableInput(f"{file.path} describes its tokenizer in part only; put tokenizer.json beside the file")
    vocabulary = {token: number for number, token in enumerate(listed)}
    pairs = [(left, right) for left, right in merges if left + right in vocabulary]
    inner = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        inner.normalizer = normalizers.NFC()
    if pre in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[pre]), "isolated")
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    elif pre in _DIGITS:
        inner.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    else:
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    for add, wanted in ((inner.add_special_tokens, _CONTROL), (inner.add_tokens, _USER_DEFINED)):  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        marks = [token for token, kind in zip(listed, types, strict=True) if kind == wanted]
        add([AddedToken(token, normalized=False, special=wanted == _CONTROL) for token in marks])
    stops = {said.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")}
    bos = said.get("tokenizer.ggml.bos_token_id") if said.get("tokenizer.ggml.add_bos_token") else None
    template = str(said.get("tokenizer.chat_template", ""))
    return _assembled(inner, {one for one in stops if isinstance(one, int)}, bos, template)


def _assembled(inner: Tokenizer, stops: set[int], bos: int | None, template: str) -> ModelTokenizer:
    form: Form | None = None
    if "<|im_start|>" in template:
        form = "chatml"
    elif "<|start_header_id|>" in template:
        form = "llama3"
    ends = {inner.token_to_id(mark) for mark in ("<|im_end|>", "<|eot_id|>")} if form else set[int]()
    stated = re.search(r"<\|im_start\|>system(?:\n|\\n)(.+?)<\|im_end\|>", template, re.DOTALL)
    system = stated[1] if stated and not re.search(r"[{}'\"]", stated[1]) else None
    known = stops | {one for one in ends if isinstance(one, int)}
    return ModelTokenizer(inner, frozenset(known), bos, form, system)


def _llama3_turn(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


def _adds_bos(inner: Tokenizer) -> bool:
    """Whether the tokenizer's own ending puts something before a text."""
    return bool(inner.encode("a").special_tokens_mask[:1] == [1])


def _content(token: Any) -> str | None:
    if isinstance(token, Mapping):
        token = cast("Mapping[str, Any]", token).get("content")
    return token if isinstance(token, str) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
