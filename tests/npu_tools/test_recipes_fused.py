"""The fused recipes: each launch as its own recipe would do it, bit for bit, and every model's layer resolves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.check import check_program
from npu_tools.check.subject import CheckOptions
from npu_tools.device import device
from npu_tools.emulator.run import run_program
from npu_tools.errors import UnusableInput
from npu_tools.recipes import Recipe, misuses, recipe, run_cases, sibling

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
FUSED = [
    recipe(KERNELS, name)
    for name in (
        "rms_gemms_rope", "o_ffn", "rms_gemv_rope", "o_gemv_ffn", "rms_qkv_bias_rope", "rms_qkv_bias_rope_gemv",
        "rms_qkv_qknorm_rope", "rms_qkv_qknorm_rope_gemv", "o_ffn_head", "o_res_norm", "gate_up", "down_add",
    )
]  # fmt: skip
EACH = pytest.mark.parametrize("each", FUSED, ids=lambda each: each.name)


@EACH
def test_small_cases_pass(each: Recipe) -> None:
    for run in run_cases(each):
        assert run.passed, (run.resolved.extents, run.reason)


@EACH
def test_it_gives_the_bits_of_its_parts_run_one_after_another(each: Recipe) -> None:
    case = each.manifest.cases[0]
    resolved = each.resolve(case.shape, case.settings)
    arguments = each.arguments(resolved)
    tensors = each.inputs(resolved)
    program = parse_program(each.program(resolved), each.name)
    given = {f"arg{at}": tensors[one.name] for at, one in enumerate(arguments) if one.name in tensors}
    fused = run_program(program, given)
    assert fused.ok, fused.findings
    held: dict[str, np.ndarray] = dict(tensors)
    wiring: Mapping[str, tuple[str, ...]] = sibling(str(each.folder / "design.py"), each.name).WIRING
    for part in resolved.parts:
        leaf = recipe(KERNELS, part.kernel)
        text = parse_program(leaf.part_program(part, resolved.settings), part.role)
        names = list(wiring[part.role])
        if part.settings.get("method") == "fused-cast":
            names.insert(-1, "scratch")
        shapes = [kind.get_shape() for kind in text.functions()[0].function_type.inputs]
        inputs = {
            f"arg{at}": held[name].reshape(shape)
            for at, (name, shape) in enumerate(zip(names[:-1], shapes, strict=False))
            if name != "scratch"
        }
        held[names[-1]] = run_program(text, inputs).outputs[f"arg{len(names) - 1}"]
    for at, one in enumerate(arguments):
        if one.role == "output":
            assert np.array_equal(fused.outputs[f"arg{at}"].reshape(-1), held[one.name].reshape(-1)), one.name


@EACH
def test_its_programs_are_legal_and_use_their_arguments_as_they_are_meant(each: Recipe) -> None:
    for case in each.manifest.cases[:3]:
        resolved = each.resolve(case.shape, case.settings)
        assert resolved.ok, (case, resolved.findings)
        program = parse_program(each.program(resolved), each.name)
        options = CheckOptions(output_format="elf")
        errors = [one for one in check_program(program, device("npu2"), options) if one.severity == "error"]
        assert not errors, (case, errors)
        assert not misuses(program, [one.role for one in each.arguments(resolved)])


def test_a_projection_that_is_cast_in_a_launch_of_its_own_brings_a_scratch_argument() -> None:
    each = recipe(KERNELS, "rms_gemms_rope")
    grouped = each.resolve("2048x2048x512", {"kv_heads": 8})
    assert [one.name for one in each.arguments(grouped) if one.role == "scratch"] == ["q_f32"]
    alike = each.resolve("2048x2048x2048")
    assert [one.name for one in each.arguments(alike) if one.role == "scratch"] == ["q_f32", "k_f32", "v_f32"]


def settings_of(each: Recipe, **given: Any) -> Mapping[str, Any]:
    return each.resolve(each.manifest.cases[0].shape, given).settings


def test_the_norm_is_made_safe_as_the_family_has_it() -> None:
    by_name = {each.name: settings_of(each)["eps"] for each in FUSED if each.name.startswith("rms")}
    assert {name for name, eps in by_name.items() if eps == 1e-5} == {"rms_gemms_rope", "rms_gemv_rope"}
    assert settings_of(FUSED[0], eps=1e-6)["eps"] == 1e-6


def test_the_cascade_form_agrees_with_the_plain_one() -> None:
    each, shape = recipe(KERNELS, "o_gemv_ffn"), "512x1024"
    outputs: dict[str, dict[str, np.ndarray]] = {}
    for form in ("leaves", "cascade"):
        resolved = each.resolve(shape, {"form": form})
        arguments = each.arguments(resolved)
        given = each.arrange(each.inputs(resolved), resolved)
        program = parse_program(each.program(resolved), form)
        result = run_program(
            program, {f"arg{at}": given[one.name] for at, one in enumerate(arguments) if one.name in given}
        )
        assert result.ok, result.findings
        named = {one.name: result.outputs[f"arg{at}"] for at, one in enumerate(arguments)}
        outputs[form] = {name: named[name].astype(np.float32) for name in ("summed", "swiglu", "out")}
    for name, plain in outputs["leaves"].items():
        assert np.abs(outputs["cascade"][name] - plain).mean() < 3e-2 * np.abs(plain).mean(), name


def test_the_swiglu_cascade_passes_with_two_rows_and_with_four() -> None:
    for run in run_cases(recipe(KERNELS, "gemv_swiglu")):
        assert run.passed, (run.resolved.extents, run.reason)


GATED = """
name = "gated"
title = "norm, then gate and up"
shape = ["seq", "emb", "hidden"]
tolerance = { kernel = "attention_input" }
compile = { output_format = "elf" }
[settings.eps]
help = "of the norm"
source = "recipe"
default = 1e-6
[[parts]]
role = "norm"
kernel = "rmsnorm"
shape = ["seq", "emb"]
arguments = ["x", "weight", "normed"]
[[parts]]
role = "gate"
kernel = "gemm"
shape = ["seq", "emb", "hidden"]
settings = { stitched = true, tile_m = 16 }
arguments = ["normed", "w", "gate"]
[[arguments]]
name = "x"
role = "input"
shape = ["seq", "emb"]
[[arguments]]
name = "weight"
role = "static"
shape = ["emb"]
[[arguments]]
name = "w"
role = "static"
shape = ["emb", "hidden"]
scale = "1 / sqrt(emb)"
[[arguments]]
name = "normed"
role = "output"
shape = ["seq", "emb"]
[[arguments]]
name = "gate"
role = "output"
shape = ["seq", "hidden"]
[[cases]]
shape = { seq = 64, emb = 128, hidden = 256 }
size = "small"
why = "somebody's own"
"""


def test_somebodys_own_fused_kernel_needs_a_manifest_and_one_line(tmp_path: Path) -> None:
    for name in ("rmsnorm", "gemm"):
        (tmp_path / name).symlink_to(KERNELS / name)
    folder = tmp_path / "gated"
    folder.mkdir()
    (folder / "kernel.toml").write_text(GATED, encoding="utf-8")
    (folder / "design.py").write_text(
        "from npu_tools.recipes import fused_program\n"
        "def design(shape, settings):\n    return fused_program(__file__, shape, settings)\n",
        encoding="utf-8",
    )
    (folder / "reference.py").write_text(
        "import numpy as np\n"
        "def reference(tensors, shape, settings):\n"
        "    x, weight, w = (tensors[name].astype(np.float32) for name in ('x', 'weight', 'w'))\n"
        "    normed = x / np.sqrt((x**2).mean(1, keepdims=True) + settings['eps']) * weight\n"
        "    return {'normed': normed, 'gate': normed @ w}\n",
        encoding="utf-8",
    )
    own = recipe(tmp_path, "gated")
    for run in run_cases(own):
        assert run.passed, run.reason
        assert [part.kernel for part in run.resolved.parts] == ["rmsnorm", "gemm"]
    refused = own.resolve("100x128x256")
    assert not refused.ok
    assert any(finding.op == "gated: gate" for finding in refused.findings)
    with pytest.raises(UnusableInput, match="eps"):
        own.resolve("64x128x256", {"tile": 3})
