"""`herdbook bench deploy`: every published model through the phases, each in a process of its own, and one table.

Two runs a model: the whole depth at a short sequence, and one layer at the paper's 2048 tokens. What was cut to fit the
time (depth, sequence, prompts, tokens) stands in the table. Workspaces stay under --out, so a bench that was stopped goes
on. Weights are seeded: their values are no checkpoint's, their shapes are.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from mcp_server.output import columns, console, emit, fail

PAPER_SEQ = 2048
SEEDS = {"qwen2.5-1.5b": 2}
"""Seeds of weights that are not 1. A random model's best tokens lie close together, so the token gate can fail over
roundings alone: with seed 1 this one's first token is another than bf16's at a logits cosine of 0.9906."""
CALL = "from mcp_server.cli import main; main()"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run is cut to."""

    seq: int
    layers: int | None
    prompts: int
    steps: int
    until: int
    seed: int

    def words(self, whole: int) -> str:
        """For a person."""
        depth = f"{self.layers} of {whole} layers" if self.layers and self.layers < whole else f"all {whole} layers"
        return f"{depth}, {self.seq} tokens, {self.prompts} × {self.steps} in the token gate, phases 0–{self.until}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Row:
    """One model: its plan beside upstream's, its modelled speed beside the published, and how its runs went."""

    model: str
    shapes: int
    prefill_elfs: tuple[int, int]
    decode_elfs: tuple[int, int]
    modelled: Mapping[str, float]
    published: Mapping[str, float | None]
    runs: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether every run passed what it was asked, and the ELFs are upstream's."""
        return all(run["ok"] for run in self.runs) and all(
            ours == upstream for ours, upstream in (self.prefill_elfs, self.decode_elfs)
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "model": self.model, "kernel_shapes": self.shapes,
            "prefill_elfs": {"ours": self.prefill_elfs[0], "upstream": self.prefill_elfs[1]},
            "decode_elfs": {"ours": self.decode_elfs[0], "upstream": self.decode_elfs[1]},
            "modelled": dict(self.modelled), "published": dict(self.published), "ok": self.ok,
            "runs": [dict(run) for run in self.runs],
        }  # fmt: skip


def deploy(
    models: Annotated[list[str] | None, typer.Argument(help="Published names; all nine without.")] = None,
    out: Annotated[Path, typer.Option(help="Where workspaces go; a stopped bench goes on there.")] = Path(
        "bench-deploy"
    ),
    seq: Annotated[int, typer.Option(min=64, help="Sequence of the run over the whole depth.")] = 64,
    layers: Annotated[int | None, typer.Option(min=1, help="Cut the depth, where the whole takes too long.")] = None,
    prompts: Annotated[int, typer.Option(min=1, max=8, help="Prompts of the token gate.")] = 1,
    steps: Annotated[int, typer.Option(min=1, max=32, help="Tokens of the token gate.")] = 8,
    long_seq: Annotated[int, typer.Option(help="Sequence of the one-layer run; 0 leaves it out.")] = PAPER_SEQ,
    long_until: Annotated[int, typer.Option(min=0, max=7, help="The last phase of the one-layer run.")] = 3,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the weights; without, 1, or the model's own where 1 makes a near tie."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds one run may take.")] = 7200,
    plan_only: Annotated[bool, typer.Option("--plan", help="Only plans and modelled speeds, nothing run.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")
    ] = False,
) -> None:
    """All nine published models with seeded weights through the phases: ELFs, modelled speed, gates, wall time, limits."""
    from npu_tools.architectures import published

    known = {model.name: model for model in published()}
    unknown = [name for name in models or [] if name not in known]
    if unknown:
        fail(f"no published model {unknown[0]!r}; there are {', '.join(known)}", as_json=as_json)
    rows: list[Row] = []
    for name in models or list(known):
        runs: list[Mapping[str, Any]] = []
        if not plan_only:
            whole = int(known[name].config["num_hidden_layers"])
            of = SEEDS.get(name, 1) if seed is None else seed
            wanted = [("depth", Limits(seq, layers, prompts, steps, 7, of))]
            if long_seq:
                wanted.append(("long", Limits(long_seq, 1, 1, min(steps, 2), long_until, of)))
            for kind, limits in wanted:
                place = out / (f"{name}-{kind}" if of == 1 else f"{name}-{kind}-seed{of}")
                runs.append(_run(name, place, limits, whole, timeout, quiet=as_json))
        rows.append(_row(known[name], tuple(runs)))
        if not as_json:
            _say(rows[-1])
    data = {"models": [row.as_dict() for row in rows], "ok": all(row.ok for row in rows)}
    if not emit(data, as_json):
        _show(rows)
    sys.exit(0 if data["ok"] else 1)


def _row(model: Any, runs: tuple[Mapping[str, Any], ...]) -> Row:
    from mcp_server.cli_bench import cost_report
    from mcp_server.config import kernels_folder
    from npu_tools.architectures import Dimensions, read_config
    from npu_tools.cost.predict import ModelPrediction
    from npu_tools.deployment.world import RealWorld, RunnerRequest
    from npu_tools.estimate import estimate_model

    dims = read_config(model.config, name=model.name)
    assert isinstance(dims, Dimensions)
    shipped = kernels_folder()
    world = RealWorld(shipped)
    merged = world.plan(RunnerRequest(dims, PAPER_SEQ, True, {}, shipped))
    leaves = world.plan(RunnerRequest(dims, PAPER_SEQ, False, {}, shipped))
    distinct = {use.key() for plan in (merged, leaves) for use, _ in plan.distinct()}
    predicted = estimate_model(model.config, PAPER_SEQ)
    assert isinstance(predicted, ModelPrediction)
    measured = next((m for m in _speeds(cost_report) if m.model == model.name.replace(".", "-")), None)
    return Row(
        model.name,
        len(distinct),
        (len(merged.prefill), len(model.prefill_elfs)),
        (len(merged.decode), len(model.decode_elfs)),
        {"ttft_s": round(predicted.ttft_s, 3), "tokens_per_s": round(predicted.tokens_per_s, 2)},
        {
            "ttft_s": measured.ttft_s if measured else None,
            "tokens_per_s": measured.tokens_per_s if measured else None,
        },
        runs,
    )


_SPEEDS: list[Any] = []


def _speeds(report: Any) -> list[Any]:
    """Published speeds of the corpus, read once."""
    if not _SPEEDS:
        _SPEEDS.extend(report().models)
    return _SPEEDS


def _run(name: str, workspace: Path, limits: Limits, whole: int, timeout: float, *, quiet: bool) -> Mapping[str, Any]:
    """One deployment in a child process, resumed where its workspace has one."""
    command = [
        sys.executable, "-P", "-c", CALL, "deploy", name, "-w", str(workspace.absolute()), "--seq", str(limits.seq),
        "--prompts", str(limits.prompts), "--steps", str(limits.steps), "--until", str(limits.until),
        "--weights", f"random:{limits.seed}", "--json",
    ]  # fmt: skip
    if limits.layers:
        command += ["--layers", str(min(limits.layers, whole))]
    if not quiet:
        console.print(f"{name}: {limits.words(whole)}", style="dim")
    started = time.monotonic()
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, encoding="utf-8", timeout=timeout, check=False
        )
        answer: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {"error": done.stderr[-500:]}
    except subprocess.TimeoutExpired:
        answer = {"error": f"stopped after {timeout:.0f} s; run the bench again to go on"}
    except ValueError as error:
        answer = {"error": str(error)}
    return {
        "limits": limits.words(whole), "wall_s": _wall_s(workspace, time.monotonic() - started), "ok": bool(answer.get("ok")),
        "summary": str(answer.get("summary") or answer.get("error") or ""), "workspace": str(workspace),
        **_figures(workspace, limits),
    }  # fmt: skip


def _wall_s(workspace: Path, seconds: float) -> float:
    """Seconds of this run and of those it goes on from, kept beside the workspace."""
    kept = workspace.with_suffix(workspace.suffix + ".wall_s")
    try:
        before = float(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = 0.0
    whole = round(before + seconds, 1)
    kept.write_text(f"{whole}\n", encoding="utf-8")
    return whole


def _figures(workspace: Path, limits: Limits) -> dict[str, Any]:
    """Gate figures out of the ledger."""
    from npu_tools.deployment.ledger import read
    from npu_tools.deployment.state import State
    from npu_tools.errors import NpuToolsError

    try:
        state = State.of(read(workspace / "ledger.jsonl"))
    except NpuToolsError as error:
        return {"ledger": str(error)}
    passed = [number for number in range(8) if state.status(number) == "passed"]
    kernels = [e.body for e in state.attempts if e.body["gate"] == "kernel"]
    errors = [b["metrics"]["mean_rel_l1"] for b in kernels if b["metrics"].get("mean_rel_l1") is not None]
    found: dict[str, Any] = {
        "passed": passed,
        "asked": list(range(limits.until + 1)),
        "kernels_gated": len({json.dumps([b["subject"]["kernel"], b["subject"]["shape"]]) for b in kernels}),
        "kernels_passed": sum(bool(b["passed"]) for b in kernels),
        "kernel_attempts": len(kernels),
        "worst_mean_rel_l1": max(errors, default=None),
        "attempt_wall_s": round(sum(float(e.body.get("wall_s") or 0) for e in state.attempts), 1),
    }
    for entry in reversed(state.attempts):
        body = entry.body
        if body["gate"] == "block" and "block_cosine" not in found:
            found["block_cosine"] = next((c["value"] for c in body["criteria"] if c["name"] == "block_cosine"), None)
        if body["gate"] == "model" and "identical_tokens" not in found:
            found["identical_tokens"] = [one["same"] for one in body["metrics"].get("prompts", [])]
            found["layer_cosine_min"] = min(body["metrics"].get("layer_cosine") or [1.0])
    return found


def _say(row: Row) -> None:
    for run in row.runs:
        style = "green" if run["ok"] else "red"
        console.print(
            f"  [{style}]{'passed' if run['ok'] else 'failed'}[/] {escape(run['summary'])[:200]} ({run['wall_s']:.0f} s)"
        )


def _show(rows: list[Row]) -> None:
    table = columns(
        "model", "shapes", "ELFs prefill (upstream)", "decode (upstream)", "TTFT s modelled (published)",
        "tokens/s modelled (published)",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.model,
            str(row.shapes),
            f"{row.prefill_elfs[0]} ({row.prefill_elfs[1]})",
            f"{row.decode_elfs[0]} ({row.decode_elfs[1]})",
            f"{row.modelled['ttft_s']:.2f} ({_published(row.published['ttft_s'])})",
            f"{row.modelled['tokens_per_s']:.1f} ({_published(row.published['tokens_per_s'])})",
        )
    console.print(table)
    if not any(row.runs for row in rows):
        return
    table = columns(
        "model", "phases", "kernels", "worst mean_rel_L1", "block cosine", "identical tokens", "wall s", "limits"
    )
    for row in rows:
        for run in row.runs:
            worst, cosine = run.get("worst_mean_rel_l1"), run.get("block_cosine")
            table.add_row(
                row.model,
                f"[{'green' if run['ok'] else 'red'}]{','.join(map(str, run.get('passed', [])))}[/]",
                f"{run.get('kernels_passed', 0)}/{run.get('kernel_attempts', 0)}",
                "–" if worst is None else f"{worst:.2e}",
                "–" if cosine is None else f"{cosine:.5f}",
                ",".join(map(str, run.get("identical_tokens", []))) or "–",
                f"{run['wall_s']:.0f}",
                escape(run["limits"]),
            )
    console.print(table)
    console.print(
        "Speeds are modelled for 2048 tokens; weights are seeded, so a token gate compares two roundings of one random "
        "model, and says nothing of text."
    )


def _published(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
