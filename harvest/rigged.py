"""Planted failures through the real machine: a tiny model deployed on the emulator, spoilt in one place, then mended.

>>> rigs = {rig.code: rig for rig in RIGS}
>>> first = first_deployment(folder, rigs["nan"], shipped)

The plan, the recipes, the check, the emulator and the gates are the product's; phase 0's reference is the
own FP32 decomposition, so that no torch is needed. Kinds an emulator has not (compiled artefacts that are stale, a
driver's contexts) have no rig and are not planted. Every rig works in a copy of a workspace whose kernels all passed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npu_tools.architectures import Dimensions, read_config
from npu_tools.deployment.machine import Machine, Model, OpenOptions
from npu_tools.deployment.site import BUFFERS
from npu_tools.deployment.workspace import Workspace
from npu_tools.deployment.world import OracleAnswer, RealWorld
from npu_tools.oracle import Decomposition, stage_path

SEQ_LEN = 64
FIRST: Mapping[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "num_hidden_layers": 1, "hidden_size": 128,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "vocab_size": 512,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 256,
}  # fmt: skip
SECOND: Mapping[str, Any] = {**FIRST, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 1024}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rig:
    """How a kind of failure is brought about: settings of a kernel, or words replaced in its recipe.

    `at`: the shape the settings are for, from the model's widths, or `buffers/`; empty for all. `edits`: what stands in design.py, and
    what is put there. `why` is what the mending decision says.
    """

    code: str
    kernel: str
    why: str
    at: str = ""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    edits: tuple[tuple[str, str], ...] = ()

    @property
    def told(self) -> str:
        """The kernel the ledger names: none at the block's gate."""
        return "" if self.last == 2 else self.kernel

    @property
    def last(self) -> int:
        """The phase that finds it: a buffer's mark shows once kernels follow each other."""
        return 2 if self.at == BUFFERS else 1

    def key(self, config: Mapping[str, Any]) -> str:
        """The setting's key for a model."""
        if self.at == BUFFERS:
            return BUFFERS + self.kernel
        return f"{self.kernel} {_filled(self.at, config)}" if self.at else self.kernel

    def values(self, config: Mapping[str, Any]) -> dict[str, int | str]:
        """The settings' values for a model."""
        filled = {name: _filled(text, config) for name, text in self.settings.items()}
        return {name: text if name == "static" else int(text) for name, text in filled.items()}

    @property
    def changed(self) -> str:
        """What the lesson's fix must name."""
        return next(iter(self.settings), "design.py")


def _filled(text: str, config: Mapping[str, Any]) -> str:
    """`{wide}` and the like with the model's widths."""
    widths = {
        "{wide}": SEQ_LEN * int(config["intermediate_size"]),
        "{half}": SEQ_LEN * int(config["intermediate_size"]) // 2, "{rows}": SEQ_LEN * int(config["num_attention_heads"]),
        "{inner}": config["intermediate_size"], "{hidden}": config["hidden_size"],
    }  # fmt: skip
    for name, value in widths.items():
        text = text.replace(name, str(value))
    return text


_LOAD = "                    text.dma(other, Window(right, [at], [tile], [1]))\n"
_FUNCTION = '    with text.function("eltwise_add", [flat, flat, flat]) as (a, b, c):\n'
_CHANNEL = (_FUNCTION, '    text.channel("extra", [8, 1])\n' + _FUNCTION)
_GET, _PUT = (f'                    text.{verb}("extra", [x, y], other)\n' for verb in ("get", "put"))
_CALL = "                    text.call(SYMBOL, [before, turns, after, count])\n"
_SYMBOL = 'SYMBOL, OBJECT = "rope", "rope.o"\n'
_INTERLEAVED = """                    reorder(text, before, after, head_dim, True)
                    text.call(SYMBOL, [after, turns, before, count])
                    reorder(text, before, after, head_dim, False)
"""
_REORDER = """

def reorder(text: Text, source: Value, target: Value, length: int, apart: bool) -> None:
    with text.loop(0, length // 2) as i:
        for part in range(2):
            woven, split = text.apply(f"s0 * 2 + {part}", [i]), text.apply(f"s0 + {part * (length // 2)}", [i])
            of, to = (woven, split) if apart else (split, woven)
            value = text.op(f"memref.load {source}[{of}] : {source.type}", "bf16")
            text.line(f"memref.store {value}, {target}[{to}] : {target.type}")
"""
_GROUP = 'text.apply(f"s0 floordiv {self.heads // self.kv_heads}", [head])'
RIGS = (
    Rig("divisibility", "gemm", "64 tokens are no multiple of tile_m times herd_m", settings={"tile_m": "48"}),
    Rig("buffer_bytes", "silu_mul", "three doubled pieces must fit a core's memory", "{wide}", {"tile": "{half}", "columns": "1"}),
    Rig("bd_count", "gemv", "every launch iteration of a host step takes a descriptor of the shim", settings={"loop_tiling": "32"}),
    Rig("shim_channels", "rope", "three streams a core leave no channels for a second row", "{rows}x64", {"herd_x": "8", "herd_y": "2"}),
    Rig("deadlock", "eltwise_add", "the put stands behind the get that waits for it", edits=(_CHANNEL, (_LOAD, _GET + _PUT))),
    Rig("leftover_elements", "eltwise_add", "the second piece put into the channel is never taken", edits=(_CHANNEL, (_LOAD, _LOAD + _PUT + _GET + _PUT))),
    Rig("unwritten_read", "eltwise_add", "the second operand has to be loaded before it is read", edits=((_LOAD, ""),)),
    Rig("rope_convention", "rope", "Hugging Face rotates halves of the head, not neighbours", edits=((_CALL, _INTERLEAVED), (_SYMBOL, _SYMBOL + _REORDER))),
    Rig("missing_bias", "qkv_bias", "the config has biases and the kernel has to add them", edits=(('text.op(f"arith.addf {pair[0]}, {pair[1]} : {vector}", vector)', "pair[0]"),)),
    Rig("stale_buffer", "eltwise_add", "the first operand is another at every call", "buffers/", {"static": "0"}),
    Rig("causal_mask", "flash_attention", "the kernel has to be printed with its mask", edits=(("Mapping[str, Any]) -> str:\n", 'Mapping[str, Any]) -> str:\n    settings = {**settings, "causal": False}\n'),)),
    Rig("norm_epsilon", "rmsnorm", "the epsilon has to be the config's", edits=(('float(settings["eps"])', "0.5"),)),
    Rig("nan", "rmsnorm", "no root of a negative mean", edits=(("text.constant(eps, 'f32')", "text.constant(-100.0, 'f32')"),)),
    Rig("lm_head_rows", "lm_head_gemv", "the partitions have to hold the whole vocabulary", settings={"n_part": "128", "n_partitions": "2"}),
    Rig("repeat_count", "gemv", "one column that takes a row at a time reads the vector once for every row", "{inner}x{hidden}", {"herd_m": "1", "tile_m": "2", "m_input": "1", "loop_tiling": "0"}),
    Rig("kv_heads", "flash_attention", "a query head reads the key head of its own group", edits=((_GROUP, 'text.apply("s0 * 0", [head])'),)),
    Rig("transposed_weight", "gemm", "the weight has to be stored the way the window reads it, not read transposed", edits=(("[self.outer * self.n, self.tile_n, self.n, 1],", "[self.outer, self.tile_n * self.k, 1, self.k],"),)),
    Rig("out_of_bounds", "eltwise_add", "the first piece of a core begins where its stretch begins, not a tile later", edits=(('s2 * {tile}"', 's2 * {tile} + {tile}"'),)),
    Rig("object_symbol", "silu_mul", "the object file has the function under its full name only", edits=(('SYMBOL = "silu_and_mul_bf16"', 'SYMBOL = "silu_and_mul"'),)),
    Rig("two_writers", "rope", "every core has to take rows of its own", edits=(("s1 * {height} + s2", "s1 * 0 + s2"),)),
)  # fmt: skip


class OwnReference(RealWorld):
    """The real world, with the own FP32 decomposition in the place of Hugging Face beside it."""

    def stages(
        self, config: Mapping[str, Any], source: str, folder: Path, tokens: Sequence[int], *, depth: int | None,
        keep: Sequence[str] | None, compare: bool,
    ) -> OracleAnswer:  # fmt: skip
        """Every stage by the decomposition, which stands in for Hugging Face too."""
        dims = read_config(config)
        assert isinstance(dims, Dimensions)
        layers: list[dict[str, float | int | None]] = []
        for layer, stage, array in Decomposition(dims, self.weights(source, config)).stages(list(tokens), depth=depth):
            if keep is None or stage in keep:
                path = folder / stage_path(layer, stage)
                path.parent.mkdir(parents=True, exist_ok=True)
                np.save(path, array)
            if stage == "output":
                layers.append({"layer": layer, "cosine": 1.0, "error": 0.0})
        logits = {"cosine": 1.0, "error": 0.0, "same_token": True}
        return OracleAnswer(True, "", folder, {"layers": layers, "logits": logits, "versions": {}})


def passing(folder: Path, config: Mapping[str, Any], shipped: Path) -> Path:
    """A workspace in which phases 0 and 1 passed, for rigs to be copied from."""
    machine = Machine(Workspace(folder), OwnReference(shipped), shipped)
    machine.open(Model(f"tiny-{config['hidden_size']}", config, "random:7"), OpenOptions(seq_len=SEQ_LEN))
    ran = machine.run(last=1)
    if ran.state != "passed":
        raise AssertionError(f"the tiny model does not pass as it is: {ran.summary}")
    return folder


def spoilt(
    base: Path, folder: Path, rig: Rig, config: Mapping[str, Any], shipped: Path
) -> tuple[Machine, tuple[str, ...]]:
    """A copy of `base` with the failure in it: the machine, and what it asks a memory with for every gate that fails."""
    shutil.copytree(base, folder)
    machine = Machine(Workspace(folder), OwnReference(shipped), shipped)
    if rig.settings:
        machine.set(rig.key(config), rig.values(config), why="tried another value")
    else:
        text = machine.read_recipe(rig.kernel, "design.py")
        for old, new in rig.edits:
            if old not in text:
                raise AssertionError(f"{rig.kernel}/design.py does not hold {old!r}: the rig {rig.code} fits no more")
            text = text.replace(old, new)
        machine.write_recipe(rig.kernel, "design.py", text, why="tried another form")
    ran = machine.run(last=rig.last)
    if ran.state == "passed":
        return machine, ()
    return machine, tuple(str(entry.body["diagnosis"]["text"]) for entry in ran.failures)


def mend(machine: Machine, rig: Rig, config: Mapping[str, Any]) -> bool:
    """Take the change back and say why; whether the gates pass then."""
    if rig.settings:
        machine.set(rig.key(config), dict.fromkeys(rig.settings), why=rig.why)
    else:
        machine.write_recipe(rig.kernel, "design.py", None, why=rig.why)
    return machine.run(last=rig.last).state == "passed"
