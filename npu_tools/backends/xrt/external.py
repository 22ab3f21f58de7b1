"""External kernels: the C++ objects a program links, built for exactly this program and never stale.

Upstream reuses `mm.o` in the working folder whatever it was built with, and an object of other tile sizes links without
a word and computes nonsense (Xilinx/mlir-air programming_examples/llms/shared/infra/external_kernels.py, PR 1666). Here an
object's place is a digest of its source folder, flags, headers and compiler; the baked sizes are read off the types the
program calls it with, so that they cannot differ from what it moves.

    wanted = wanted_objects(program, options)      # list[Wanted], or findings
    build_object(wanted[0], toolchain, target, store)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import Any, cast

from filelock import FileLock
from xdsl.dialects.builtin import MemRefType, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from npu_tools.air import Program
from npu_tools.backends.xrt.outcomes import first_error, outcome, read_log
from npu_tools.backends.xrt.toolchain import Toolchain, aie_include, identify, peano_folder
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding
from npu_tools.process import run_child

BUILD_S = 300.0
"""Longest one object may take; the largest of upstream's (attention) takes some seconds."""
TRIPLES = {"npu1": "aie2-none-unknown-elf", "npu2": "aie2p-none-unknown-elf"}
_FLAGS = ("-O2", "-std=c++20", "-DNDEBUG", "-D__AIE_API_AIE_ADF_HPP__", "-Wno-parentheses", "-Wno-attributes",
          "-Wno-macro-redefined", "-Wno-empty-body")  # fmt: skip
_SOURCES = (".cc", ".cpp", ".h", ".hpp", ".inc")
BLOCK = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """One object a program links: its name there, its source, and what is baked in."""

    name: str
    source: str
    defines: Mapping[str, str] = field(default_factory=dict[str, str])
    include: str = ""

    @property
    def said(self) -> str:
        """The baked sizes in a line."""
        return " ".join(f"{name}={value}" if value else name for name, value in sorted(self.defines.items())) or "none"


def wanted_objects(program: Program, given: Mapping[str, Any]) -> tuple[list[Wanted], list[Finding]]:
    """The objects the program links, with their baked sizes, and what stands against building them.

    `given` overrides by object name: {"mm.o": {"source": path, "defines": {"DIM_M": 32}}}.

    Raises:
        UnusableInput: `given` is not of that form.
    """
    callees: dict[str, list[FuncOp]] = {}
    for declared in program.declarations().values():
        name = declared.attributes.get("link_with")
        if isinstance(name, StringAttr):
            callees.setdefault(name.data, []).append(declared)
    wanted: list[Wanted] = []
    findings: list[Finding] = []
    for name, functions in callees.items():
        made = _wanted(name, functions, program, _override(given, name))
        if isinstance(made, Finding):
            findings.append(made)
            continue
        wanted.append(made)
        convention = next(
            (row["convention"] for row in _objects() if made.source == row["source"] and "convention" in row), ""
        )
        if convention:
            findings.append(outcome("kernel-convention", object=name, source_file=made.source, convention=convention))
    return wanted, findings


def build_object(wanted: Wanted, toolchain: Toolchain, target: str, store: Path) -> Path | Finding:
    """The object file, from the store or built now."""
    source = _find(wanted.source, toolchain)
    if source is None:
        return outcome("kernel-source-missing", object=wanted.name, source_file=wanted.source)
    peano = peano_folder(toolchain)
    if peano is None:
        return outcome("peano-missing")
    include = aie_include(toolchain)
    if include is None:
        return outcome("aie-header-missing")
    command = [*_FLAGS, f"--target={TRIPLES[target]}", f"-I{include}"]
    if wanted.include and os.path.isfile(include / wanted.include):
        command += ["-include", str(include / wanted.include)]
    command += [f"-D{name}={value}" if value else f"-D{name}" for name, value in sorted(wanted.defines.items())]
    place = store / _key(source, command, toolchain) / wanted.name
    if place.is_file():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(place.parent) + ".lock", timeout=BUILD_S), tempfile.TemporaryDirectory(dir=store) as scratch:
        if place.is_file():
            return place
        made, log = Path(scratch) / wanted.name, place.parent / "build"
        clang = peano / "bin" / ("clang++.exe" if os.name == "nt" else "clang++")
        ended = run_child(
            [str(clang), *command, "-c", str(source), "-o", str(made)],
            timeout_s=BUILD_S, folder=Path(scratch), environment=toolchain.for_tools(), log=log,
        )  # fmt: skip
        if not ended.ok or not made.is_file() or made.stat().st_size == 0:
            known = [one for one in read_log(ended.text, "compile", place=str(store), need_mb=10, how=ended.state)]
            why = ended.state if ended.state != "failed" else first_error(ended.text)
            return (
                known[0]
                if known
                else outcome(
                    "kernel-build", object=wanted.name, why=why, log=f"{log}.err", diagnostic=first_error(ended.text)
                )
            )
        shutil.move(str(made), place)
    return place


def _wanted(name: str, functions: list[FuncOp], program: Program, given: Mapping[str, Any]) -> Wanted | Finding:
    row = next((row for row in _objects() if re.fullmatch(row["name"], name)), None)
    source = str(given.get("source") or (row["source"] if row else ""))
    if not source:
        return outcome("kernel-unknown", object=name)
    defines = {key: str(value) for key, value in (row or {}).get("defines", {}).items()}
    asked = {str(key): str(value) for key, value in cast("Mapping[Any, Any]", given.get("defines", {})).items()}
    known: list[str] = [] if given.get("source") else (row or {}).get("symbols", [])
    renamed = _renamed(functions, known)
    defines |= renamed
    calls = [_call(one, renamed) for one in functions]
    foreign = next((call.symbol for call in calls if known and not _defined(call.symbol, known)), None)
    if foreign is not None:
        return outcome("kernel-parameters", object=name, why=f"it calls {foreign}, which {source} does not define")
    rule = _RULES.get((row or {}).get("sizes", "")) if not given.get("source") else None
    if rule is not None:
        sizes = rule(calls, program)
        if isinstance(sizes, str):
            if not asked:
                return outcome("kernel-parameters", object=name, why=sizes)
            sizes = [dict[str, str]()]
        first = sizes[0]
        other = next((one for one in sizes[1:] if one != first), None)
        if other is not None:
            return outcome("kernel-collision", object=name, first=_said(first), second=_said(other))
        defines |= first
    defines |= asked
    return Wanted(
        name, source, {key: value for key, value in defines.items() if value != "off"}, (row or {}).get("include", "")
    )


def _override(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    one = given.get(name, {})
    if not isinstance(one, Mapping):
        raise UnusableInput(f"objects[{name!r}] must be a table with source and defines")
    mapping = cast("Mapping[str, Any]", one)
    extra = set(mapping) - {"source", "defines"}
    if extra or not isinstance(mapping.get("defines", {}), Mapping):
        raise UnusableInput(
            f"objects[{name!r}] takes source and defines (a table), not {', '.join(sorted(extra)) or 'that'}"
        )
    return mapping


# -- sizes read off the program: each gives one table of defines a call signature, or why it cannot --------------------

Sizes = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class _Call:
    """A function of the object: the name the source has for it, and the shapes of its memref arguments."""

    symbol: str
    shapes: list[tuple[int, ...] | None]
    elements: list[str]

    @property
    def last(self) -> tuple[int, ...] | None:
        return self.shapes[-1] if self.shapes else None


def _renamed(functions: list[FuncOp], symbols: list[str]) -> dict[str, str]:
    """Which of the source's symbols the program knows under a name with something before it."""
    found: dict[str, str] = {}
    for function in functions:
        said = function.sym_name.data
        if _defined(said, symbols):
            continue
        base = max((one for one in symbols if said.endswith(f"_{one}")), key=len, default=None)
        if base is not None:
            found[base] = said
    return found


def _defined(symbol: str, known: list[str]) -> bool:
    """Whether a source defines a symbol, perhaps with the suffix of a second build."""
    return symbol in known or any(re.fullmatch(rf"{re.escape(one)}_m\d+", symbol) for one in known)


def _call(function: FuncOp, renamed: Mapping[str, str]) -> _Call:
    said = function.sym_name.data
    base = next((base for base, name in renamed.items() if name == said), said)
    elements = [
        str(cast("MemRefType[Attribute]", kind).element_type)
        for kind in function.function_type.inputs.data
        if isinstance(kind, MemRefType)
    ]
    return _Call(base, _shapes(function), elements)


def _gemm(calls: list[_Call], program: Program) -> Sizes | str:
    """mm_aie2p.cc: A [.., K/8, M/8, 8, 8], B [.., N/8, K/8, 8, 8] of the product; the symbol's suffix is baked in too."""
    found: Sizes = []
    for call in calls:
        matched = re.fullmatch(r"op_has_no_registered_library_name(\w*)", call.symbol)
        if matched is None or len(call.shapes) < 3:
            continue
        a, b = call.shapes[0], call.shapes[1]
        if a is None or b is None or len(a) < 4 or len(b) < 4 or a[-2:] != (BLOCK, BLOCK):
            return f"@{call.symbol} is not called with tiles of 8 x 8 blocks"
        if call.elements[:3] != ["bf16", "bf16", "f32"]:
            return f"@{call.symbol} is called with {', '.join(call.elements)}: that object is of another source"
        k, m, n = a[-4] * BLOCK, a[-3] * BLOCK, b[-4] * BLOCK
        sizes = {"DIM_M": m, "DIM_N": n, "DIM_K": k, "DIM_N_DIV_4": n // 4, "DIM_M_DIV_4": m // 4}
        sizes |= {"DIM_N_DIV_8": n // 8, "DIM_M_DIV_8": m // 8}
        words = {key: str(value) for key, value in sizes.items()}
        found.append(words | ({"SYM_SUFFIX": matched.group(1)} if matched.group(1) else {}))
    return found or "it calls no op_has_no_registered_library_name"


def _gemv(calls: list[_Call], program: Program) -> Sizes | str:
    """mv.cc: DIM_M_OUTPUT is the length of the output tile, the last argument."""
    found = [{"DIM_M_OUTPUT": str(prod(call.last))} for call in calls if call.last is not None]
    return found or "no function of it takes a memref of known shape"


def _gemv_cascade(calls: list[_Call], program: Program) -> Sizes | str:
    """mv_bf16.cc: rows and depth of the tile a call multiplies; both are baked in, 8 and 512 where nobody says."""
    found: Sizes = []
    for call in calls:
        if call.symbol == "matvec_vectorized_bf16" and len(call.shapes) == 3:
            vector, out = call.shapes[1], call.shapes[2]
            if vector is not None and out is not None:
                found.append({"DIM_M": str(prod(out)), "DIM_K": str(prod(vector))})
    return found or "it calls no matvec_vectorized_bf16 with tiles of known shape"


def _gemv_int4(calls: list[_Call], program: Program) -> Sizes | str:
    """mv_int4_bf16.cc: packed rows are M*K/2 bytes of nibbles and 3 bytes (scale, zero) a group of DIM_GS."""
    for call in calls:
        if call.symbol not in ("matvec_int4_bf16_packed", "matvec_int4_bf16_packed_store") or len(call.shapes) < 3:
            continue
        packed, vector, out = call.shapes[0], call.shapes[1], call.shapes[-1]
        if packed is None or vector is None or out is None:
            continue
        m, k = prod(out), prod(vector)
        groups = prod(packed) - m * k // 2
        if groups > 0 and 3 * m * k % groups == 0:
            return [{"DIM_M": str(m), "DIM_K": str(k), "DIM_GS": str(3 * m * k // groups)}]
    return "no matvec_int4_bf16_packed with tiles of known shape"


def _attention(calls: list[_Call], program: Program) -> Sizes | str:
    """attn_npu2.cc: sizes of one tile. Scores are A B^T of [lqp, dk] and [lkp, dk]; the output tile is [lqp, dv]."""
    named = {call.symbol: call.shapes for call in calls}
    scores, output = named.get("matmul_a_b_bf16"), named.get("matmul_g_b_bf16")
    rows = next((call.last for call in calls if call.symbol.startswith("zero_fill_sp_bf16")), None)
    if scores is None or output is None or rows is None or None in scores or None in output:
        return "it calls no matmul_a_b_bf16, matmul_g_b_bf16 and zero_fill_sp_bf16"
    if "fused_softmax" not in named:
        return "it calls no fused_softmax: that object is of another source"
    lqp = prod(rows)
    a, g, out = (prod(cast("tuple[int, ...]", one)) for one in (scores[0], scores[2], output[2]))
    # Heads-first programs show the head dimension. Sequence-first ones do not; there the tile holds all of it, since
    # more than one chunk of dk hangs (mlir-air .claude/skills/debug-fa-runtime-failure).
    head = _head(program) or a // lqp
    tiles = {"lqp": lqp, "lkp": g // lqp, "dk": a // lqp, "dv": out // lqp, "dk_full": head, "dv_full": head}
    return [{key: str(value) for key, value in tiles.items()}]


def _attention_decode(calls: list[_Call], program: Program) -> Sizes | str:
    """attn_decode_npu2.cc: the head dimension is the width of the rows RoPE is applied to."""
    for call in calls:
        if call.symbol.startswith("shuffle_apply_rope_bf16") and call.last:
            return [{"DIM_N": str(call.last[-1]), "HEAD_SIZE": str(call.last[-1])}]
    return "it calls no shuffle_apply_rope_bf16"


_RULES: dict[str, Callable[[list[_Call], Program], Sizes | str]] = {
    "gemm": _gemm,
    "gemv": _gemv,
    "gemv_cascade": _gemv_cascade,
    "gemv_int4": _gemv_int4,
    "attention": _attention,
    "attention_decode": _attention_decode,
}


def _shapes(function: FuncOp) -> list[tuple[int, ...] | None]:
    """Shapes of the memref arguments, in order; scalars are left out, None for a dynamic one."""
    found: list[tuple[int, ...] | None] = []
    for kind in function.function_type.inputs.data:
        if isinstance(kind, MemRefType):
            shape = tuple(cast("MemRefType[Attribute]", kind).get_shape())
            found.append(shape if all(size >= 0 for size in shape) else None)
    return found


def _head(program: Program) -> int | None:
    for function in program.functions():
        shapes = _shapes(function)
        if shapes and shapes[0] is not None and len(shapes[0]) == 3:
            return shapes[0][-1]
    return None


# -- places and keys ---------------------------------------------------------------------------------------------------


def _find(source: str, toolchain: Toolchain) -> Path | None:
    path = Path(source)
    if path.is_absolute():
        return path if os.path.isfile(path) else None
    if not toolchain.examples:
        return None
    base = Path(toolchain.examples)
    for place in (base / source, base / "programming_examples" / source):
        if os.path.isfile(place):
            return place
    return None


def source_digest(wanted: Wanted, toolchain: Toolchain) -> str:
    """Digest of an object's source and of what lies beside it and may be included; "none" where there is no source."""
    source = _find(wanted.source, toolchain)
    return _folder_digest(source) if source is not None else "none"


def _key(source: Path, command: list[str], toolchain: Toolchain) -> str:
    """Digest of all that decides the object: its folder's sources, the flags, the compiler and mlir-aie's release."""
    identity = identify(toolchain)
    decides = [_folder_digest(source), source.name, command, identity.tools["clang++"], identity.packages]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]


def _folder_digest(source: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(source.parent.iterdir()):
        if path.suffix in _SOURCES and path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@cache
def _objects() -> tuple[dict[str, Any], ...]:
    text = (files("npu_tools.backends.xrt") / "external.toml").read_text(encoding="utf-8")
    return tuple(tomllib.loads(text)["object"])


def _said(sizes: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items())
