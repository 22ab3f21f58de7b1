"""The kernels of a plan, printed, loaded and fed: from the model's stages to a function's arguments and back.

    shelf = Shelf([folder], backend)
    kernel = shelf.kernel(step)
    bound = kernel.bind({"B": weight})
    ran = kernel.run(bound, {"A": stage})
    ran.outputs["C"]

One text is loaded once, however many layers use it. A refused shape or a failed run raises `KernelFailed`, which
carries the findings.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from npu_tools.backends import Backend, Bound, Kernel, Refused
from npu_tools.errors import NpuToolsError, UnknownKernel, UnusableInput
from npu_tools.estimate import estimate_kernel
from npu_tools.findings import Finding
from npu_tools.models.plan import Step
from npu_tools.recipes import Argument, Recipe, Resolved, recipe

Array = NDArray[Any]
Settings = Mapping[str, Mapping[str, Any]]
"""Overrides by `KERNEL`, `KERNEL SHAPE` ("gemm 256x576x576") or `PHASE/STEP` ("prefill/q"); later ones win."""


class KernelFailed(NpuToolsError):
    """A kernel of the model was refused or its run failed: the step, its shape, the findings."""

    def __init__(self, step: Step, findings: Sequence[Finding], what: Literal["refused", "failed"]) -> None:
        self.step, self.findings, self.what = step, tuple(findings), what
        first = next((one for one in findings if one.severity == "error"), None)
        said = f" ({first.code}): {first.message}" if first else ""
        remedy = f"; {first.remedy}" if first and first.remedy else ""
        verb = "is refused" if what == "refused" else "failed when run"
        super().__init__(f"{step.name}: {step.recipe} {step.extents} {verb}{said}{remedy}")


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: what came out by tensor, and what it took."""

    outputs: Mapping[str, Array]
    ran_on: Literal["emulator", "npu"]
    wall_s: float
    modelled_us: float | None
    measured_us: float | None


@dataclass(frozen=True, slots=True)
class StepKernel:
    """A step's recipe, resolved and loaded."""

    step: Step
    recipe: Recipe
    resolved: Resolved
    kernel: Kernel
    arguments: tuple[Argument, ...]
    tensors: Mapping[str, Argument]
    modelled_us: float | None
    text: str
    has_host: bool
    """Whether the recipe has a host's part; without one tensors are the arguments."""

    def bind(self, weights: Mapping[str, Array]) -> Bound:
        """The weights by tensor name, arranged and converted once.

        Raises:
            UnusableInput: an array that does not fit; the text names the argument.
        """
        return self.kernel.bind(self._placed(self._arranged(weights)))

    def run(self, bound: Bound, inputs: Mapping[str, Array]) -> Ran:
        """One run on stages by tensor name, each of the tensor's size in any shape.

        Raises:
            KernelFailed: the run came to no good end.
        """
        started = time.monotonic()
        ran = bound.run(self._placed(self._arranged(inputs)))
        if not ran.ok:
            raise KernelFailed(self.step, ran.findings, "failed")
        given = {self.arguments[at].name: array for at, array in ran.outputs.items()}
        outputs = self.recipe.collect(given, self.resolved) if self.has_host else given
        modelled = self.modelled_us if self.modelled_us is not None else ran.modelled_us
        return Ran(outputs, ran.ran_on, time.monotonic() - started, modelled, ran.measured_us)

    def _arranged(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        shaped: dict[str, Array] = {}
        for name, array in tensors.items():
            wanted = self.tensors.get(name)
            if wanted is None:
                raise UnusableInput(f"{self.step.name}: {self.recipe.name} has no tensor {name}")
            if array.size != math.prod(wanted.shape):
                raise UnusableInput(
                    f"{self.step.name}: {name} of {self.recipe.name} is {list(wanted.shape)}, and an array of shape "
                    f"{list(array.shape)} is given"
                )
            shaped[name] = array.reshape(wanted.shape)
        return self.recipe.arrange(shaped, self.resolved) if self.has_host else shaped

    def _placed(self, arranged: Mapping[str, Array]) -> dict[int, Array]:
        return {at: arranged[one.name] for at, one in enumerate(self.arguments) if one.name in arranged}


class Shelf:
    """Recipes from folders, the first that has one wins: a workspace's own before those shipped."""

    def __init__(
        self, folders: Sequence[Path], backend: Backend, settings: Settings | None = None, device: str = "npu2"
    ) -> None:
        self.folders, self.backend, self.device = tuple(folders), backend, device
        self.settings: Settings = settings or {}
        self._recipes: dict[str, Recipe] = {}
        self._kernels: dict[str, StepKernel] = {}

    def recipe(self, name: str) -> Recipe:
        """A recipe by name.

        Raises:
            UnknownKernel: no folder has it.
        """
        found = self._recipes.get(name)
        if found is None:
            at = next((folder for folder in self.folders if (folder / name / "kernel.toml").is_file()), None)
            if at is None:
                where = ", ".join(str(folder) for folder in self.folders)
                raise UnknownKernel(f"there is no recipe {name} in {where}; 'herdbook kernel list' has those shipped")
            found = self._recipes[name] = recipe(at, name)
        return found

    def chosen(self, step: Step, phase: str) -> dict[str, Any]:
        """The step's settings with the overrides for its kernel, its shape and itself."""
        keys = (step.recipe, f"{step.recipe} {step.extents}", f"{phase}/{step.name}")
        settings = dict(step.settings)
        for key in keys:
            settings |= dict(self.settings.get(key, {}))
        return settings

    def resolve(self, step: Step, phase: str) -> Resolved:
        """The step's configuration; a refused one is an answer.

        Raises:
            UnknownKernel: no such recipe.
            UnusableInput: a setting that is none.
        """
        return self.recipe(step.recipe).resolve(step.shape, self.chosen(step, phase), self.device)

    def kernel(self, step: Step, phase: str) -> StepKernel:
        """The step's kernel, loaded.

        Raises:
            KernelFailed: the shape or the program is refused.
        """
        settings = self.chosen(step, phase)
        said = sorted((name, repr(value)) for name, value in settings.items())
        key = f"{step.recipe} {step.extents} {said}"
        found = self._kernels.get(key)
        if found is None:
            found = self._kernels[key] = self._load(step, phase)
        return found

    def _load(self, step: Step, phase: str) -> StepKernel:
        source, resolved = self.recipe(step.recipe), self.resolve(step, phase)
        if not resolved.ok:
            raise KernelFailed(step, resolved.findings, "refused")
        text = source.program(resolved)
        arguments = source.arguments(resolved)
        outputs = [at for at, one in enumerate(arguments) if one.role == "output"]
        loaded = self.backend.load(
            text, name=source.name, options=source.compile_options(resolved), outputs=outputs
        )  # fmt: skip
        if isinstance(loaded, Refused):
            raise KernelFailed(step, loaded.findings, "refused")
        tensors = {one.name: one for one in source.tensors(resolved)}
        modelled = modelled_us(source, resolved, self.device)
        has_host = (source.folder / "host.py").is_file()
        return StepKernel(step, source, resolved, loaded, arguments, tensors, modelled, text, has_host)


def modelled_us(source: Recipe, resolved: Resolved, device: str = "npu2") -> float | None:
    """The cost model's time of a kernel; None where nothing like it was measured."""
    listed = source.manifest.settings
    asked = {
        name: value
        for name, value in resolved.settings.items()
        if name not in listed or listed[name].source != "recipe"
    }
    try:
        return estimate_kernel(source.checked_as, resolved.extents, asked, device).modelled_us
    except NpuToolsError:
        return None
