"""Where tensors come from, by Hugging Face's names: a folder of safetensors, a GGUF file, a seed.

Each source says which tensors it has and of which shape before any is read, and gives one at a time, so that a 4B model
never stands in memory whole. They know nothing of the config beyond what their own layout needs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from npu_tools.architectures import Dimensions
from npu_tools.errors import UnusableInput
from npu_tools.models.gguf import GgufFile, read_gguf

Array = NDArray[Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
_DTYPES = {
    "BF16": BF16,
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
_MAX_HEADER = 100 << 20
_PIECE = 1 << 16
"""Pairs of weights made at a time: their indices, widened by numpy, stay in cache."""


class Source(Protocol):
    """Tensors by name."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """What there is."""
        ...

    def values(self, name: str) -> Array:
        """One tensor, of any float type."""
        ...

    def describe(self) -> dict[str, Any]:
        """JSON-ready: kind, place, what the values are stored as."""
        ...

    def fingerprint(self) -> str:
        """A digest of the contents."""
        ...


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor in a safetensors file; offsets count from the file's beginning."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFolder:
    """`model.safetensors`, or shards with their index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[str, _Place] = {}
        for file in _shards(folder):
            self._places.update(_header(file))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """What the files hold."""
        return {name: place.shape for name, place in self._places.items()}

    def values(self, name: str) -> Array:
        """One tensor as it is stored.

        Raises:
            UnusableInput: it is stored as something that is no float, or the file cannot be read.
        """
        place = self._places[name]
        dtype = _DTYPES.get(place.dtype)
        if dtype is None:
            raise UnusableInput(
                f"{place.file}: {name} is stored as {place.dtype}; floats are read ({', '.join(_DTYPES)}). "
                "Take the unquantised checkpoint, or a GGUF file"
            )
        try:
            return np.fromfile(place.file, dtype, math.prod(place.shape), offset=place.begin).reshape(place.shape)
        except (OSError, ValueError) as error:
            raise UnusableInput(f"cannot read {name} from {place.file}: {error}") from None

    def describe(self) -> dict[str, Any]:
        """Kind, folder, stored types, bytes."""
        return {
            "kind": "safetensors",
            "source": str(self.folder),
            "stored_as": sorted({place.dtype for place in self._places.values()}),
            "bytes": sum(place.end - place.begin for place in self._places.values()),
        }

    def fingerprint(self) -> str:
        """Of the files' bytes."""
        return _digest_of(sorted({place.file for place in self._places.values()}))


def _shards(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            table = cast("dict[str, Any]", json.loads(index.read_text(encoding="utf-8")))["weight_map"]
            named = sorted({folder / str(name) for name in cast("dict[str, str]", table).values()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UnusableInput(f"{index} is no index of shards; fetch the model anew") from None
        missing = [path.name for path in named if not path.is_file()]
        if missing:
            raise UnusableInput(f"{folder} lacks {len(missing)} of {len(named)} shards: {', '.join(missing[:3])}")
        return named
    whole = folder / "model.safetensors"
    found = [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    if not found:
        raise UnusableInput(
            f"there are no *.safetensors in {folder}; give the folder of a downloaded checkpoint, a .gguf file, or "
            "random:SEED"
        )
    return found


def _header(file: Path) -> dict[str, _Place]:
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if size < 8 or length > min(size, _MAX_HEADER):
                raise UnusableInput(f"{file} is no safetensors file, or is cut short; fetch it again")
            table = cast("dict[str, Any]", json.loads(handle.read(length)))
            table.pop("__metadata__", None)
        places = {
            name: _Place(
                file,
                str(entry["dtype"]),
                tuple(int(extent) for extent in entry["shape"]),
                8 + length + int(entry["data_offsets"][0]),
                8 + length + int(entry["data_offsets"][1]),
            )
            for name, entry in table.items()
        }
    except OSError as error:
        raise UnusableInput(f"cannot read {file}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise UnusableInput(f"{file} is no safetensors file, or is damaged; fetch it again") from None
    last = max((place.end for place in places.values()), default=0)
    if last > size:
        raise UnusableInput(
            f"{file} is cut short: its tensors end at byte {last} and the file at {size}; fetch it again"
        )
    return places


_GGUF_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""llama.cpp's names (gguf-py/gguf/constants.py) and Hugging Face's."""


class GgufWeights:
    """A .gguf file. llama.cpp stores Q and K of the llama architecture with the halves of each head interleaved."""

    def __init__(self, path: Path, dims: Dimensions) -> None:
        self.file: GgufFile = read_gguf(path)
        self.dims = dims
        self.architecture = str(self.file.metadata.get("general.architecture"))
        self._names: dict[str, str] = {}
        for name in self.file.tensors:
            known = _hugging_face_name(name)
            if known is not None:
                self._names[known] = name

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """What the file holds of a decoder, under Hugging Face's names."""
        return {known: self.file.tensors[name].shape for known, name in self._names.items()}

    def values(self, name: str) -> Array:
        """One tensor, dequantised to float32."""
        found = self.file.values(self._names[name])
        if self.architecture != "llama":
            return found
        part = re.search(r"self_attn\.([qk])_proj", name)
        if part is None:
            return found
        heads = self.dims.heads if part[1] == "q" else self.dims.kv_heads
        rest = found.shape[1:]
        return found.reshape(heads, -1, 2, *rest).swapaxes(1, 2).reshape(found.shape)

    def describe(self) -> dict[str, Any]:
        """Kind, file, quantisations, bytes."""
        entries = [self.file.tensors[name] for name in self._names.values()]
        return {
            "kind": "gguf",
            "source": str(self.file.path),
            "stored_as": sorted({entry.kind.name for entry in entries}),
            "bytes": sum(entry.size for entry in entries),
        }

    def fingerprint(self) -> str:
        """Of the file's bytes."""
        return _digest_of([self.file.path])


def _hugging_face_name(name: str) -> str | None:
    if name in _GGUF_NAMES:
        return _GGUF_NAMES[name]
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if found is None or found[2] not in _GGUF_LAYER:
        return None
    return f"model.layers.{found[1]}.{_GGUF_LAYER[found[2]]}.{found[3]}"


class Seeded:
    """Weights made from a seed, tensor by tensor: 256 levels of a normal distribution, stable over numpy's versions.

    Spreads keep activations of order one at any depth: projections 1/sqrt(inputs), those that feed the residual stream
    divided by sqrt(2 layers) as well, the embedding 3/sqrt(emb) so that logits of a tied head spread by about 3, norms
    around one. Each tensor depends on the seed and its name alone.
    """

    def __init__(self, seed: int, shapes: Mapping[str, tuple[int, ...]], layers: int) -> None:
        self.seed, self._shapes, self.layers = seed, dict(shapes), layers

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """What the config asks for."""
        return self._shapes

    def values(self, name: str) -> Array:
        """One tensor in bf16."""
        shape = self._shapes[name]
        count = math.prod(shape)
        key = int.from_bytes(hashlib.sha256(f"{self.seed}/{name}".encode()).digest()[:16], "little")
        words = np.asarray(np.random.PCG64(key).random_raw(-(-count // 8)), "<u8").view("<u2")
        mean, spread = self._moments(name, shape)
        levels = (np.float32(mean) + np.float32(spread) * _levels()).astype(BF16).view(np.uint16).astype(np.uint32)
        pairs = (levels[:, None] << 16 | levels[None, :]).reshape(-1)
        made = np.empty(words.size, "<u4")
        for at in range(0, words.size, _PIECE):
            np.take(pairs, words[at : at + _PIECE], out=made[at : at + _PIECE], mode="clip")
        return made.view("<u2")[:count].view(BF16).reshape(shape)

    def _moments(self, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        if name.endswith("norm.weight"):
            return 1.0, 0.1
        if name.endswith(".bias"):
            return 0.0, 0.1
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            return 0.0, 3 / math.sqrt(shape[1])
        residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        return 0.0, 1 / math.sqrt(shape[1] * (2 * self.layers if residual else 1))

    def describe(self) -> dict[str, Any]:
        """Kind, seed, and that nothing was trained."""
        count = sum(math.prod(shape) for shape in self._shapes.values())
        return {"kind": "seeded", "source": f"random:{self.seed}", "stored_as": ["BF16"], "bytes": 2 * count}

    def fingerprint(self) -> str:
        """Of the seed and the shapes."""
        said = json.dumps([self.seed, self.layers, sorted(self._shapes.items())])
        return hashlib.sha256(said.encode()).hexdigest()


@cache
def _levels() -> NDArray[np.float32]:
    """The middles of 256 equally likely slices of the standard normal, scaled to variance one."""
    grid = np.linspace(-6, 6, 1 << 17)
    below: NDArray[np.float64] = np.cumsum(np.exp(-grid * grid / 2))
    middles = np.asarray(np.interp((np.arange(256) + 0.5) / 256 * below[-1], below, grid), np.float64)
    return np.asarray(middles / np.std(middles), np.float32)


def _digest_of(files: list[Path]) -> str:
    whole = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as handle:
                whole.update(hashlib.file_digest(handle, "sha256").digest())
        except OSError as error:
            raise UnusableInput(f"cannot read {file}: {error.strerror or error}") from None
    return whole.hexdigest()
