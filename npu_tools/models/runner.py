"""A model run step by step on a backend: prefill of a prompt, then one token after the other.

    runner = Runner(dims, weights, [folder], EmulatorBackend(), 256)
    prompt = runner.prefill(tokens)
    logits = runner.decode(int(prompt.logits.argmax()))

Every projection, norm, rotation and activation of the plan goes through the backend; what the host does is in the plan
too, marked as such. There is no other path. Weights are bound layer by layer: kept where they fit `keep_bytes`, else
made again for each layer, so that a 4B model runs in a few GB.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from npu_tools.architectures import Dimensions
from npu_tools.backends import Backend, Bound
from npu_tools.errors import UnusableInput
from npu_tools.models import host
from npu_tools.models.kernels import Settings, Shelf
from npu_tools.models.plan import Fused, ModelPlan, Phase, Step, middle_stages, plan_model
from npu_tools.models.sources import BF16

Array = NDArray[Any]
Tap = Callable[[int | None, str, Array], None]
"""Hears of every stage: the layer (None outside), the stage, its array [seq, width]."""
KEEP_BYTES = 5 << 30
"""Bound on weights kept in the emulator's float32; prefill and decode hold theirs apart."""


def memory_bytes(dims: Dimensions) -> int:
    """About what a runner on the emulator holds at most: its code, the embedding, the head, the weights it keeps."""
    each = 4 * dims.layer_weights * dims.layers
    kept = 2 * each if 2 * each <= KEEP_BYTES else each if each <= KEEP_BYTES else 0
    return (400 << 20) + 3 * 4 * dims.vocab * dims.emb + kept + 3 * 4 * dims.layer_weights


class TensorSource(Protocol):
    """What the runner needs of `Weights`."""

    def tensor(self, name: str) -> Array:
        """One tensor by its Hugging Face name, projections [out, in]."""
        ...


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prompt's logits at its last token [vocab], and the last layer's output at its tokens [tokens, emb]."""

    logits: Array
    hidden: Array


@dataclass(slots=True)
class Spent:
    """What one step took over all layers and runs."""

    phase: Phase
    step: str
    recipe: str
    where: Literal["npu", "host"]
    ran_on: Literal["emulator", "npu", "host"]
    runs: int = 0
    wall_s: float = 0.0
    modelled_us: float | None = None
    """Of one run."""
    measured_us: float = 0.0
    """Of all runs, on a device."""


class Runner:
    """One model on one backend for prompts of up to `seq_len` tokens.

    `recipes_folders` are looked through in order; `settings` override by kernel, shape or step (kernels.py). With a
    backend of "f32" numerics nothing is rounded, between kernels either.
    """

    def __init__(
        self,
        dims: Dimensions,
        weights: TensorSource,
        recipes_folders: Sequence[Path],
        backend: Backend,
        seq_len: int,
        *,
        fused: Fused = False,
        settings: Settings | None = None,
        device: str = "npu2",
        keep_bytes: int = KEEP_BYTES,
        layers: int | None = None,
        pad_token: int = 0,
    ) -> None:
        self.dims, self.weights, self.backend = dims, weights, backend
        self.plan: ModelPlan = plan_model(dims, seq_len, fused=fused)
        self.shelf = Shelf(recipes_folders, backend, settings, device)
        self.layers = dims.layers if layers is None else min(layers, dims.layers)
        self.pad_token = pad_token
        exact = getattr(backend, "numerics", "faithful") == "f32"
        self.dtype: np.dtype[Any] = np.dtype(np.float32) if exact else BF16
        self.spent: dict[tuple[Phase, str], Spent] = {}
        self.caches: list[host.KeyValueCache] = []
        each = 4 * dims.layer_weights * self.layers
        self._keeps: dict[str, bool] = {"decode": each <= keep_bytes, "prefill": 2 * each <= keep_bytes, "head": True}
        self._bound: dict[tuple[Phase, int, str], Bound] = {}
        self._embedding: Array | None = None
        self._angles: dict[str, Array] = {}

    @property
    def position(self) -> int:
        """Tokens the caches hold: where the next one goes."""
        return self.caches[0].length if self.caches else 0

    def prefill(self, tokens: Sequence[int], tap: Tap | None = None) -> Prefill:
        """Take a prompt in, padded at its end; begins anew, whatever was decoded before.

        Raises:
            UnusableInput: no tokens, more than `seq_len`, or one outside the vocabulary.
            KernelFailed: a kernel was refused or its run failed.
        """
        seq, count = self.plan.seq_len, len(tokens)
        if not 0 < count <= seq:
            raise UnusableInput(f"the prompt has {count} tokens; this runner takes 1 to {seq}. Plan a longer seq_len")
        padded = [*tokens, *[self.pad_token] * (seq - count)]
        hidden = host.embed(self._table(), padded, self.dtype)
        _tell(tap, None, "embedding", hidden)
        self.caches = []
        for layer in range(self.layers):
            stages = self.block(layer, hidden, tap)
            cache = host.KeyValueCache(self.dims.kv_heads, self.dims.head_dim)
            cache.append(stages["k_rope"][:count], stages[middle_stages(self.dims)[2]][:count])
            self.caches.append(cache)
            hidden = stages["output"]
        logits = self._head(hidden, count - 1, tap)
        return Prefill(logits, hidden[:count])

    def block(self, layer: int, hidden: Array, tap: Tap | None = None) -> dict[str, Array]:
        """Every stage of one layer of prefill, from its input [seq_len, emb].

        Raises:
            KernelFailed: a kernel was refused or its run failed.
        """
        if not self._angles:
            self._angles = self._angles_at(np.arange(self.plan.seq_len))
        stages = {"hidden": hidden, **self._angles}
        self._run_steps("prefill", self.plan.prefill, layer, stages, tap)
        return stages

    def decode(self, token: int, tap: Tap | None = None) -> Array:
        """The logits [vocab] after one more token.

        Raises:
            UnusableInput: before any prompt, at the last position, or a token outside the vocabulary.
            KernelFailed: a kernel was refused or its run failed.
        """
        if not self.caches:
            raise UnusableInput("there is no prompt to go on from; call prefill first")
        if self.dims.max_positions and self.position >= self.dims.max_positions:
            raise UnusableInput(f"the model has {self.dims.max_positions} positions, and all are taken")
        hidden = host.embed(self._table(), [token], self.dtype)
        _tell(tap, None, "embedding", hidden)
        angles = self._angles_at(np.array([self.position]))
        for layer in range(self.layers):
            stages = {"hidden": hidden, **angles}
            self._run_steps("decode", self.plan.decode, layer, stages, tap)
            hidden = stages["output"]
        return self._head(hidden, 0, tap)

    def decode_digest(self) -> str:
        """sha256 of what the next tokens follow from besides the weights and the token: the programs of decode and head
        in order, what the host does between them, and the caches."""
        digest = hashlib.sha256(f"{self.layers} {self.dtype}".encode())
        phases: tuple[tuple[Phase, tuple[Step, ...]], ...] = (("decode", self.plan.decode), ("head", self.plan.head))
        for phase, steps in phases:
            for step in steps:
                program = self.shelf.kernel(step, phase).kernel.digest if step.where == "npu" else ""
                digest.update(f"{step!r} {program}\n".encode())
        for cache in self.caches:
            for kept in (cache.keys, cache.values):
                digest.update(kept[:, : cache.length].tobytes())
        return digest.hexdigest()

    def check(self) -> None:
        """Load every kernel of the plan, so that a refused one is known before weights are read.

        Raises:
            KernelFailed: a shape or a program is refused.
            UnknownKernel: there is no such recipe.
        """
        for phase, step in self.plan.steps():
            if step.where == "npu":
                self.shelf.kernel(step, phase)

    def modelled_us(self, phase: Phase) -> float | None:
        """The cost model's time of a phase's kernels: all layers of prefill or of one decoded token, or the head.

        None where one of them has no model.
        """
        steps = {"prefill": self.plan.prefill, "decode": self.plan.decode, "head": self.plan.head}[phase]
        times = [self.shelf.kernel(step, phase).modelled_us for step in steps if step.where == "npu"]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            return None
        return sum(known) * (1 if phase == "head" else self.layers)

    def _run_steps(
        self, phase: Phase, steps: Sequence[Step], layer: int, stages: dict[str, Array], tap: Tap | None
    ) -> None:
        """Make every stage of a layer, in order."""
        for step in steps:
            if step.where == "host":
                made = self._on_host(phase, step, layer, stages)
            else:
                made = self._on_npu(phase, step, layer, stages)
            for tensor, stage in step.outputs.items():
                array = made[tensor]
                stages[stage] = array.reshape(-1, self._width(stage))
                _tell(tap, layer, stage, stages[stage])

    def _on_npu(self, phase: Phase, step: Step, layer: int, stages: Mapping[str, Array]) -> Mapping[str, Array]:
        kernel = self.shelf.kernel(step, phase)
        bound = self._bound.get((phase, layer, step.name))
        if bound is None:
            bound = kernel.bind({tensor: self._weight(name, layer) for tensor, name in step.weights.items()})
            if self._keeps[phase]:
                self._bound[phase, layer, step.name] = bound
        ran = kernel.run(bound, {tensor: stages[stage] for tensor, stage in step.inputs.items()})
        spent = self._account(phase, step, ran.ran_on, ran.wall_s)
        spent.modelled_us = ran.modelled_us
        spent.measured_us += ran.measured_us or 0.0
        return ran.outputs

    def _on_host(self, phase: Phase, step: Step, layer: int, stages: Mapping[str, Array]) -> dict[str, Array]:
        started = time.monotonic()
        given = {tensor: stages[stage] for tensor, stage in step.inputs.items()}
        if step.recipe == "attend":
            cache = self.caches[layer]
            cache.append(given["k"], given["v"])
            made = {"out": cache.attend(given["q"], self.dtype)}
        elif step.recipe == "rms_norm":
            weight = self._weight(step.weights["weight"], layer)
            made = {"y": host.rms_norm(given["x"], weight, float(step.settings["eps"]), self.dtype)}
        elif step.recipe == "add":
            made = {"c": host.add(given["a"], given["b"], self.dtype)}
        elif step.recipe == "silu_mul":
            made = {"y": host.silu_mul(given["gate"], given["up"], self.dtype)}
        else:
            raise UnusableInput(f"{step.name}: the host has no {step.recipe!r}")
        self._account(phase, step, "host", time.monotonic() - started)
        return made

    def _head(self, hidden: Array, last: int, tap: Tap | None) -> Array:
        """The logits [vocab] of one position; the norm is taken of all, and shown to `tap`."""
        stages: dict[str, Array] = {"hidden": hidden}
        for step in self.plan.head:
            if step.where == "host":
                made = self._on_host("head", step, -1, stages)
            else:
                made = self._on_npu("head", step, -1, {name: rows[last : last + 1] for name, rows in stages.items()})
            for tensor, stage in step.outputs.items():
                array = made[tensor]
                stages[stage] = array.reshape(-1, array.shape[-1])
                _tell(tap, None, stage, stages[stage])
        return np.asarray(stages["logits"][0], np.float32)

    def _account(
        self, phase: Phase, step: Step, ran_on: Literal["emulator", "npu", "host"], wall_s: float
    ) -> Spent:  # fmt: skip
        spent = self.spent.get((phase, step.name))
        if spent is None:
            spent = self.spent[phase, step.name] = Spent(phase, step.name, step.recipe, step.where, ran_on)
        spent.runs += 1
        spent.wall_s += wall_s
        return spent

    def _weight(self, name: str, layer: int) -> Array:
        """A weight by the end of its name; ".T" is transposed, as GEMM takes it."""
        plain = name.removesuffix(".T")
        full = plain if plain.startswith(("model.", "lm_head.")) else f"model.layers.{layer}.{plain}"
        found = self.weights.tensor(full)
        return np.ascontiguousarray(found.T) if name.endswith(".T") else found

    def _table(self) -> Array:
        if self._embedding is None:
            self._embedding = self.weights.tensor("model.embed_tokens.weight")
        return self._embedding

    def _angles_at(self, positions: NDArray[Any]) -> dict[str, Array]:
        return {
            f"{part}_angles": host.rope_table(self.dims, positions, heads, self.dtype)
            for part, heads in (("q", self.dims.heads), ("k", self.dims.kv_heads))
        }

    def _width(self, stage: str) -> int:
        part = stage.split("_")[0]
        if part == "q" or stage == "attention":
            return self.dims.q_dim
        if part in ("k", "v"):
            return self.dims.kv_dim
        return self.dims.hidden if stage in ("gate", "up", "swiglu") else self.dims.emb


def _tell(tap: Tap | None, layer: int | None, stage: str, array: Array) -> None:
    if tap is not None:
        tap(layer, stage, array)
