"""The recipes' machinery: manifests, settings chosen, programs printed, cases run."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.emulator.run import run_program
from npu_tools.errors import UnknownKernel, UnusableInput
from npu_tools.recipes import Text, memref, recipe, recipes, run_refusals
from npu_tools.recipes.expressions import evaluate, whole

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"


def test_every_folder_has_its_files_and_is_installed_as_data() -> None:
    files = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["data-files"]
    for folder in (path.parent for path in KERNELS.glob("*/kernel.toml")):
        assert {"design.py", "reference.py", "README.md"} <= {path.name for path in folder.iterdir()}, folder.name
        assert not (folder / "__init__.py").exists()
        assert files.get(f"share/herdbook/kernels/{folder.name}") == [f"kernels/{folder.name}/*.*"], folder.name


def test_every_recipe_refuses_what_it_says_it_refuses() -> None:
    for each in recipes(KERNELS):
        for refusal in run_refusals(each):
            assert refusal.passed, (each.name, refusal)


@pytest.mark.parametrize("case", [pytest.param(each, id=each.name) for each in recipes(KERNELS)])
def test_every_case_of_a_recipe_resolves_to_something_legal(case) -> None:
    for one in case.manifest.cases:
        assert case.resolve(one.shape, one.settings).ok, one


def test_a_recipe_is_found_by_its_aliases_and_an_unknown_one_lists_those_there_are() -> None:
    assert recipe(KERNELS, "MatMul").name == "gemm"
    with pytest.raises(UnknownKernel, match="gemm"):
        recipe(KERNELS, "warp_drive")
    with pytest.raises(UnknownKernel):
        recipe(KERNELS, "../kernels/gemm")


def test_a_shape_is_read_in_three_forms_and_refused_in_others() -> None:
    gemm = recipe(KERNELS, "gemm")
    assert gemm.extents("512x256×128") == gemm.extents((512, 256, 128)) == gemm.extents({"N": 128, "M": 512, "K": 256})
    for wrong in ("512x512", "512x0x512", "axbxc", {"M": 1, "K": 1}):
        with pytest.raises(UnusableInput, match="M"):
            gemm.extents(wrong)


def test_an_illegal_configuration_is_an_answer_and_prints_no_program() -> None:
    gemm = recipe(KERNELS, "gemm")
    resolved = gemm.resolve("512x512x512", {"tile_m": 48})
    assert not resolved.ok
    with pytest.raises(UnusableInput, match="divisibility"):
        gemm.program(resolved)


@pytest.mark.parametrize(
    "expression", ["__import__('os')", "M.real", "[n for n in M]", "M if", "(lambda: 1)()", "unknown", "1 // 0"]
)
def test_expressions_of_a_manifest_compute_and_do_nothing_else(expression: str) -> None:
    assert evaluate("max(M * 2, 3) if M > 1 else 'a'", {"M": 4}) == 8
    assert whole("M // 2", {"M": 4}) == 2
    with pytest.raises(UnusableInput):
        evaluate(expression, {"M": 4})


def test_how_a_program_is_compiled_follows_its_settings() -> None:
    gemm, gemv = recipe(KERNELS, "gemm"), recipe(KERNELS, "gemv")
    forms = {
        method: gemm.compile_options(gemm.resolve("512x512x512", {"method": method, "tile_m": 32}))["output_format"]
        for method in ("drain", "fused-cast")
    }
    assert forms == {"drain": "xclbin", "fused-cast": "elf"}
    tiled = gemv.compile_options(gemv.resolve("256x2048", {"loop_tiling": 16}))
    assert tiled["runtime_loop_tiling_sizes"] == [16, 16]


def test_a_wrong_manifest_names_its_field(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "kernel.toml").write_text('name = "odd"\ntitle = "t"\nshape = ["N"]\nsurprise = 1\n', encoding="utf-8")
    with pytest.raises(UnusableInput, match=r"kernel\.toml: (arguments|tolerance|cases|surprise)"):
        recipes(tmp_path)


def test_constants_are_made_in_the_region_that_uses_them_and_not_seen_from_isolated_ones() -> None:
    text = Text()
    kind = memref([8], "bf16", 2)
    with text.function("f", []), text.herd("h", (1, 1), []) as (_, _, ()):
        buffer = text.alloc(kind)
        with text.loop(0, 4) as i:
            text.op(f"memref.load {buffer}[{i}] : {kind}", "bf16")
        text.dealloc(buffer)
    parse_program(str(text), "f.mlir").module.verify()


@pytest.mark.parametrize(
    ("name", "shape", "settings"),
    [
        ("gemm", "128x256x128", {"method": "drain", "tile_m": 16, "tile_n": 32, "tile_k_l2": 128}),
        ("gemv", "64x576", {"tile_m": 4, "m_input": 2}),
        ("gemv_residual", "64x1024", {"tile_m": 4}),
    ],
)
def test_all_tiles_at_once_and_one_by_one_give_the_same_bits(name: str, shape: str, settings: dict[str, int]) -> None:
    each = recipe(KERNELS, name)
    resolved = each.resolve(shape, settings)
    assert resolved.ok, resolved.findings
    program = parse_program(each.program(resolved), f"{name}.mlir")
    tensors = each.inputs(resolved)
    inputs = {f"arg{at}": tensors[one.name] for at, one in enumerate(each.arguments(resolved)) if one.name in tensors}
    last = f"arg{len(each.arguments(resolved)) - 1}"
    lifted, single = (
        run_program(program, inputs, grouping=grouping).outputs[last] for grouping in ("lifted", "per-tile")
    )
    assert np.array_equal(lifted, single)


@pytest.mark.parametrize("shape", ["100x100x100", "1x1x1", "2048x2048x7", "1000000007x64x64"])
def test_a_shape_nothing_tiles_is_refused_with_a_remedy(shape: str) -> None:
    resolved = recipe(KERNELS, "gemm").resolve(shape)
    assert not resolved.ok
    assert any(finding.remedy for finding in resolved.findings if finding.severity == "error")
