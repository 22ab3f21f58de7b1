"""One recipe: its manifest, and its code loaded by path. Settings are chosen here, programs are printed by design.py.

A folder holds kernel.toml; design.py with `design(shape, settings) -> str`, where the settings of a kernel of several
launches have `parts` as `check_kernel` resolved them; reference.py with
`reference(tensors, shape, settings) -> dict` and perhaps `inputs(rng, shape, settings) -> dict`; and where the
function's arguments are not the model's tensors, host.py with `arrange(tensors, shape, settings) -> dict` and
`collect(arguments, shape, settings) -> dict`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from npu_tools.check.fused import Elf, Launch
from npu_tools.check.kernel import check_kernel, elf_findings, kernel_name, resolve_kernel
from npu_tools.check.measured import gemm_row
from npu_tools.device import device as find_device
from npu_tools.errors import NpuToolsError, UnknownKernel, UnusableInput
from npu_tools.findings import Finding
from npu_tools.gate import Tolerance, tolerance_for
from npu_tools.recipes.expressions import evaluate, whole
from npu_tools.recipes.manifest import Manifest, Measured, Role, Tensor, read_manifest

Array = NDArray[Any]
Shape = str | Sequence[int] | Mapping[str, int]
Chosen = Literal["given", "measured", "rule", "model"]
MANIFEST = "kernel.toml"
DTYPES: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "i32": np.dtype(np.int32),
    "i8": np.dtype(np.int8),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One launch of a fused kernel, as `check_kernel` resolved it."""

    role: str
    kernel: str
    shape: tuple[int, ...]
    settings: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The role as a name: "rope_q"."""
        return self.role.replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A shape with every setting chosen, and what the check says of it. `chosen` says by whom: the caller, a measured
    row, the rules, or the cost model where the rules found nothing legal."""

    kernel: str
    shape: dict[str, int]
    settings: dict[str, Any]
    chosen: Chosen
    ok: bool
    findings: tuple[Finding, ...]
    figures: Mapping[str, int]
    parts: tuple[Part, ...] = field(default=())

    @property
    def extents(self) -> str:
        """The shape as the command line has it."""
        return "x".join(str(extent) for extent in self.shape.values())

    def names(self) -> dict[str, Any]:
        """Axes and settings by name, for expressions, and the method of each projection of a fused kernel as ROLE_method:
        a fused-cast one brings a scratch argument."""
        return {**part_methods(self.parts), **self.settings, **self.shape}

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def _parts(elf: Elf) -> tuple[Part, ...]:
    return tuple(Part(one.role, one.kernel, one.case.shape(), dict(one.case.settings())) for one in elf.launches)


def part_methods(parts: Sequence[Part]) -> dict[str, str]:
    """{"q_method": "fused-cast", …} of the parts that have one."""
    return {f"{one.label}_method": str(one.settings["method"]) for one in parts if "method" in one.settings}


@dataclass(frozen=True, slots=True)
class Argument:
    """One array of a program or a model, with its shape worked out."""

    name: str
    role: Role
    element: str
    shape: tuple[int, ...]
    scale: float = 1.0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type; bf16 is ml_dtypes.bfloat16."""
        return DTYPES[self.element]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A folder of kernels/, read."""

    folder: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.manifest.name

    @property
    def checked_as(self) -> str:
        """The kernel's name in `check_kernel`."""
        return self.manifest.check or self.manifest.name

    def extents(self, shape: Shape) -> dict[str, int]:
        """The shape by axis.

        Raises:
            UnusableInput: other axes, too many, or no positive whole numbers.
        """
        axes = self.manifest.shape
        if isinstance(shape, Mapping):
            named = {str(axis): size for axis, size in shape.items()}
            if set(named) != set(axes):
                raise UnusableInput(f"{self.name} takes the axes {', '.join(axes)}, not {', '.join(named)}")
            sizes = [named[axis] for axis in axes]
        else:
            pieces = shape.lower().replace("×", "x").split("x") if isinstance(shape, str) else list(shape)
            if len(pieces) != len(axes):
                raise UnusableInput(f"{self.name} takes {'x'.join(axes)}, not {'x'.join(map(str, pieces))[:80]!r}")
            if not all(str(piece).strip().isdecimal() for piece in pieces):
                raise UnusableInput(f"{self.name} takes {'x'.join(axes)}, positive whole numbers")
            sizes = [int(piece) for piece in pieces]
        if any(size < 1 for size in sizes):
            raise UnusableInput(f"{self.name} takes {'x'.join(axes)}, positive whole numbers")
        return dict(zip(axes, sizes, strict=True))

    def resolve(self, shape: Shape, settings: Mapping[str, Any] | None = None, device: str = "npu2") -> Resolved:
        """Every setting chosen: the caller's, then the best measured row's, then by rule, then by the cost model.

        A refused configuration is an answer with `ok` False and findings.

        Raises:
            UnusableInput: a shape or setting that is none.
        """
        extents, given = self.extents(shape), dict(settings or {})
        row = self._measured(extents, given)
        if row is not None:
            best = self._checked(extents, {**row.settings, **given}, "measured", device)
            if best.ok:
                return best
        ruled = self._checked(extents, given, "given" if given else "rule", device)
        if ruled.ok:
            return replace(ruled, chosen="measured") if not given and _is_measured(self.checked_as, ruled) else ruled
        for candidate in self._by_model(extents, given, device):
            modelled = self._checked(extents, {**candidate, **given}, "model", device)
            if modelled.ok:
                return modelled
        return ruled

    def program(self, resolved: Resolved) -> str:
        """The AIR program.

        Raises:
            UnusableInput: the check refuses this configuration; the text names the first finding.
        """
        if not resolved.ok:
            first = next(finding for finding in resolved.findings if finding.severity == "error")
            remedy = f"; {first.remedy}" if first.remedy else ""
            raise UnusableInput(f"{self.name} {resolved.extents} is refused ({first.code}): {first.message}{remedy}")
        settings = {**resolved.settings, "parts": resolved.parts} if resolved.parts else resolved.settings
        return str(self._function("design", "design")(resolved.shape, settings))

    def part_program(self, part: Part, given: Mapping[str, Any]) -> str:
        """The program of a part of a fused kernel that this recipe prints; settings the check does not choose are the
        fused kernel's where it has them, as eps, else this recipe's defaults."""
        extents, settings = self.extents(part.shape), dict(part.settings)
        for name, setting in self.manifest.settings.items():
            if setting.source == "recipe":
                settings[name] = self._own(name, dict(given), {**settings, **extents})
        return str(self._function("design", "design")(extents, settings))

    def reference(self, tensors: Mapping[str, Array], resolved: Resolved) -> dict[str, Array]:
        """What the outputs must be, in FP32 or wider, by tensor name."""
        return dict(self._function("reference", "reference")(tensors, resolved.shape, resolved.settings))

    def tensors(self, resolved: Resolved) -> tuple[Argument, ...]:
        """The arrays a model sees."""
        listed = self.manifest.tensors or [each for each in self.manifest.arguments if each.role != "scratch"]
        return self.concrete(listed, resolved.names())

    def arguments(self, resolved: Resolved) -> tuple[Argument, ...]:
        """The arguments of the program's function, in order."""
        return self.concrete(self.manifest.arguments, resolved.names())

    def concrete(self, listed: Sequence[Tensor], names: Mapping[str, Any]) -> tuple[Argument, ...]:
        """Arrays of the manifest with their shapes worked out, given axes and settings by name."""
        made = list[Argument]()
        for tensor in listed:
            if tensor.when is not None and not evaluate(tensor.when, names):
                continue
            element = str(names[tensor.dtype[1:-1]]) if tensor.dtype.startswith("{") else tensor.dtype
            if element not in DTYPES:
                raise UnusableInput(f"{self.name}: {tensor.name} is of {element!r}; known: {', '.join(DTYPES)}")
            shape = tuple(whole(size, names) for size in tensor.shape)
            scale = float(cast("float", evaluate(tensor.scale, names)))
            count = None if tensor.repeat is None else whole(tensor.repeat, names)
            titles = [tensor.name] if count is None else [f"{tensor.name}_{index}" for index in range(count)]
            made += [Argument(title, tensor.role, element, shape, scale) for title in titles]
        return tuple(made)

    def arrange(self, tensors: Mapping[str, Array], resolved: Resolved) -> dict[str, Array]:
        """The function's inputs from the model's tensors: padded, cut and packed as the host must."""
        host = self._module("host")
        if host is None:
            return dict(tensors)
        return dict(host.arrange(tensors, resolved.shape, resolved.settings))

    def collect(self, arguments: Mapping[str, Array], resolved: Resolved) -> dict[str, Array]:
        """The model's outputs from the function's."""
        host = self._module("host")
        if host is None:
            return dict(arguments)
        return dict(host.collect(arguments, resolved.shape, resolved.settings))

    def inputs(self, resolved: Resolved, seed: int = 0) -> dict[str, Array]:
        """Trial inputs by tensor name: normal of the manifest's scale unless reference.py makes its own."""
        rng = np.random.default_rng(seed)
        made: dict[str, Array] = {}
        own = getattr(self._module("reference"), "inputs", None)
        if own is not None:
            made.update(own(rng, resolved.shape, resolved.settings))
        for tensor in self.tensors(resolved):
            if tensor.role in ("input", "static") and tensor.name not in made:
                made[tensor.name] = rng.standard_normal(tensor.shape, np.float32) * np.float32(tensor.scale)
        dtypes = {tensor.name: tensor.dtype for tensor in self.tensors(resolved)}
        return {name: values.astype(dtypes[name]) for name, values in made.items()}

    def tolerance(self, resolved: Resolved, convention: str = "upstream") -> Tolerance:
        """What the outputs are judged by."""
        named = self.manifest.tolerance
        tier = evaluate(named.tier, resolved.names()) if named.tier and convention == "upstream" else None
        return tolerance_for(named.kernel, convention, tier)

    def compile_options(self, resolved: Resolved) -> dict[str, Any]:
        """How the program is compiled for a device: options of mlir-air's XRTBackend, by its names."""
        names = resolved.names()
        return {
            name: evaluate(value[1:].strip(), names) if isinstance(value, str) and value.startswith("=") else value
            for name, value in self.manifest.compile.items()
        }

    def page(self) -> str:
        """README.md, empty where there is none."""
        path = self.folder / "README.md"
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def _measured(self, extents: dict[str, int], given: dict[str, Any]) -> Measured | None:
        for row in self.manifest.measured:
            agrees = all(str(given.get(name, value)) == str(value) for name, value in row.settings.items())
            if row.shape == extents and agrees:
                return row
        return None

    def _checked(self, extents: dict[str, int], given: dict[str, Any], chosen: Chosen, device: str) -> Resolved:
        listed = self.manifest.settings
        own: dict[str, Any] = {}
        for name, setting in listed.items():
            if setting.source != "check":
                own[name] = self._own(name, given, {**given, **own, **extents})
        handed = {name: value for name, value in {**own, **given}.items() if value is not None}
        handed = {n: v for n, v in handed.items() if n not in listed or listed[n].source != "recipe"}
        shape = tuple(extents.values())
        if self.manifest.parts:
            unknown = [name for name in given if name not in own]
            if unknown:
                known = ", ".join(own) or "none"
                raise UnusableInput(f"{self.name} has no setting {unknown[0]!r}; there are {known}")
            return self._stitched({**extents, **own}, extents, own, chosen, device)
        report = check_kernel(self.checked_as, shape, handed, device)
        case = resolve_kernel(self.checked_as, shape, handed, device)
        parts: tuple[Part, ...] = ()
        settings: dict[str, Any] = dict(report.settings)
        if isinstance(case, Elf):
            parts = _parts(case)
            settings = {name: value for name, value in given.items() if name not in own}
        return Resolved(
            self.name, extents, {**settings, **own}, chosen, report.ok, report.findings, report.figures, parts
        )

    def _stitched(
        self, names: dict[str, Any], extents: dict[str, int], own: dict[str, Any], chosen: Chosen, device: str
    ) -> Resolved:
        """A fused kernel by its manifest's parts: each resolved and judged alone, and the whole for what clashes."""
        target = find_device(device)
        launches: list[Launch] = []
        for part in self.manifest.parts:
            shape = tuple(whole(size, names) for size in part.shape)
            given = {
                name: evaluate(value[1:].strip(), names) if isinstance(value, str) and value.startswith("=") else value
                for name, value in part.settings.items()
            }
            launches.append(
                Launch(part.role, kernel_name(part.kernel), resolve_kernel(part.kernel, shape, given, target))
            )
        elf = Elf(self.name, tuple(extents.values()), tuple(launches))
        findings = tuple(elf_findings(elf, target))
        return Resolved(
            self.name, extents, own, chosen, all(one.severity != "error" for one in findings), findings,
            elf.figures(target), _parts(elf),
        )  # fmt: skip

    def _own(self, name: str, given: dict[str, Any], known: dict[str, Any]) -> Any:
        """A setting `check_kernel` does not choose, of the kind its default has."""
        setting = self.manifest.settings[name]
        default: Any = setting.default
        if isinstance(default, str) and default.startswith("="):
            default = evaluate(default[1:].strip(), known)
        value = given.get(name, default)
        if isinstance(default, int) and not isinstance(default, bool) and not isinstance(value, int):
            if not str(value).strip().isdecimal():
                raise UnusableInput(f"{self.name}: {name} must be a whole number, not {str(value)[:40]!r}")
            value = int(value)
        if isinstance(default, float):
            try:
                value = float(value)
            except (TypeError, ValueError):
                raise UnusableInput(f"{self.name}: {name} must be a number, not {str(value)[:40]!r}") from None
        if setting.choices and value not in setting.choices:
            known_words = ", ".join(repr(choice) for choice in setting.choices)
            raise UnusableInput(f"{self.name}: {name} must be one of {known_words}, not {str(value)[:40]!r}")
        return value

    def _by_model(self, extents: dict[str, int], given: dict[str, Any], device: str) -> list[dict[str, Any]]:
        from npu_tools.estimate import checked_settings, tune_kernel

        shape = "x".join(map(str, extents.values()))
        try:
            ranked = tune_kernel(self.checked_as, shape, None, device, 5).ranked
        except NpuToolsError:
            return []
        return [checked_settings(self.checked_as, one.settings) for one in ranked]

    def _function(self, stem: str, name: str) -> Any:
        module = self._module(stem)
        found = getattr(module, name, None)
        if found is None:
            raise UnusableInput(f"{self.folder / stem}.py has no function {name}")
        return found

    def _module(self, stem: str) -> ModuleType | None:
        path = self.folder / f"{stem}.py"
        return _load(path, path.stat().st_mtime_ns) if path.is_file() else None


def recipes(folder: Path) -> list[Recipe]:
    """Every recipe of a kernels/ folder, by name.

    Raises:
        UnusableInput: there is no such folder, or a manifest is wrong.
    """
    if not folder.is_dir():
        raise UnusableInput(f"there is no folder of recipes at {folder}; reinstall herdbook")
    return [_read(path.parent) for path in sorted(folder.glob(f"*/{MANIFEST}"))]


def recipe(folder: Path, name: str) -> Recipe:
    """A recipe by its name or one of its aliases.

    Raises:
        UnknownKernel: there is none; the text lists those there are.
    """
    direct = folder / name / MANIFEST
    if name.isidentifier() and direct.is_file():
        return _read(direct.parent)
    wanted, found = _plain(name), recipes(folder)
    for each in found:
        if wanted in {_plain(known) for known in (each.name, *each.manifest.aliases)}:
            return each
    raise UnknownKernel(f"no recipe {name[:60]!r}; there are {', '.join(each.name for each in found)}")


def sibling(file: str, name: str, stem: str = "design") -> ModuleType:
    """Another recipe's module, for a design built from it: `sibling(__file__, "gemv")`.

    Raises:
        UnusableInput: there is none.
    """
    path = Path(file).parent.parent / name / f"{stem}.py"
    if not path.is_file():
        raise UnusableInput(f"there is no {path}")
    return _load(path, path.stat().st_mtime_ns)


def _read(folder: Path) -> Recipe:
    manifest = read_manifest(folder / MANIFEST)
    if manifest.name != folder.name:
        raise UnusableInput(f"{folder / MANIFEST} names itself {manifest.name!r}; it must be its folder's name")
    return Recipe(folder, manifest)


class _Loader(SourceFileLoader):
    """Leaves no bytecode among the data files."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write nothing."""


@cache
def _load(path: Path, changed_ns: int) -> ModuleType:
    """A module by path, under a name of our own: kernels/ is no package and must not become one."""
    name = f"npu_tools._loaded.{path.parent.name}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    if spec is None or spec.loader is None:
        raise UnusableInput(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever somebody's file does when it is run
        del sys.modules[name]
        raise UnusableInput(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _is_measured(kernel: str, resolved: Resolved) -> bool:
    """Whether `check_kernel` took the registry's row, as it does for a GEMM that has one."""
    if kernel != "gemm":
        return False
    output, precision = str(resolved.settings["output"]), str(resolved.settings["precision"])
    m, k, n = resolved.shape.values()
    row = gemm_row(m, k, n, output, precision)
    tiles = tuple(resolved.settings[name] for name in ("tile_m", "tile_k_l2", "tile_k_l1", "tile_n"))
    return row is not None and row.tiles == tiles and row.method == resolved.settings["method"]


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
