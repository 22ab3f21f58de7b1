"""The evaluator's audits on a small record made by hand: what each accuses, and what it leaves alone.

Whole deployments, cheats and honest differences, are `herdbook bench evaluator`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npu_tools.architectures import Dimensions, read_config
from npu_tools.deployment.criteria import phases
from npu_tools.deployment.ledger import Ledger
from npu_tools.deployment.phases.kernels import _row  # pyright: ignore[reportPrivateUsage]
from npu_tools.deployment.site import config_digest
from npu_tools.deployment.state import tools_version
from npu_tools.deployment.workspace import file_digest, recipe_digest
from npu_tools.deployment.world import RealWorld
from npu_tools.errors import UnusableInput
from npu_tools.evaluator import CODES, Reason, figures, gates, history, recipes, record, results, standards, verdict_of
from npu_tools.evaluator.benign import BENIGN
from npu_tools.evaluator.cheats import CHEATS
from npu_tools.evaluator.claims import Claims, read_claims
from npu_tools.evaluator.evaluate import evaluate
from npu_tools.evaluator.honest import TINY
from npu_tools.evaluator.planting import Line, Planted, attempts
from npu_tools.evaluator.recipe_code import read_recipe_code, same_code
from npu_tools.evaluator.rederive import Checked, KernelClaim, audit_kernels, unlike_the_device
from npu_tools.gate import tolerance_for
from npu_tools.recipes import recipe

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
CONFIG = dict(TINY)
DIMS = read_config(CONFIG)
assert isinstance(DIMS, Dimensions)
PROMPTS = RealWorld(KERNELS).prompts("random:7", DIMS, 8, 64)
SHAPE = {"n": 2048}


def workspace(folder: Path) -> Path:
    """A ledger that claims phases 0 to 6, with one kernel, its results, and a failure that was put right."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "settings.json").write_text("{}", encoding="utf-8")
    for name in ("plan.md", "progress.md"):
        (folder / name).write_text("# From the ledger\n", encoding="utf-8")
    for kind, asked in (("block", {"tokens": PROMPTS[0]}), ("greedy", {"prompts": PROMPTS})):
        place = folder / "results" / "reference" / f"{kind}-1"
        place.mkdir(parents=True)
        (place / "request.json").write_text(json.dumps({"request": {"kind": kind, **asked}}), encoding="utf-8")
    ledger = Ledger.open(folder / "ledger.jsonl")
    opened = {
        "model": "tiny", "config_digest": config_digest(CONFIG), "weights": "random:7", "seq_len": 64, "layers": 2,
        "backend": "emulator", "convention": "head", "prompts": 8, "steps": 32, "version": tools_version(),
    }  # fmt: skip
    ledger.append("opened", None, opened)
    for number in range(7):
        ledger.append("phase", number, {"state": "started"})
        if number == 1:
            failed = ledger.append("attempt", 1, kernel_attempt(folder, passed=False))
            ledger.append("note", 1, {"text": "the tile was too large", "about": failed.seq})
            passed = ledger.append("attempt", 1, kernel_attempt(folder, passed=True))
            registry = {"rows": [_row(passed)]}
            (folder / "results/phase_1/registry.json").write_text(json.dumps(registry), encoding="utf-8")
        elif number in (3, 4, 5):
            gate = {3: "model", 4: "prefill", 5: "decode"}[number]
            subject = {"layers": 2, "seq_len": 64, "steps": 32, "prompts": [{"tokens": each} for each in PROMPTS]}
            ledger.append("attempt", number, kept(folder, attempt(number, gate, subject), number))
        else:
            gate = {0: "reference", 2: "block", 6: "finalize"}[number]
            subject = {"layers": 2, "seq_len": 64, "tokens": PROMPTS[0]}
            ledger.append("attempt", number, kept(folder, attempt(number, gate, subject), number))
        ledger.append("phase", number, {"state": "passed"})
    return folder


def kept(folder: Path, body: dict[str, Any], number: int) -> dict[str, Any]:
    """An attempt with a file of results."""
    path = folder / "results" / f"phase_{number}" / f"{body['gate']}_01" / "note.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}", encoding="utf-8")
    body["digests"]["results"] = {path.relative_to(folder).as_posix(): file_digest(path)}
    return body


def attempt(number: int, gate: str, subject: dict[str, Any], passed: bool = True) -> dict[str, Any]:
    values = {">=": 6.0, "<=": 0.01, "<": 0.01, "==": 0.0, "is": True}
    criteria = [
        one.judge(values[one.bound], head_dim=64).as_dict()
        for one in next(phase for phase in phases() if phase.number == number).criteria
    ]
    return {
        "gate": gate, "number": 1, "subject": subject, "passed": passed, "trial": False, "criteria": criteria,
        "convention": "head", "tolerance": None, "metrics": {}, "backend": "emulator", "digests": {"results": {}},
    }  # fmt: skip


def kernel_attempt(folder: Path, passed: bool) -> dict[str, Any]:
    add = recipe(KERNELS, "eltwise_add")
    resolved = add.resolve(SHAPE)
    tensors = add.inputs(resolved, 1)
    wanted = add.reference(tensors, resolved)["c"]
    place = folder / "results" / "phase_1" / ("kernel_02" if passed else "kernel_01")
    place.mkdir(parents=True)
    rounded = np.asarray(wanted).astype(next(iter(tensors.values())).dtype).astype(np.float32)
    np.save(place / "c.npy", rounded if passed else -rounded)
    np.save(place / "c_reference.npy", np.asarray(wanted, np.float32))
    rule = tolerance_for("eltwise_add")
    subject = {
        "kernel": "eltwise_add", "shape": SHAPE, "settings": dict(resolved.settings), "seed": 1,
        "recipe_digest": recipe_digest(add.folder), "n": passed,
    }  # fmt: skip
    body = attempt(1, "kernel", subject, passed)
    if not passed:
        for one in body["criteria"]:
            one.update(value=False, ok=False) if one["name"] == "within_tolerance" else None
    body["tolerance"] = {"kernel": rule.kernel, "tier": rule.tier, "rtol": rule.rtol, "atol": rule.atol}
    body["digests"]["results"] = {
        path.relative_to(folder).as_posix(): file_digest(path) for path in sorted(place.glob("*.npy"))
    }
    return body


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workspace(tmp_path_factory.mktemp("evaluator") / "honest")


@pytest.fixture
def copy(honest: Path, tmp_path: Path) -> Planted:
    return Planted.copy(honest, tmp_path / "copy", KERNELS)


def claims(planted: Planted) -> Claims:
    return read_claims(planted.folder, KERNELS)


def codes(reasons: Iterator[Reason]) -> set[str]:
    return {reason.code for reason in reasons}


def said(planted: Planted) -> set[str]:
    """Codes of every audit of papers and files."""
    read = claims(planted)
    audits = (record.audit_record, gates.audit_gates, results.audit_files, figures.audit_figures)
    return {reason.code for audit in audits for reason in audit(read)}


def test_an_honest_record_is_not_accused(copy: Planted) -> None:
    assert said(copy) == set()


def test_the_standards_are_those_the_gates_ask() -> None:
    path = Path(standards.__file__).with_name("standards.toml")
    assert path.read_text(encoding="utf-8") == standards.as_toml(), "run python -m npu_tools.evaluator.standards"


def each(gate: str, change: Callable[[dict[str, Any]], None]) -> Callable[[list[Line]], None]:
    def changed(lines: list[Line]) -> None:
        for line in attempts(lines, gate):
            if line["body"]["passed"]:
                change(line["body"])

    return changed


def criterion(name: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    def change(body: dict[str, Any]) -> None:
        for one in body["criteria"]:
            if one["name"] == name:
                one.update(values)

    return change


def without(*indexes: str) -> Callable[[list[Line]], list[Line]]:
    return lambda lines: [
        line
        for line in lines
        if not (line["kind"] in indexes and line["kind"] == "attempt" and not line["body"]["passed"])
    ]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (each("kernel", lambda b: b["tolerance"].update(atol=1.0)), "tolerance_loosened"),
        (each("block", criterion("block_cosine", value=0.5, bound=">= 0.4")), "criteria_changed"),
        (each("block", criterion("block_cosine", value=0.5)), "criteria_inconsistent"),
        (each("block", criterion("position_cosine_min", ok=False)), "criteria_inconsistent"),
        (each("block", lambda b: b["criteria"].pop(0)), "criteria_missing"),
        (each("model", criterion("token_sets", value=False, ok=False, decides=False)), "convention_swapped"),
        (each("model", lambda b: b.update(convention="paper")), "convention_swapped"),
        (each("model", lambda b: b["subject"].update(layers=1)), "layers_skipped"),
        (each("block", lambda b: b["subject"].update(seq_len=16)), "sequence_shortened"),
        (each("model", lambda b: b["subject"]["prompts"].pop()), "gate_shrunk"),
        (each("decode", lambda b: b["subject"].update(steps=4)), "gate_shrunk"),
        (each("decode", lambda b: b.update(measured_us=3.0)), "measured_on_emulator"),
        (without("attempt"), "history_removed"),
        (each("kernel", lambda b: b.update(tolerance=None)), "tolerance_loosened"),
        (each("block", lambda b: b["digests"].update(results={})), "results_missing"),
        (each("decode", lambda b: b.update(trial=True)), "gate_shrunk"),
        (each("decode", lambda b: b["metrics"].update(time={"timing": "measured"})), "measured_on_emulator"),
        (each("decode", lambda b: b.update(backend="xrt")), "criteria_inconsistent"),
        (each("kernel", lambda b: b.update(trial=True)), "criteria_inconsistent"),
        (each("model", lambda b: b["subject"]["prompts"][3]["tokens"].pop()), "prompts_changed"),
        (each("kernel", lambda b: b.update(modelled_us=1.0)), "results_contradict"),
        (lambda lines: lines[0]["body"].update(layers_of_model=30), "model_cut"),
        (lambda lines: lines[-1].update(time="2999-01-01T00:00:00.000+00:00"), "clock_ahead"),
        (lambda lines: [line for line in lines if line["phase"] != 2], "incomplete"),
        (lambda lines: [line for line in lines if line["kind"] != "note"], "failure_unexplained"),
    ],
)
def test_a_changed_record_with_fresh_hashes_is_accused_by_its_reason(
    copy: Planted, change: Callable[[list[Line]], Any], code: str
) -> None:
    copy.rewrite(change)
    assert claims(copy).broken is None
    assert code in said(copy)


def test_a_line_edited_by_hand_breaks_the_chain(copy: Planted) -> None:
    path = copy.workspace.ledger
    path.write_text(path.read_text(encoding="utf-8").replace("random:7", "random:8"), encoding="utf-8")
    found = claims(copy)
    assert found.broken is not None
    assert found.broken.code == "chain_broken"
    assert "ledger line 1" in found.broken.evidence


def test_files_are_held_against_the_ledger(copy: Planted) -> None:
    path = copy.folder / "results/phase_1/kernel_02/c.npy"
    np.save(path, np.zeros(4, np.float32))
    assert "results_changed" in said(copy)
    path.unlink()
    assert "results_missing" in said(copy)


def interrupt(copy: Planted) -> None:
    """Phase 1 was killed once: its first line stands there twice, and what names later lines says one more."""

    def change(lines: list[Line]) -> list[Line]:
        at = next(n for n, line in enumerate(lines) if line["kind"] == "phase" and line["phase"] == 1)
        for line in lines:
            if "about" in line["body"]:
                line["body"]["about"] += 1
        return [*lines[:at], json.loads(json.dumps(lines[at])), *lines[at:]]

    copy.rewrite(change)
    path = copy.folder / "results/phase_1/registry.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for row in content["rows"]:
        row["attempt"] += 1
    path.write_text(json.dumps(content), encoding="utf-8")


def test_results_of_an_attempt_nobody_tells_of_are_seen_unless_a_run_was_cut_off(copy: Planted) -> None:
    place = copy.folder / "results/phase_1/kernel_03"
    place.mkdir()
    np.save(place / "c.npy", np.zeros(4, np.float32))
    assert "history_removed" in said(copy)

    interrupt(copy)
    assert said(copy) == set()


def test_a_failure_taken_out_with_every_number_made_to_fit_is_seen_by_what_it_left(copy: Planted) -> None:
    failed = next(line["seq"] for line in copy.lines() if not line["body"].get("passed", True))
    copy.remove({failed})
    assert claims(copy).broken is None
    assert "history_removed" in said(copy)
    (copy.folder / "results/phase_1/registry.json").unlink()
    assert said(copy) >= {"history_removed", "results_missing"}


def test_folders_are_counted_with_those_a_killed_run_left(copy: Planted) -> None:
    """A run killed after its second kernel kept results: the next one takes the number after them."""
    left = copy.folder / "results/phase_1/kernel_02"
    left.rename(left.with_name("kernel_03"))
    assert "history_removed" in {reason.code for reason in history.audit_history(claims(copy))}

    def moved(lines: list[Line]) -> None:
        for line in attempts(lines, "kernel"):
            named = line["body"]["digests"]["results"]
            for path in [path for path in named if "kernel_02" in path]:
                named[path.replace("kernel_02", "kernel_03")] = named.pop(path)

    copy.rewrite(moved)
    assert "history_removed" in said(copy), "nothing was left where it should have been, and no run was cut off"

    left.mkdir()
    np.save(left / "c.npy", np.zeros(4, np.float32))
    interrupt(copy)
    assert said(copy) == set()


def test_a_hash_kept_elsewhere_tells_a_ledger_written_anew_and_not_one_that_grew(copy: Planted) -> None:
    def told(head: str) -> set[str]:
        return {reason.code for reason in history.audit_head(claims(copy), head)}

    head = copy.lines()[-1]["hash"]
    Ledger.open(copy.workspace.ledger).append("note", None, {"text": "read", "by": "person"})
    assert told(head) == told(head[:16].upper()) == set()
    assert told(head[:4]) == {"head_differs"}, "so few letters name nothing"
    copy.rewrite(lambda lines: lines[0]["body"].update(model="another"))
    assert told(head) == {"head_differs"}
    assert evaluate(copy.folder, KERNELS, effort="papers", head=head).verdict == "fail"


def test_a_verdict_of_another_ledger_is_seen_and_an_earlier_one_of_this_is_not(copy: Planted) -> None:
    evaluate(copy.folder, KERNELS, effort="papers")
    Ledger.open(copy.workspace.ledger).append("note", None, {"text": "read", "by": "person"})
    assert said(copy) == set()
    copy.rewrite(lambda lines: lines[0]["body"].update(model="another"))
    assert said(copy) == {"verdict_foreign"}


def test_another_config_is_seen_and_another_order_of_keys_is_not(copy: Planted) -> None:
    path = copy.workspace.config
    path.write_text(json.dumps(dict(reversed(CONFIG.items())), indent=3), encoding="utf-8")
    assert said(copy) == set()
    path.write_text(json.dumps({**CONFIG, "rope_theta": 5e5}), encoding="utf-8")
    assert "config_changed" in said(copy)


def test_stored_kernel_results_are_held_against_references_made_again(copy: Planted) -> None:
    made: Any = results.Made(None, None, np.random.default_rng(0), 60.0)  # type: ignore[arg-type]
    assert codes(results.audit_kernel_results(claims(copy), made)) == set()
    path = "results/phase_1/kernel_02/c_reference.npy"
    copy.array(path, lambda values: values * 1.1)
    assert codes(results.audit_kernel_results(claims(copy), made)) == {"reference_edited"}
    copy.array("results/phase_1/kernel_02/c.npy", lambda values: values + 3)
    assert "results_contradict" in codes(results.audit_kernel_results(claims(copy), made))


def test_an_output_that_is_its_reference_is_called_copied(copy: Planted) -> None:
    made: Any = results.Made(None, None, np.random.default_rng(0), 60.0)  # type: ignore[arg-type]
    reference = np.load(copy.folder / "results/phase_1/kernel_02/c_reference.npy")
    copy.array("results/phase_1/kernel_02/c.npy", lambda _: reference)
    assert codes(results.audit_kernel_results(claims(copy), made)) == {"copied_reference"}


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*/*.py")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_shipped_recipe_is_suspected(path: Path) -> None:
    if path.stem in ("design", "host"):
        assert list(read_recipe_code(path, path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("file", "text", "code"),
    [
        ("design.py", "import os\n", "recipe_reaches_out"),
        ("design.py", "from pathlib import Path\n", "recipe_reaches_out"),
        ("design.py", "def design(shape, settings):\n    return open('x').read()\n", "recipe_reaches_out"),
        ("design.py", "x = ().__class__.__subclasses__()\n", "recipe_reaches_out"),
        ("design.py", "import numpy as np\nx = np.load('a.npy')\n", "recipe_reaches_out"),
        ("design.py", f"x = ({', '.join(str(n) for n in range(200))})\n", "recipe_embeds_data"),
        ("design.py", f"x = '{'ab' * 3000}'\n", "recipe_embeds_data"),
        ("design.py", "_c = {}\ndef design(shape, settings):\n    _c['n'] = 1\n", "verify_only"),
        ("design.py", "def design(shape, settings):\n    if shape['M'] == 512: return ''\n", "shape_special_case"),
        ("design.py", "def design(:\n", "verify_only"),
        ("host.py", "def collect(a, s, t):\n    return {'c': a['x'] @ a['w']}\n", "host_computes"),
        (
            "host.py",
            "import numpy as np\ndef collect(a, s, t):\n    return {'c': np.dot(a['x'], a['w'])}\n",
            "host_computes",
        ),
        ("host.py", "_k = []\ndef arrange(t, s, u):\n    _k.append(t)\n    return t\n", "host_computes"),
    ],
)
def test_changed_recipe_code_is_read(file: str, text: str, code: str) -> None:
    assert code in {reason.code for reason in read_recipe_code(Path("recipes/k") / file, text)}


def test_comments_and_docstrings_do_not_make_another_reference() -> None:
    assert same_code('"""A."""\nx = 1\n', "# B\nx = 1  # c\n")
    assert not same_code("x = 1\n", "x = 2\n")


def test_manifests_that_make_a_gate_easier_are_named(copy: Planted, tmp_path: Path) -> None:
    copy.override("gemv", "kernel.toml", lambda text: text.replace('kernel = "gemv"', 'kernel = "flash_attention"'))
    copy.override("rope", "kernel.toml", lambda text: text.replace('role = "input"', 'role = "input"\nscale = 1e-4', 1))
    copy.override("silu_mul", "reference.py", lambda text: text + "\nreference = None\n")
    read = claims(copy)
    found = codes(recipes.audit_recipes(read, recipes.merged(read, tmp_path / "together")))
    assert found == {"tolerance_loosened", "inputs_weakened", "reference_edited"}


def test_a_kernel_that_gives_other_results_on_fresh_inputs_is_caught(copy: Planted, tmp_path: Path) -> None:
    claim = KernelClaim("eltwise_add", SHAPE, {}, "ledger line 5")

    def run(changed: list[str], place: Path) -> set[str]:
        together = recipes.merged(claims(copy), place)
        return codes(audit_kernels([claim], KERNELS, together, changed, place, seed=9, budget_s=60, checked=Checked()))

    assert run([], tmp_path / "a") == set()
    copy.override("eltwise_add", "design.py", lambda text: text.replace("arith.addf", "arith.mulf"))
    assert run(["eltwise_add"], tmp_path / "b") == {"verify_only"}


def test_fp32_is_not_taken_for_the_device() -> None:
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((16, 16), np.float32)
    bf16 = recipe(KERNELS, "eltwise_add").tensors(recipe(KERNELS, "eltwise_add").resolve(SHAPE))[0].dtype
    assert "no bf16" in unlike_the_device("eltwise_add", exact, exact, bf16)
    rounded = exact.astype(bf16).astype(np.float32)
    assert not unlike_the_device("eltwise_add", rounded, exact, bf16)
    assert "block floats" in unlike_the_device("gemm", exact, exact, np.dtype(np.float32))
    blocks = exact * (1 + 0.01 * rng.standard_normal((16, 16)).astype(np.float32))
    assert not unlike_the_device("gemm", blocks, exact, np.dtype(np.float32))


def test_an_evaluation_of_papers_leaves_its_two_files(copy: Planted) -> None:
    copy.rewrite(each("kernel", lambda b: b["tolerance"].update(atol=1.0)))
    found = evaluate(copy.folder, KERNELS, seed=1, effort="papers")
    assert found.verdict == "fail"
    written = json.loads((copy.folder / "verdict.json").read_text(encoding="utf-8"))
    assert written["verdict"] == "fail"
    assert written["reasons"][0]["code"] == "tolerance_loosened"
    page = (copy.folder / "evaluation_report.md").read_text(encoding="utf-8")
    assert "**FAIL**" in page
    assert "`tolerance_loosened`" in page


def test_a_folder_without_a_deployment_is_no_verdict(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match=r"no deployment's workspace"):
        evaluate(tmp_path, KERNELS)


def test_verdicts_follow_from_the_heaviest_reason() -> None:
    assert verdict_of([]) == "pass"
    assert verdict_of([Reason("clock_backwards", "", "")]) == "pass_with_warnings"
    assert verdict_of([Reason("clock_backwards", "", ""), Reason("stale", "", "")]) == "fail"


def test_the_bench_has_enough_of_both_kinds_and_knows_its_codes() -> None:
    assert len(CHEATS) >= 12
    assert len(BENIGN) >= 10
    assert len({one.name for one in (*CHEATS, *BENIGN)}) == len(CHEATS) + len(BENIGN)
    for cheat in CHEATS:
        assert set(cheat.codes) <= set(CODES)
        assert all(CODES[code][0] == "error" for code in cheat.codes)
    for one in BENIGN:
        assert (one.plant is None) != (one.make is None)
