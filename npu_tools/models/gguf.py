"""GGUF files: metadata, and tensors dequantised as the file has them.

    file = read_gguf(Path("model.gguf"))
    file.metadata["general.architecture"]
    file.values("blk.0.attn_q.weight")         # float32 [rows, columns]

Format: ggml docs/gguf.md, versions 2 and 3, little endian. Block layouts: ggml-common.h. Nothing is executed, and sizes
are checked against the file before anything is read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from npu_tools.errors import UnusableInput

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_COUNT = 1 << 24
"""More entries than any vocabulary or tensor list has."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """A block format: `values` weights in `size` bytes, and how blocks [n, size] become floats [n, values]."""

    name: str
    values: int
    size: int
    floats: Callable[[Bytes], Floats]


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in the file; `shape` with the slowest dimension first, as numpy has it."""

    name: str
    shape: tuple[int, ...]
    kind: Quantisation
    offset: int

    @property
    def count(self) -> int:
        """Weights in it."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.count // self.kind.values * self.kind.size


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Entry]

    def values(self, name: str) -> Floats:
        """One tensor as float32.

        Raises:
            UnusableInput: there is none of that name.
        """
        entry = self.tensors.get(name)
        if entry is None:
            raise UnusableInput(f"{self.path} has no tensor {name!r}; it has {len(self.tensors)}")
        blocks = np.fromfile(self.path, np.uint8, entry.size, offset=entry.offset).reshape(-1, entry.kind.size)
        return entry.kind.floats(blocks).reshape(entry.shape)


def read_gguf(path: Path) -> GgufFile:
    """The file's metadata and its table of tensors.

    Raises:
        UnusableInput: it cannot be read, is no GGUF file, is cut short, or has a quantisation unknown here.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as handle:
            reader = _Reader(path, handle.read(min(size, 256 << 20)), size)
    except OSError as error:
        raise UnusableInput(f"cannot read {path}: {error.strerror or error}") from None
    if reader.take(4) != b"GGUF":
        raise UnusableInput(f"{path} is no GGUF file: it does not begin with GGUF")
    version = reader.number("<I")
    if version not in (2, 3):
        raise UnusableInput(f"{path} is GGUF version {version}; 2 and 3 are read. Convert the model anew")
    tensor_count, entry_count = reader.number("<Q"), reader.number("<Q")
    if max(tensor_count, entry_count) > _MAX_COUNT:
        raise UnusableInput(f"{path} says it has {tensor_count} tensors; it is damaged or of the other byte order")
    metadata: dict[str, Any] = {}
    for _ in range(entry_count):
        key = reader.text()
        metadata[key] = reader.value(reader.number("<I"))
    listed: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(tensor_count):
        name, rank = reader.text(), reader.number("<I")
        if rank > 8:
            raise UnusableInput(f"{path}: tensor {name!r} has {rank} dimensions; the file is damaged")
        shape = tuple(reversed([reader.number("<Q") for _ in range(rank)]))
        listed.append((name, shape, reader.number("<I"), reader.number("<Q")))
    alignment = int(metadata.get("general.alignment", 32))
    start = -(-reader.at // max(1, alignment)) * max(1, alignment)
    tensors = {name: _entry(path, name, shape, kind, start + offset) for name, shape, kind, offset in listed}
    for entry in tensors.values():
        if entry.offset + entry.size > size:
            raise UnusableInput(
                f"{path} is cut short: {entry.name} ends at byte {entry.offset + entry.size} and the file at {size}. "
                "Fetch it again"
            )
    return GgufFile(path, metadata, tensors)


def _entry(path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Entry:
    known = QUANTISATIONS.get(kind)
    if known is None:
        readable = ", ".join(one.name for one in QUANTISATIONS.values())
        raise UnusableInput(
            f"{path}: {name} is quantised as {_UNREAD.get(kind, f'type {kind}')}, which is not read here; take a file "
            f"with {readable}, or the original safetensors"
        )
    if shape and shape[-1] % known.values:
        raise UnusableInput(f"{path}: {name} has rows of {shape[-1]}, no multiple of {known.name}'s {known.values}")
    return Entry(name, shape, known, offset)


class _Reader:
    """Walks the head of a file."""

    def __init__(self, path: Path, data: bytes, size: int) -> None:
        self.path, self.data, self.size, self.at = path, data, size, 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise UnusableInput(f"{self.path} ends within its head, at byte {self.size}; fetch it again")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.number("<I"), self.number("<Q")
            if count > _MAX_COUNT:
                raise UnusableInput(f"{self.path}: an array of {count} entries; the file is damaged")
            form = _SCALARS.get(inner)
            if form is not None:
                width = struct.calcsize(form)
                return np.frombuffer(self.take(count * width), np.dtype(form.replace("?", "b"))).tolist()
            return [self.value(inner) for _ in range(count)]
        form = _SCALARS.get(kind)
        if form is None:
            raise UnusableInput(f"{self.path}: metadata of unknown type {kind}; the file is damaged or newer than this")
        return self.number(form)


def _half(blocks: Bytes, at: int) -> Floats:
    """A float16 at this byte of every block, [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(blocks: Bytes) -> Bytes:
    """[n, b] bytes as [n, 2 b] numbers of four bits: all low halves first."""
    return np.concatenate([blocks & np.uint8(0x0F), blocks >> np.uint8(4)], axis=1)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """The 32 fifth bits at this byte of every block, [n, 32], as 0 or 16."""
    bits = np.unpackbits(np.ascontiguousarray(blocks[:, at : at + 4]), axis=1, bitorder="little")
    return (bits << 4).astype(np.uint8)


def _f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view(ml_dtypes.bfloat16).astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:18]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:20]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * ((_nibbles(blocks[:, 6:22]) | _fifth_bits(blocks, 2)).astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    values = (_nibbles(blocks[:, 8:24]) | _fifth_bits(blocks, 4)).astype(np.float32)
    return _half(blocks, 0) * values + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


def _k_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight six-bit scales and eight minima from 12 bytes, [n, 8, 1] each."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 0x3F, (high & 0x0F) | ((low >> 2) & 0x30)], axis=1)
    minima = np.concatenate([middle & 0x3F, (high >> 4) | ((middle >> 2) & 0x30)], axis=1)
    return scales.astype(np.float32)[..., None], minima.astype(np.float32)[..., None]


def _q4_k(blocks: Bytes) -> Floats:
    scales, minima = _k_scales(blocks[:, 4:16])
    packed = blocks[:, 16:144].reshape(-1, 4, 1, 32)
    values = np.concatenate([packed & 0x0F, packed >> 4], axis=2).reshape(-1, 8, 32).astype(np.float32)
    steps, shifts = _half(blocks, 0)[..., None] * scales, _half(blocks, 2)[..., None] * minima
    return np.asarray(steps * values - shifts, np.float32).reshape(-1, 256)


def _q5_k(blocks: Bytes) -> Floats:
    scales, minima = _k_scales(blocks[:, 4:16])
    packed = blocks[:, 48:176].reshape(-1, 4, 1, 32)
    low = np.concatenate([packed & 0x0F, packed >> 4], axis=2).reshape(-1, 8, 32)
    bit = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    fifth = ((blocks[:, None, 16:48] >> bit) & 1) << 4
    values = (low | fifth).astype(np.float32)
    steps, shifts = _half(blocks, 0)[..., None] * scales, _half(blocks, 2)[..., None] * minima
    return np.asarray(steps * values - shifts, np.float32).reshape(-1, 256)


def _q6_k(blocks: Bytes) -> Floats:
    low = blocks[:, 0:128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 0x0F, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = (high >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & 3
    values = ((low | (high << 4)).astype(np.int8) - 32).reshape(-1, 16, 16).astype(np.float32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)[..., None]
    return (_half(blocks, 208)[..., None] * scales * values).reshape(-1, 256)


QUANTISATIONS: Mapping[int, Quantisation] = {
    0: Quantisation("F32", 1, 4, _f32),
    1: Quantisation("F16", 1, 2, _f16),
    2: Quantisation("Q4_0", 32, 18, _q4_0),
    3: Quantisation("Q4_1", 32, 20, _q4_1),
    6: Quantisation("Q5_0", 32, 22, _q5_0),
    7: Quantisation("Q5_1", 32, 24, _q5_1),
    8: Quantisation("Q8_0", 32, 34, _q8_0),
    12: Quantisation("Q4_K", 256, 144, _q4_k),
    13: Quantisation("Q5_K", 256, 176, _q5_k),
    14: Quantisation("Q6_K", 256, 210, _q6_k),
    30: Quantisation("BF16", 1, 2, _bf16),
}
"""By the number the file has."""
_UNREAD = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
