"""Compiling for the device: what aircc is asked, what is kept, and what is never reused."""

from __future__ import annotations

import ast
import json
import os
import threading
from pathlib import Path

import pytest

from npu_tools.air import parse_program
from npu_tools.backends import Refused
from npu_tools.backends.xrt import XrtBackend
from npu_tools.backends.xrt.backend import XrtKernel
from npu_tools.backends.xrt.options import plan_compile
from npu_tools.device import device
from npu_tools.emulator.run import choose_function
from npu_tools.errors import UnusableInput
from tests.npu_tools.xrt_support import ROOT, gemv, two_launches
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


def test_the_device_is_always_named(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    loaded(backend_of(machine, tmp_path), gemv()[0])
    (call,) = machine.calls("aircc")
    assert call[call.index("--device") + 1] == "npu2"
    assert call[call.index("--peano") + 1].endswith("llvm-aie")


def test_several_launches_are_compiled_to_elf_with_the_functions_name(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    kernel = loaded(backend_of(machine, tmp_path), two_launches())
    (call,) = machine.calls("aircc")
    assert call[call.index("--output-format") + 1] == "elf"
    assert call[call.index("--xclbin-instance-name") + 1] == "gemm"
    assert kernel.artefact.kernel == "main:gemm"
    assert kernel.artefact.insts is None


def test_one_launch_is_compiled_to_xclbin_unless_asked(tmp_path: Path) -> None:
    backend = backend_of(StandIn(tmp_path), tmp_path)
    assert loaded(backend, gemv()[0]).artefact.format == "xclbin"
    assert loaded(backend, gemv()[0], output_format="elf").artefact.format == "elf"


def test_npu1_takes_no_elf_and_several_launches_are_refused_there() -> None:
    function = choose_function(parse_program(two_launches(), "two.mlir"), None)
    said = plan_compile(function, {}, device("npu1"))
    assert isinstance(said, list)
    assert {one.code for one in said} == {"multi-launch-format"}
    asked = plan_compile(function, {"output_format": "elf"}, device("npu1"))
    assert isinstance(asked, list)
    assert "elf-on-npu1" in {one.code for one in asked}


def test_unknown_options_and_options_of_another_kind_are_told_with_the_known_ones() -> None:
    function = choose_function(parse_program(gemv()[0], "gemv.mlir"), None)
    for options, text in (
        ({"omit_pingpng": "all"}, "no option of XRTBackend"), ({"stack_size": "big"}, "takes a whole number"),
        ({"n_perf_iters": 5}, "herdbook"), ({"target_device": "npu1"}, "contradicts"), ({"stack_size": -1}, "positive"),
        ({"omit_pingpong": "L7"}, "'L1'"), ({"trace_size": True}, "whole number"), ({"timeout_s": "soon"}, "positive"),
        ({"timeout_s": -1}, "positive"), ({"timeout_s": float("nan")}, "positive"), ({"objects": "mm.o"}, "objects"),
    ):  # fmt: skip
        with pytest.raises(UnusableInput, match=text):
            plan_compile(function, options, device("npu2"))


def test_xrt_runners_other_default_is_not_taken() -> None:
    """XRTRunner omits the core's endless loop unless told not to; XRTBackend does not (mlir-air xrt_runner.py, xrt.py)."""
    function = choose_function(parse_program(gemv()[0], "gemv.mlir"), None)
    plan = plan_compile(function, {}, device("npu2"))
    assert not isinstance(plan, list)
    assert "--omit-while-true-loop" not in plan.arguments(Path("/peano"))


def test_an_artefact_is_compiled_once_and_found_again_by_content(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    first = loaded(backend_of(machine, tmp_path), gemv()[0])
    again = loaded(backend_of(machine, tmp_path), gemv()[0])
    assert first.artefact.folder == again.artefact.folder
    assert len(machine.calls("aircc")) == 1


@pytest.mark.parametrize("change", ["program", "option", "tool", "kernel source"])
def test_whatever_decides_the_artefact_makes_another_one(tmp_path: Path, change: str) -> None:
    """Upstream's cache goes by the kernel's name alone and loaded ELFs of another shape (mlir-air cache.py, PR 1689)."""
    machine = StandIn(tmp_path)
    text, options = gemv()[0], dict[str, object]()
    first = loaded(backend_of(machine, tmp_path), text)
    if change == "program":
        text = text + "\n// another\n"
    elif change == "option":
        options = {"stack_size": 4096}
    elif change == "tool":
        aiecc = machine.folder / "bin" / "aiecc"
        aiecc.write_text(aiecc.read_text(encoding="utf-8") + "# rebuilt\n", encoding="utf-8")
    else:
        source = machine.folder / "programming_examples/matrix_vector_multiplication/bf16/mv.cc"
        source.write_text("// changed\n", encoding="utf-8")
    second = loaded(backend_of(machine, tmp_path), text, **options)
    assert first.artefact.folder != second.artefact.folder
    assert len(machine.calls("aircc")) == 2


def test_a_damaged_artefact_is_compiled_again_and_never_loaded(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    kernel = loaded(backend_of(machine, tmp_path), gemv()[0])
    whole = kernel.artefact.binary.read_bytes()
    kernel.artefact.binary.write_bytes(whole[: len(whole) // 2])
    again = loaded(backend_of(machine, tmp_path), gemv()[0])
    assert again.artefact.binary.read_bytes() == whole
    assert len(machine.calls("aircc")) == 2


def test_each_compile_has_a_folder_of_its_own_and_leaves_nothing_but_the_artefact(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    backend = backend_of(machine, tmp_path)
    loaded(backend, gemv()[0])
    loaded(backend, gemv()[0] + "\n// second\n")
    log = (machine.folder / "calls.jsonl").read_text(encoding="utf-8").splitlines()
    places = [one["cwd"] for one in map(json.loads, log) if one["tool"] == "aircc"]
    assert len(set(places)) == 2
    assert not [place for place in places if Path(place).exists()]
    assert os.getcwd() not in places
    assert not list((tmp_path / "cache").glob("*.part-*"))


def test_two_compiles_of_one_program_at_once_compile_it_once(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    folders: list[Path] = []

    def compile_it() -> None:
        folders.append(loaded(backend_of(machine, tmp_path), gemv()[0]).artefact.folder)

    threads = [threading.Thread(target=compile_it) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(folders)) == 1
    assert len(machine.calls("aircc")) == 1


def test_compiler_output_is_kept_when_compiling_succeeds(tmp_path: Path) -> None:
    machine = StandIn(tmp_path, {"aircc": {"stdout": "a remark on success\n"}})
    kernel = loaded(backend_of(machine, tmp_path), gemv()[0])
    assert (kernel.artefact.folder / "aircc.out").read_text(encoding="utf-8") == "a remark on success\n"


def test_warnings_are_found_again_with_a_cached_artefact(tmp_path: Path) -> None:
    machine = StandIn(tmp_path, {"aircc": {"stderr": "air.mlir:3:5: warning: packet ids disagree\n"}})
    for _ in range(2):
        kernel = loaded(backend_of(machine, tmp_path), gemv()[0])
        (warning,) = [one for one in kernel.findings if one.code == "compiler-warning"]
        assert (warning.line, warning.column) == (3, 5)


def test_a_failure_can_be_tried_again(tmp_path: Path) -> None:
    machine = StandIn(tmp_path, {"aircc": {"stderr": "Error writing file x: No space left on device\n", "exit": 1}})
    backend = backend_of(machine, tmp_path)
    assert isinstance(backend.load(gemv()[0], name="kernel"), Refused)
    machine.change(aircc={})
    loaded(backend, gemv()[0])


def test_a_full_disk_is_told_before_compiling_and_while_keeping_the_artefact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = StandIn(tmp_path)
    monkeypatch.setattr("npu_tools.backends.xrt.compiling.free_mb", lambda _: 5)
    before = backend_of(machine, tmp_path).load(gemv()[0], name="kernel")
    assert isinstance(before, Refused)
    assert before.first.code == "disk-full"
    assert not machine.calls("aircc")
    monkeypatch.undo()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("npu_tools.backends.xrt.compiling.write_json", full)
    while_keeping = backend_of(machine, tmp_path).load(gemv()[0], name="kernel")
    assert isinstance(while_keeping, Refused)
    assert while_keeping.first.code == "disk-full"


def test_a_cancelled_compile_says_so_and_ends_its_tools(tmp_path: Path) -> None:
    machine = StandIn(tmp_path, {"aircc": {"hang": True}})
    asked: list[bool] = []

    def cancelled() -> bool:
        asked.append(True)
        return bool(machine.calls("aircc"))

    refused = backend_of(machine, tmp_path, cancelled=cancelled).load(gemv()[0], name="kernel")
    assert isinstance(refused, Refused)
    assert refused.first.code == "stopped"


# -- what this package never does --------------------------------------------------------------------------------------


def test_air_aie_and_pyxrt_are_imported_in_children_alone() -> None:
    children = ROOT / "npu_tools" / "backends" / "xrt" / "children"

    def imports(path: Path) -> set[str]:
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                found.add(node.module.split(".")[0])
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module" and node.args:
                first = node.args[0]
                found.add(str(first.value) if isinstance(first, ast.Constant) else "")
        return found

    for package in ("kb", "npu_tools", "mcp_server", "harvest"):
        for path in (ROOT / package).rglob("*.py"):
            if path.parent != children:
                assert not imports(path) & {"air", "aie", "pyxrt"}, path
    assert "pyxrt" in imports(children / "runner.py"), "the guard sees what it looks for"
    for path in children.glob("*.py"):
        assert not imports(path) & {"npu_tools", "numpy", "kb"}, f"{path} runs in a Python without Herdbook"


def test_no_module_uses_what_windows_has_not() -> None:
    for path in (ROOT / "npu_tools" / "backends" / "xrt").rglob("*.py"):
        names = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Attribute)
        }
        modules = {
            a.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Import)
            for a in node.names
        }
        assert not modules & {"fcntl", "resource", "pwd", "grp"}, path
        assert not names & {"fork", "killpg", "setrlimit", "geteuid"}, path


def test_the_stand_in_cannot_be_chosen_by_accident(tmp_path: Path) -> None:
    """Its tools run only with the variable its fixture sets, it is in no package, and nothing of ours names it."""
    import subprocess
    import sys

    machine = StandIn(tmp_path)
    done = subprocess.run(
        [str(machine.folder / "bin" / "xrt-smi"), "examine"], capture_output=True, text=True, env={}, check=False
    )
    assert done.returncode != 0
    assert "stand-in" in done.stderr
    done = subprocess.run(
        [sys.executable, "-c", "import pyxrt"], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(machine.folder / "site")},
    )  # fmt: skip
    assert done.returncode != 0
    packages = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "stand_in" not in packages
    for package in ("kb", "npu_tools", "mcp_server", "harvest"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "HERDBOOK_STAND_IN" not in text, path
            assert "stand_in" not in text, path


# -- rules the run child keeps, read off its text (the stand-in shows that it works; these that it stays so) --------------


def _runner() -> ast.Module:
    path = ROOT / "npu_tools" / "backends" / "xrt" / "children" / "runner.py"
    return ast.parse(path.read_text(encoding="utf-8"))


def _method(name: str, kind: str) -> ast.FunctionDef:
    (owner,) = [node for node in ast.walk(_runner()) if isinstance(node, ast.ClassDef) and node.name == kind]
    return next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == name)


def test_no_buffer_is_read_or_written_but_through_its_map() -> None:
    """bo.read gives arrays numpy 2 cannot view, bo.write ignores read-only ones (mlir-air PR 1770, issue 1693)."""
    calls = [node.func for node in ast.walk(_method("__init__", "Bound")) if isinstance(node, ast.Call)]
    assert "map" in {call.attr for call in calls if isinstance(call, ast.Attribute)}
    for node in ast.walk(_runner()):
        if isinstance(node, ast.Attribute) and node.attr in ("read", "write"):
            owner = ast.unparse(node.value)
            assert owner in ("file", "self", "one", "self.answers", "self.bound[name]"), owner


def test_every_argument_is_set_by_itself() -> None:
    """kernel(...) leaves out, without a word, what it cannot cast (XRT src/python/pybind11/src/pyxrt.cpp)."""
    text = ast.unparse(_method("run", "Loaded"))
    assert text.count("set_arg") == 4
    assert "self.kernel(" not in ast.unparse(_runner())


def test_buffers_are_released_before_contexts_and_the_device_last() -> None:
    """Another order faults on Windows (mlir-air python/air/backend/xrt.py unload; PR 1829)."""
    released = [
        ast.unparse(one).split(" = ")[0] for one in _method("release", "Loaded").body if isinstance(one, ast.Assign)
    ]
    assert released == ["self.instructions", "self.kernel", "self.context", "self.file", "self.device"]
    text = ast.unparse(_method("close", "Server"))
    assert text.index("do_drop") < text.index("do_close") < text.index("self.device = None")


SIX = """module {
  func.func @six(%a: memref<8xf32>, %b: memref<8xf32>, %c: memref<8xf32>, %d: memref<8xf32>, %e: memref<8xf32>, %f: memref<8xf32>) {
    return
  }
}
"""


def test_more_than_five_buffers_make_an_elf_and_are_refused_as_xclbin() -> None:
    function = choose_function(parse_program(SIX, "six.mlir"), None)
    plan = plan_compile(function, {}, device("npu2"))
    assert not isinstance(plan, list)
    assert (plan.format, plan.why) == ("elf", "6 buffers")
    refused = plan_compile(function, {"output_format": "xclbin"}, device("npu2"))
    assert isinstance(refused, list)
    assert [one.code for one in refused] == ["xclbin-arguments"]
    assert "@six takes 6 buffers; an xclbin kernel takes 5" in refused[0].message
