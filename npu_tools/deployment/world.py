"""What a deployment works with, as one protocol: weights, plan, runner, oracle, evaluator. Tests bring their own.

`RealWorld` is the product's; everything heavy in it is imported at the first use, torch only in the oracle's process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from npu_tools.architectures import Dimensions
from npu_tools.backends.protocol import Backend
from npu_tools.deployment.state import setting_for
from npu_tools.errors import NpuToolsError, RunStopped, UnusableInput

if TYPE_CHECKING:
    from npu_tools.models.plan import ModelPlan

Array = NDArray[Any]
Tap = Callable[[int | None, str, Array], None]
Settings = Mapping[str, Mapping[str, Any]]
"""By kernel ("gemm"), kernel and shape ("gemm 64x128x128") or step ("prefill/q"); later ones win."""
Merged = bool | Literal["prefill", "decode"]
"""Which kernels run as merged ELFs: none, all, or those of one half."""


class WeightsLike(Protocol):
    """An opened checkpoint."""

    def tensor(self, name: str) -> Array:
        """One tensor by its Hugging Face name."""
        ...

    def digest(self) -> str:
        """What identifies the weights."""
        ...


class PrefillLike(Protocol):
    """What a prefill gives."""

    @property
    def logits(self) -> Array:
        """[vocab] of the last real token."""
        ...


class RunnerLike(Protocol):
    """A model loaded on a backend."""

    def prefill(self, tokens: Sequence[int], tap: Tap | None = None) -> PrefillLike:
        """Start anew with a prompt."""
        ...

    def decode(self, token: int) -> Array:
        """One more token; logits [vocab]."""
        ...

    def decode_digest(self) -> str:
        """What identifies the programs of decode and head, and what the caches hold."""
        ...


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One ELF call: a recipe at a shape, and what it is for in the model."""

    name: str
    kernel: str
    shape: Mapping[str, int]
    settings: Mapping[str, Any]
    phase: str = "prefill"
    """prefill, decode or head."""

    @property
    def extents(self) -> str:
        """The shape as the command line has it."""
        return "x".join(str(extent) for extent in self.shape.values())

    def key(self) -> str:
        """What is the same kernel, whatever it is for."""
        return f"{self.kernel}/{self.extents} {json.dumps(dict(self.settings), sort_keys=True)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A model's ELF calls in order: of one layer at prefill and at decode, and of the head; what stays on the host."""

    prefill: tuple[KernelUse, ...]
    decode: tuple[KernelUse, ...]
    head: tuple[KernelUse, ...]
    host: tuple[str, ...] = ()

    def distinct(self) -> list[tuple[KernelUse, tuple[str, ...]]]:
        """Every kernel once, with the names of all it is for."""
        found: dict[str, tuple[KernelUse, tuple[str, ...]]] = {}
        for use in (*self.prefill, *self.decode, *self.head):
            known = found.get(use.key())
            found[use.key()] = (use, (*(known[1] if known else ()), use.name))
        return list(found.values())

    def chosen(self, settings: Settings) -> Plan:
        """With a deployment's own settings laid over."""

        def over(uses: tuple[KernelUse, ...]) -> tuple[KernelUse, ...]:
            return tuple(
                replace(
                    use,
                    settings={
                        **use.settings,
                        **setting_for(settings, use.kernel, use.extents, f"{use.phase}/{use.name}"),
                    },
                )
                for use in uses
            )

        return Plan(over(self.prefill), over(self.decode), over(self.head), self.host)


@dataclass(frozen=True, slots=True)
class OracleAnswer:
    """What the oracle said: `ok` means it ran to its end; figures are in `answer`, arrays under `folder`."""

    ok: bool
    reason: str
    folder: Path
    answer: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class RunnerRequest:
    """A model to load: everything a runner is built from."""

    dims: Dimensions
    seq_len: int
    fused: Merged
    settings: Settings
    kernels: Path


class World(Protocol):
    """Everything outside the machine."""

    def weights(self, source: str, config: Mapping[str, Any]) -> WeightsLike:
        """Open a checkpoint; raises UnusableInput where it contradicts the config."""
        ...

    def plan(self, request: RunnerRequest) -> Plan:
        """The kernels a model needs, with the request's settings laid over."""
        ...

    def backend(self, name: str) -> Backend:
        """A backend by name."""
        ...

    def runner(self, request: RunnerRequest, weights: WeightsLike, backend: Backend) -> RunnerLike:
        """A model loaded."""
        ...

    def processes(self, request: RunnerRequest, prompts: int) -> int:
        """How many processes may run this model at once, at most one a prompt."""
        ...

    def stages(
        self, config: Mapping[str, Any], source: str, folder: Path, tokens: Sequence[int], *, depth: int | None,
        keep: Sequence[str] | None, compare: bool,
    ) -> OracleAnswer:  # fmt: skip
        """FP32 stages of a prompt, beside Hugging Face's where `compare`."""
        ...

    def greedy(
        self, config: Mapping[str, Any], source: str, folder: Path, prompts: Sequence[Sequence[int]], steps: int
    ) -> OracleAnswer:
        """Greedy tokens and logits of Hugging Face bf16."""
        ...

    def prompts(self, source: str, dims: Dimensions, count: int, longest: int) -> list[list[int]]:
        """Prompts for the token gate."""
        ...

    def evaluate(self, workspace: Path, kernels: Path) -> Mapping[str, Any]:
        """The independent evaluator's verdict, from a fresh process."""
        ...


TEXTS = (
    "The capital of France is",
    "Water freezes at a temperature of",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time there was a small village at the edge of a",
    "The first president of the United States was George",
    "1, 2, 3, 4, 5, 6,",
    "Monday, Tuesday, Wednesday, Thursday,",
    "The sun rises in the east and sets in the",
)
"""Prompts with a clear continuation: a close race in the reference says nothing about the device."""
MEMORY_SHARE = 0.8
"""Of the memory that is free now, what models running at once may take."""
RANDOM_LENGTH = 12
"""Tokens of a prompt where there is no tokenizer."""


@dataclass(frozen=True, slots=True)
class RealWorld:
    """The product's own parts. `shipped`: the folder of recipes; `python`: one that has torch, for the oracle."""

    shipped: Path
    python: str | None = None
    timeout_s: float = 6 * 3600
    cancelled: Callable[[], bool] | None = None
    progress: Callable[[float, float, str], None] | None = None
    xrt: Callable[[], Backend] | None = None
    """Opens the device's backend, where there is one."""
    at_once: int | None = None
    """Most processes that run the model at once; as many as there are cores without it."""

    def weights(self, source: str, config: Mapping[str, Any]) -> WeightsLike:
        """See World."""
        from npu_tools.models.weights import open_weights

        return open_weights(source, dict(config))

    def plan(self, request: RunnerRequest) -> Plan:
        """See World."""
        return plan_of(_model_plan(request)).chosen(request.settings)

    def backend(self, name: str) -> Backend:
        """See World."""
        if name == "emulator":
            from npu_tools.backends import EmulatorBackend

            return EmulatorBackend(cancelled=self.cancelled)
        if name != "xrt" or self.xrt is None:
            raise UnusableInput(
                f"the backend {name} is not there: xrt needs mlir-air and pyxrt on a machine with an NPU; 'herdbook "
                "doctor' says what is missing"
            )
        return self.xrt()

    def runner(self, request: RunnerRequest, weights: WeightsLike, backend: Backend) -> RunnerLike:
        """See World."""
        from npu_tools.models.runner import Runner

        runner = Runner(
            request.dims, weights, [request.kernels], backend, request.seq_len, fused=request.fused is True,
            settings=request.settings,
        )  # fmt: skip
        runner.plan = _model_plan(request)
        return runner

    def processes(self, request: RunnerRequest, prompts: int) -> int:
        """See World. No more than there is memory for."""
        import psutil

        from npu_tools.models.runner import memory_bytes

        room = int(psutil.virtual_memory().available * MEMORY_SHARE) // memory_bytes(request.dims)
        return max(1, min(prompts, self.at_once or _cores(), room))

    def stages(
        self, config: Mapping[str, Any], source: str, folder: Path, tokens: Sequence[int], *, depth: int | None,
        keep: Sequence[str] | None, compare: bool,
    ) -> OracleAnswer:  # fmt: skip
        """See World."""
        from npu_tools.oracle import StagesRequest

        return self._oracle(
            StagesRequest(
                config=dict(config), weights=source, folder=str(folder), tokens=list(tokens), depth=depth,
                keep=None if keep is None else list(keep), compare=compare,
            ),
            folder,
        )  # fmt: skip

    def greedy(
        self, config: Mapping[str, Any], source: str, folder: Path, prompts: Sequence[Sequence[int]], steps: int
    ) -> OracleAnswer:
        """See World."""
        from npu_tools.oracle import GreedyRequest

        asked = GreedyRequest(
            config=dict(config), weights=source, folder=str(folder), prompts=[list(p) for p in prompts], steps=steps
        )
        return self._oracle(asked, folder)

    def prompts(self, source: str, dims: Dimensions, count: int, longest: int) -> list[list[int]]:
        """Text prompts where the weights bring a tokenizer, else seeded token ids."""
        found = list(_encoded(source, count))
        if not found:
            rng = np.random.default_rng(20_260)
            length = min(RANDOM_LENGTH, longest)
            found = [[int(t) for t in rng.integers(0, dims.vocab, length)] for _ in range(count)]
        return [prompt[:longest] for prompt in found]

    def evaluate(self, workspace: Path, kernels: Path) -> Mapping[str, Any]:
        """See World."""
        from npu_tools.evaluator import run_evaluator

        return run_evaluator(workspace, kernels=kernels)

    def _oracle(self, request: Any, folder: Path) -> OracleAnswer:
        from npu_tools.oracle import run_oracle

        result = run_oracle(
            request, python=self.python, timeout_s=self.timeout_s, cancelled=self.cancelled, progress=self.progress
        )
        if result.state == "cancelled":
            raise RunStopped("stopped by a cancel request")
        return OracleAnswer(result.state == "done", result.reason, folder, result.answer)


def _cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _model_plan(request: RunnerRequest) -> ModelPlan:
    """The plan; where one half is merged, that half of the merged one and the rest of the plain one."""
    from npu_tools.models.plan import plan_model

    plain = plan_model(request.dims, request.seq_len, fused=False)
    if request.fused is False:
        return plain
    merged = plan_model(request.dims, request.seq_len, fused=True)
    match request.fused:
        case "prefill":
            return replace(plain, prefill=merged.prefill)
        case "decode":
            return replace(plain, decode=merged.decode)
        case _:
            return merged


def plan_of(made: Any) -> Plan:
    """A `ModelPlan` of npu_tools.models as a deployment sees it."""

    def on_device(steps: Sequence[Any], phase: str) -> tuple[KernelUse, ...]:
        return tuple(
            KernelUse(step.name, step.recipe, dict(step.shape), dict(step.settings), phase)
            for step in steps
            if step.where == "npu"
        )

    host = [f"{step.name}: {step.why}" for step in (*made.prefill, *made.decode, *made.head) if step.where == "host"]
    return Plan(
        on_device(made.prefill, "prefill"), on_device(made.decode, "decode"), on_device(made.head, "head"),
        tuple(dict.fromkeys(host)),
    )  # fmt: skip


def _encoded(source: str, count: int) -> Iterator[list[int]]:
    """Text prompts by the tokenizer that comes with the weights; none where there is none."""
    if source.startswith("random:"):
        return
    from npu_tools.models.tokenizer import open_tokenizer

    try:
        tokenizer = open_tokenizer(source)
    except NpuToolsError:
        return  # weights alone: seeded token ids do for the gate
    for text in TEXTS[:count]:
        yield tokenizer.prompt(text, chat=False)
