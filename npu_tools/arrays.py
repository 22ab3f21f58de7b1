"""Arrays in and out of a run: `.npz` and `.safetensors` files, a function's signature, seeded inputs.

`arg0 … argN` name the function's arguments in order. bf16 may come as float32 or ml_dtypes.bfloat16; scalars are
0-d arrays. In `.npz` files bf16 goes out as float32 (numpy cannot name bf16), in `.safetensors` as BF16.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    MemRefType,
    Signedness,
)  # fmt: skip
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding
from npu_tools.gate.compare import numbers

Array = NDArray[Any]
MAX_FILE_BYTES = 16 * 1024**3
"""Largest input file read; a 4B model's largest tensor is under 2 GB."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a function: a memref of static shape, or a scalar (shape None)."""

    name: str
    shape: tuple[int, ...] | None
    dtype: np.dtype[Any]
    element: str


def non_finite(inputs: Mapping[str, Array]) -> list[Finding]:
    """A warning for every input that holds NaN or infinities: what they touch says nothing about the program."""
    found: list[Finding] = []
    for name, given in inputs.items():
        values = np.asarray(given)
        if values.dtype.kind not in "fV":
            continue
        values = values.astype(np.float32) if values.dtype.itemsize == 2 else values
        bad = ~np.isfinite(values)
        if bad.any():
            nans = int(np.isnan(values).sum())
            first = [int(index) for index in np.argwhere(bad)[0]]
            found.append(
                Finding(
                    "warning",
                    "non-finite-input",
                    f"{name} holds {nans} NaN and {int(bad.sum()) - nans} infinities of {values.size} values, the first at {first}",
                    remedy="give finite inputs, unless the program is meant to meet these",
                )
            )
    return found


def signature(function: FuncOp) -> list[Argument]:
    """The function's arguments in order.

    Raises:
        UnusableInput: a dynamic or unranked shape, or a type that is no number.
    """
    found: list[Argument] = []
    for position, kind in enumerate(list(function.function_type.inputs.data)):
        name = f"arg{position}"
        if isinstance(kind, MemRefType):
            memref = cast("MemRefType[Attribute]", kind)
            shape = tuple(memref.get_shape())
            if any(size < 0 for size in shape):
                raise UnusableInput(f"{name} has the dynamic shape {kind}; the device needs static shapes, so give one")
            found.append(Argument(name, shape, _dtype(memref.element_type, name), str(memref.element_type)))
        else:
            found.append(Argument(name, None, _dtype(kind, name), str(kind)))
    return found


def read_arrays(path: Path) -> dict[str, Array]:
    """The named arrays of a `.npz` or `.safetensors` file. Pickled content is never loaded.

    Raises:
        UnusableInput: no such file, another format, or damaged.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UnusableInput(f"{path} has {path.stat().st_size} bytes, over {MAX_FILE_BYTES}")
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]

            return dict(load_file(path))
        if path.suffix == ".npy":
            return {"arg0": np.load(path, allow_pickle=False)}
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except UnusableInput:
        raise
    except OSError as error:
        raise UnusableInput(f"cannot read {path}: {error.strerror or error}") from None
    except MemoryError:
        raise UnusableInput(f"{path} says it holds more than this machine's memory; is it damaged?") from None
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, TypeError, AttributeError, OverflowError):
        raise UnusableInput(f"{path} is no .npz of plain arrays, or is damaged; write it with numpy.savez") from None
    except Exception as error:
        if type(error).__name__ == "SafetensorError":
            raise UnusableInput(f"{path} is no safetensors file ({error})") from None
        raise


def write_arrays(path: Path, arrays: dict[str, Array]) -> None:
    """Write arrays as `.npz` or `.safetensors`, whole or not at all; makes the folder.

    Raises:
        UnusableInput: the file cannot be written, or has another ending.
    """
    if path.suffix not in (".npz", ".safetensors"):
        raise UnusableInput(f"outputs go to a .npz or .safetensors file, not {path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part" + path.suffix)
        os.close(handle)
        part = Path(name)
        try:
            if path.suffix == ".npz":
                plain = {key: a.astype(np.float32) if a.dtype == ml_dtypes.bfloat16 else a for key, a in arrays.items()}
                with part.open("wb") as file:
                    np.savez(file, allow_pickle=False, **plain)
            else:
                from safetensors.numpy import save_file  # pyright: ignore[reportUnknownVariableType]

                save_file({key: np.ascontiguousarray(a) for key, a in arrays.items()}, part)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UnusableInput(f"cannot write {path}: {error.strerror or error}") from None


def fitted(arrays: dict[str, Array], arguments: list[Argument]) -> dict[str, Array]:
    """`arrays` as the function takes them: right names, shapes and dtypes. Missing memrefs are left out (unwritten).

    Raises:
        UnusableInput: an unknown name, another shape, numbers that do not fit the type; the text says which.
    """
    known = {argument.name for argument in arguments}
    extra = sorted(set(arrays) - known)
    if extra:
        raise UnusableInput(f"no argument {extra[0][:40]!r}; the function takes {', '.join(sorted(known)) or 'none'}")
    ready: dict[str, Array] = {}
    for argument in arguments:
        given = arrays.get(argument.name)
        if given is None:
            if argument.shape is None:
                raise UnusableInput(f"{argument.name} is a scalar ({argument.element}) and needs a value")
            continue
        ready[argument.name] = _fit(given, argument)
    return ready


def seeded(arguments: list[Argument], seed: int) -> dict[str, Array]:
    """Inputs for a trial: standard normal floats over the root of the last extent, small integers; the same by seed."""
    rng = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for argument in arguments:
        shape = argument.shape or ()
        if argument.dtype.kind in "iub":
            top = 2 if argument.dtype.kind == "b" else 8
            made[argument.name] = rng.integers(0, top, shape).astype(argument.dtype)
        else:
            scale = 1 / np.sqrt(shape[-1]) if shape else 1.0
            made[argument.name] = np.asarray(rng.standard_normal(shape) * scale).astype(argument.dtype)
    return made


def _fit(given: Array, argument: Argument) -> Array:
    values = numbers(given, argument.name)
    shape = argument.shape or ()
    if values.shape != shape:
        same = values.size == int(np.prod(shape))
        hint = "; it has as many elements: reshape it" if same else ""
        raise UnusableInput(
            f"{argument.name} has shape {list(values.shape)}, the function takes {list(shape)} of {argument.element}{hint}"
        )
    wanted = argument.dtype
    if wanted.kind in "iu":
        if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.rint(values))).all():
            raise UnusableInput(f"{argument.name} is {argument.element} and got fractions, NaN or Inf")
        limits = np.iinfo(wanted)
        if values.size and (values.min() < limits.min or values.max() > limits.max):
            unsigned = limits.min < 0 and values.min() >= 0 and values.max() <= 2 * limits.max + 1
            if unsigned:  # MLIR's i8 is signless: 200 is the same byte as -56
                return values.astype(np.dtype(f"u{wanted.itemsize}")).view(wanted)
            raise UnusableInput(
                f"{argument.name} is {argument.element}, {limits.min} to {limits.max}; got {values.min()} to {values.max()}"
            )
    return values.astype(wanted)


def _dtype(kind: Attribute, name: str) -> np.dtype[Any]:
    match kind:
        case BFloat16Type():
            return np.dtype(ml_dtypes.bfloat16)
        case Float16Type():
            return np.dtype(np.float16)
        case Float32Type():
            return np.dtype(np.float32)
        case Float64Type():
            return np.dtype(np.float64)
        case IndexType():
            return np.dtype(np.int64)
        case IntegerType():
            bits = kind.width.data
            if bits == 1:
                return np.dtype(np.bool_)
            if bits in (4, 8, 16, 32, 64):
                sign = "u" if kind.signedness.data is Signedness.UNSIGNED else ""
                return np.dtype(f"{sign}int{max(bits, 8)}")
        case _:
            pass
    raise UnusableInput(f"{name} is of type {kind}, which is no number an array can hold")
