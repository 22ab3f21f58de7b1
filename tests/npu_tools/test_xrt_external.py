"""External kernels: built for exactly the program, never stale, never of another source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npu_tools.air import parse_program
from npu_tools.backends.xrt import XrtBackend
from npu_tools.backends.xrt.backend import XrtKernel
from npu_tools.backends.xrt.external import wanted_objects
from npu_tools.errors import UnusableInput
from npu_tools.recipes import recipe
from tests.npu_tools.xrt_support import ROOT, gemv
from tests.stand_in.machine import QUICK, StandIn


def backend_of(machine: StandIn, tmp_path: Path, **options: object) -> XrtBackend:
    return XrtBackend(machine.toolchain, cache=tmp_path / "cache", patience=QUICK, **options)  # type: ignore[arg-type]


def loaded(backend: XrtBackend, text: str, **options: object) -> XrtKernel:
    kernel = backend.load(text, name="kernel", options=options)
    assert isinstance(kernel, XrtKernel), kernel
    return kernel


def payload(kernel: XrtKernel) -> dict[str, object]:
    content = kernel.artefact.binary.read_bytes()
    at = content.index(b'{"program"')
    return json.loads(content[at : content.rindex(b"}") + 1])


def test_baked_sizes_are_those_the_program_moves(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    kernel = loaded(backend_of(machine, tmp_path), gemv()[0])
    objects = payload(kernel)["objects"]
    assert isinstance(objects, dict)
    assert "DIM_M_OUTPUT=8" in objects["mv.o"]["defines"]
    assert objects["mv.o"]["target"] == "--target=aie2p-none-unknown-elf"


def test_an_object_of_other_sizes_is_never_reused_under_the_same_name(tmp_path: Path) -> None:
    """mv_int4_bf16.o built for 16 rows, linked where 8 are moved, made every logit NaN (mlir-air PR 1666)."""
    machine = StandIn(tmp_path)
    backend = backend_of(machine, tmp_path)
    loaded(backend, gemv()[0])
    kernel = recipe(ROOT / "kernels", "gemv")
    other = kernel.program(kernel.resolve("64x64", {"tile_m": 4, "m_input": 4}))
    second = loaded(backend, other)
    objects = payload(second)["objects"]
    assert isinstance(objects, dict)
    assert "DIM_M_OUTPUT=4" in objects["mv.o"]["defines"]
    assert len(machine.calls("clang++")) == 2


def test_an_object_is_built_once_for_one_set_of_sizes(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    backend = backend_of(machine, tmp_path)
    loaded(backend, gemv()[0])
    loaded(backend, gemv()[0], stack_size=2048)
    assert len(machine.calls("aircc")) == 2
    assert len(machine.calls("clang++")) == 1


def test_a_header_beside_the_source_makes_another_object(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    backend = backend_of(machine, tmp_path)
    loaded(backend, gemv()[0])
    (machine.folder / "programming_examples/matrix_vector_multiplication/bf16/zero.cc").write_text("// new\n")
    loaded(backend_of(machine, tmp_path), gemv()[0])
    assert len(machine.calls("clang++")) == 2


def test_sizes_of_gemm_gemv_and_attention_are_read_off_the_calls() -> None:
    gemm = recipe(ROOT / "kernels", "gemm")
    text = gemm.program(gemm.resolve("512x512x512", {"method": "drain", "tile_m": 32}))
    wanted, findings = wanted_objects(parse_program(text, "gemm.mlir"), {})
    assert not findings
    (mm,) = [one for one in wanted if one.name == "mm.o"]
    assert mm.defines["DIM_M"] == "32"
    assert mm.defines["DIM_M_DIV_8"] == "4"
    assert "AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16" in mm.defines


LINKED = """module {
  func.func private @op_has_no_registered_library_name(memref<1x1x4x4x8x8xbf16, 2>, memref<1x1x16x4x8x8xbf16, 2>, memref<1x1x16x4x8x8xf32, 2>) attributes {link_with = "mm.o", llvm.emit_c_interface}
  func.func private @op_has_no_registered_library_name_m64(memref<1x1x4x8x8x8xbf16, 2>, memref<1x1x16x4x8x8xbf16, 2>, memref<1x1x16x8x8x8xf32, 2>) attributes {link_with = "OTHER", llvm.emit_c_interface}
  func.func private @unheard_of(memref<8xbf16, 2>) attributes {link_with = "mine.o", llvm.emit_c_interface}
  func.func @f(%a: memref<8xbf16>) {
    return
  }
}
"""


def test_one_name_for_two_builds_is_refused_and_two_names_are_two_builds() -> None:
    _, findings = wanted_objects(
        parse_program(LINKED.replace("OTHER", "mm.o"), "f.mlir"), {"mine.o": {"source": "/x.cc"}}
    )
    assert [one.code for one in findings] == ["kernel-collision"]
    wanted, findings = wanted_objects(
        parse_program(LINKED.replace("OTHER", "mm_m64.o"), "f.mlir"), {"mine.o": {"source": "/x.cc"}}
    )
    assert not findings
    assert {one.name: one.defines.get("DIM_M") for one in wanted} == {"mm.o": "32", "mm_m64.o": "64", "mine.o": None}
    assert next(one for one in wanted if one.name == "mm_m64.o").defines["SYM_SUFFIX"] == "_m64"


def test_an_object_nobody_knows_asks_for_its_source() -> None:
    _, findings = wanted_objects(parse_program(LINKED.replace("OTHER", "mm_m64.o"), "f.mlir"), {})
    assert [one.code for one in findings] == ["kernel-unknown"]
    with pytest.raises(UnusableInput, match="source and defines"):
        wanted_objects(parse_program(LINKED, "f.mlir"), {"mine.o": {"flags": ["-O0"]}})


# -- one source linked twice, and sources that only look alike -----------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "shape", "settings", "wanted"),
    [
        ("o_ffn", "64x256x1024", {}, {"mm.o": "DIM_M=32", "gate_mm.o": "zero_f32_mn=gate_zero_f32_mn"}),
        ("gemv_residual", "64x512", {}, {"mv_bf16.o": "DIM_K=512"}),
        ("flash_attention", None, {}, {"attn_npu2.o": "dk_full=64"}),
    ],
)
def test_recipes_link_objects_with_the_sizes_and_names_they_use(
    kernel: str, shape: str | None, settings: dict[str, object], wanted: dict[str, str]
) -> None:
    found = recipe(ROOT / "kernels", kernel)
    case = next(one for one in found.manifest.cases if one.size == "small")
    chosen = found.resolve(shape or case.shape, settings if shape else case.settings)
    objects, findings = wanted_objects(parse_program(found.program(chosen), "p.mlir"), {})
    assert not [one for one in findings if one.severity == "error"], findings
    said = {one.name: one.said for one in objects}
    for name, part in wanted.items():
        assert part in said[name].split(), said


def test_a_renamed_symbol_of_a_prefixed_object_is_told_to_the_compiler() -> None:
    """Two GEMVs in one ELF need two objects of one source with renamed entries (mlir-air llms/llama32_1b/ARCHITECTURE.md)."""
    text = """module {
  func.func private @dg_matvec_vectorized_bf16_bf16(i32, i32, i32, memref<2x8192xbf16, 2>, memref<8192xbf16, 2>, memref<2xbf16, 2>) attributes {link_with = "mv_k8192.o", llvm.emit_c_interface}
  func.func @f(%a: memref<8xbf16>) {
    return
  }
}
"""
    (one,), findings = wanted_objects(parse_program(text, "f.mlir"), {})
    assert not findings
    assert one.defines == {
        "DIM_M_OUTPUT": "2", "matvec_vectorized_bf16_bf16": "dg_matvec_vectorized_bf16_bf16",
    }  # fmt: skip


def test_another_source_under_a_known_name_is_noticed() -> None:
    text = """module {
  func.func private @SYMBOL(memref<32xf32, 2>, memref<32xf32, 2>) attributes {link_with = "OBJECT", llvm.emit_c_interface}
  func.func @f(%a: memref<8xf32>) {
    return
  }
}
"""
    for symbol, name in (("cosf_bf16", "rope.o"), ("max_g_bf16", "attn.o"), ("matvec_other", "mv.o")):
        program = parse_program(text.replace("SYMBOL", symbol).replace("OBJECT", name), "f.mlir")
        _, findings = wanted_objects(program, {})
        assert [one.code for one in findings] == ["kernel-parameters"], name


def test_which_rotation_rope_means_is_said() -> None:
    rope = recipe(ROOT / "kernels", "rope")
    case = next(one for one in rope.manifest.cases if one.size == "small")
    program = parse_program(rope.program(rope.resolve(case.shape, case.settings)), "rope.mlir")
    _, (note,) = wanted_objects(program, {})
    assert (note.code, note.severity) == ("kernel-convention", "note")
    _, given = wanted_objects(program, {"rope.o": {"source": "/src/rope.cc"}})
    assert not given
