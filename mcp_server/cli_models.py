"""`herdbook generate`: text from a model whose kernels run on the emulated, or the real, NPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mcp_server.output import columns, console, emit, fail

if TYPE_CHECKING:
    from npu_tools.models.plan import Fused
    from npu_tools.models.runner import Runner
    from npu_tools.models.tokenizer import ModelTokenizer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is run: from a workspace its deployment, else a checkpoint as given."""

    config: Mapping[str, Any]
    weights: str
    kernels: Path
    seq_len: int
    fused: Fused
    settings: Mapping[str, Mapping[str, Any]]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    from mcp_server.cli_upkeep import bench_app

    app.command("generate")(generate_command)
    bench_app.command("layer")(layer_command)


def generate_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="WORKSPACE_OR_MODEL",
            help="A workspace of 'deploy', a folder with weights, a .gguf file, random:SEED (with --config), a hub id.",
        ),
    ],
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="What to go on from; repeatable.")],
    tokens: Annotated[int, typer.Option(min=1, max=4096, help="Tokens to make at most.")] = 32,
    seq_len: Annotated[
        int, typer.Option(help="Prompts are padded to this; a multiple of 64. 0: the deployment's.")
    ] = 0,
    config: Annotated[
        Path | None, typer.Option(help="The model's config.json, where it is not beside the weights.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Where tokenizer.json is, if not beside the weights.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="As a user's message, or as it is (default: as the model has it)."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="Draw among this many; 0 among all.")] = 0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Draw among those that make up this share.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the drawing.")] = 0,
    fused: Annotated[
        bool | None, typer.Option("--fused/--leaves", help="Upstream's few ELFs a layer, or a kernel a dispatch.")
    ] = None,
    numerics: Annotated[
        str, typer.Option(help="Of the emulator: faithful, or f32, which rounds nothing.")
    ] = "faithful",
    backend: Annotated[Literal["emulator", "xrt"], typer.Option(help="Where kernels run; xrt is an NPU.")] = "emulator",
    as_json: JsonFlag = False,
) -> None:
    """Text from a model on the emulated NPU (or a real one): every projection, norm, rotation and activation runs as its AIR program.

    Attention of single tokens, the embedding and the last norm are the host's, as in upstream's runners. It says where
    each part ran. Times are modelled, except the wall's.
    """
    from npu_tools.models.host import Sampling

    if numerics not in ("faithful", "f32"):
        fail(f"--numerics is faithful or f32, not {numerics}", as_json=as_json)
    chosen = _chosen(source, config, as_json)
    sampling = Sampling(temperature, top_k, top_p or 1e-9)
    answers: list[dict[str, Any]] = []
    with ExitStack() as stack:
        runner = _runner(chosen, _backend(backend, numerics, stack), seq_len, fused)
        text = _tokenizer(tokenizer or chosen.weights, runner, as_json)
        if text is not None:
            runner.pad_token = min(text.stops, default=0)
        runner.check()
        asks_chat = text is not None and text.form is not None if chat is None else chat
        for one in prompt:
            ids = _prompt_tokens(one, text, asks_chat, as_json)
            answers.append(_answer(runner, text, one, ids, tokens, sampling, seed, as_json))
    summary = _summary(runner, chosen, numerics, answers)
    if not emit({**summary, "answers": answers}, as_json):
        console.print(_footer(summary), markup=False, soft_wrap=True)


def layer_command(
    peer_python: Annotated[Path | None, typer.Option(help="An interpreter with torch, if this one has none.")] = None,
    model: Annotated[str, typer.Option(help="A published model of the Llama topology.")] = "llama-3.2-1b",
    seq_len: Annotated[int, typer.Option(min=64, help="Tokens of the prompt.")] = 2048,
    repeats: Annotated[int, typer.Option(min=1, max=20, help="Rounds, peers taking turns; the best counts.")] = 2,
    leaves: Annotated[bool, typer.Option("--leaves", help="A kernel a dispatch instead of fused ELFs.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """One layer of prefill on the emulator beside the same layer in torch's f32, both on one thread.

    Target: Llama-3.2-1B's layer at 2048 tokens takes at most 4 times as long. Weights are in place on both sides; what
    making and binding them took is in the first call, told beside.
    """
    from mcp_server.config import kernels_folder
    from npu_tools.bench.layer import TARGET, measure_layer
    from npu_tools.bench.speed import NoPeer

    measured = measure_layer(
        peer_python, model, seq_len, kernels=kernels_folder(), fused=not leaves, repeats=repeats
    )  # fmt: skip
    if isinstance(measured, NoPeer):
        fail(measured.message, as_json=as_json)
    ok = measured.ratio <= TARGET
    target = {"what": f"{model} layer at {seq_len}", "figure": f"{measured.ratio:.2f}x torch", "target": f"<= {TARGET:g}x", "ok": ok}  # fmt: skip
    if not emit(measured.as_dict() | {"targets": [target]}, as_json):
        table = columns("layer", "emulator s", "torch s", "ratio", "of processor s", "first call s")
        ours, theirs = (min(column) for column in zip(*measured.rounds, strict=True))
        table.add_row(
            f"{model} at {seq_len}", f"{ours:.2f}", f"{theirs:.2f}", f"{measured.ratio:.2f}",
            f"{measured.processor_ratio:.2f}", f"{measured.first_s:.1f}",
        )  # fmt: skip
        console.print(table)
        console.print("by kernel, s: " + ", ".join(f"{name} {took}" for name, took in measured.steps.items()))
        console.print(f"target {target['target']}: " + ("[green]holds[/]" if ok else "[red]missed[/]"))
    if not ok:
        raise typer.Exit(1)


def _backend(name: str, numerics: Literal["faithful", "f32"], stack: ExitStack) -> Any:
    """The backend, closed with the stack."""
    from mcp_server.config import Config

    if name == "emulator":
        from npu_tools.backends import EmulatorBackend

        return EmulatorBackend(numerics=numerics)
    from npu_tools.backends.xrt import Toolchain, XrtBackend

    config = Config.from_environment()
    toolchain = Toolchain.model_validate(dict(config.toolchain))
    return stack.enter_context(XrtBackend(toolchain, cache=config.home / "artefacts"))


def _chosen(source: str, config: Path | None, as_json: bool) -> Chosen:
    from mcp_server.config import kernels_folder
    from npu_tools.errors import UnusableInput
    from npu_tools.models import find_config

    shipped = kernels_folder()
    folder = Path(source).expanduser()
    if (folder / "ledger.jsonl").is_file():
        return _deployed(folder, shipped)
    if source.startswith("random:") and config is None:
        fail("random:SEED needs --config FILE: the sizes to make weights for", as_json=as_json)
    try:
        found = find_config(config if config is not None else source)
    except UnusableInput as error:
        fail(str(error), as_json=as_json)
    if folder.suffix == ".json" and folder.is_file():
        beside = folder.parent
        if not any(beside.glob("*.safetensors")):
            fail(f"no weights beside {source}; generate random:7 --config {source} makes some up", as_json=as_json)
        source = str(beside)
    return Chosen(found, source, shipped, 256, True, {})


def _deployed(folder: Path, shipped: Path) -> Chosen:
    """The deployment of a workspace, with its settings, its changed recipes and the merges it kept."""
    from npu_tools.deployment.ledger import Ledger
    from npu_tools.deployment.state import State
    from npu_tools.deployment.workspace import Workspace, read_json
    from npu_tools.errors import UnusableInput

    workspace = Workspace(folder)
    state = State.of(Ledger.open(workspace.ledger).entries())
    if state.opened is None:
        raise UnusableInput(f"no deployment was opened in {folder}; 'herdbook deploy MODEL --workspace {folder}' does")
    kept = {number for number, steps in state.kept.items() if steps.get("merge")}
    fused: Fused = True if {4, 5} <= kept else "prefill" if 4 in kept else "decode" if 5 in kept else False
    head = state.head
    return Chosen(
        read_json(workspace.config), str(head["weights"]), workspace.kernels(shipped), int(head["seq_len"]), fused,
        {name: chosen for name, chosen in state.settings.items() if ":" not in name},
    )  # fmt: skip


def _runner(chosen: Chosen, backend: Any, seq_len: int, fused: bool | None) -> Runner:
    from npu_tools.architectures import read_config
    from npu_tools.errors import UnusableInput
    from npu_tools.findings import Finding
    from npu_tools.models import open_weights
    from npu_tools.models.runner import Runner

    dims = read_config(chosen.config)
    if isinstance(dims, Finding):
        raise UnusableInput(f"{dims.message}; {dims.remedy}")
    return Runner(
        dims, open_weights(chosen.weights, chosen.config), [chosen.kernels], backend, seq_len or chosen.seq_len,
        fused=chosen.fused if fused is None else fused, settings=chosen.settings,
    )  # fmt: skip


def _tokenizer(source: str, runner: Runner, as_json: bool) -> ModelTokenizer | None:
    """The model's tokenizer; None for made-up weights, whose prompts are token numbers."""
    from npu_tools.models.tokenizer import open_tokenizer

    if source.startswith("random:"):
        return None
    found = open_tokenizer(source)
    if found.size > runner.dims.vocab:
        fail(
            f"the tokenizer has {found.size} tokens and the model {runner.dims.vocab}: it is another model's",
            as_json=as_json,
        )
    return found


def _prompt_tokens(prompt: str, text: ModelTokenizer | None, chat: bool, as_json: bool) -> list[int]:
    if text is not None:
        return text.prompt(prompt, chat=chat)
    pieces = prompt.replace(",", " ").split()
    if not pieces or not all(piece.isdecimal() for piece in pieces):
        fail("made-up weights have no tokenizer: give --prompt as token numbers, as in '1 17 4'", as_json=as_json)
    return [int(piece) for piece in pieces]


def _answer(
    runner: Runner, text: ModelTokenizer | None, prompt: str, ids: list[int], count: int, sampling: Any, seed: int,
    as_json: bool,
) -> dict[str, Any]:  # fmt: skip
    """One answer, shown as it comes."""
    from npu_tools.models.generate import generate

    started, made, shown = time.monotonic(), list[int](), ""
    prefill_s = 0.0
    if not as_json:
        console.print(f"> {prompt}", style="bold", markup=False)
    for token, _ in generate(runner, ids, count, sampling=sampling, seed=seed, stops=text.stops if text else ()):
        prefill_s = prefill_s or time.monotonic() - started
        made.append(token)
        whole = text.text(made) if text else " ".join(map(str, made))
        if not as_json and not whole.endswith("\ufffd"):
            sys.stdout.write(whole[len(shown) :])
            sys.stdout.flush()
            shown = whole
    answer = text.text(made) if text else " ".join(map(str, made))
    if not as_json:
        sys.stdout.write(answer[len(shown) :] + "\n\n")
        sys.stdout.flush()
    wall_s = time.monotonic() - started
    return {
        "prompt": prompt, "prompt_tokens": len(ids), "text": answer, "tokens": made,
        "stopped": bool(text and made and made[-1] in text.stops), "prefill_s": round(prefill_s, 3),
        "decode_s_per_token": round((wall_s - prefill_s) / max(1, len(made) - 1), 3), "wall_s": round(wall_s, 3),
    }  # fmt: skip


def _summary(
    runner: Runner, chosen: Chosen, numerics: str, answers: list[dict[str, Any]]
) -> dict[str, Any]:  # fmt: skip
    on = sorted({spent.ran_on for spent in runner.spent.values()} - {"host"})
    return {
        "ran_on": on, "numerics": numerics, "model": runner.dims.name, "weights": chosen.weights,
        "seq_len": runner.plan.seq_len, "fused": runner.plan.fused,
        "dispatches_per_layer": {
            "prefill": sum(step.where == "npu" for step in runner.plan.prefill),
            "decode": sum(step.where == "npu" for step in runner.plan.decode),
        },
        "on_host": sorted({f"{spent.phase}/{spent.step}" for spent in runner.spent.values() if spent.where == "host"}),
        "runs": sum(spent.runs for spent in runner.spent.values() if spent.where == "npu"),
        "modelled_us": {phase: runner.modelled_us(phase) for phase in ("prefill", "decode", "head")},
        "tokens": sum(len(answer["tokens"]) for answer in answers),
        "wall_s": round(sum(answer["wall_s"] for answer in answers), 3),
    }  # fmt: skip


def _footer(summary: dict[str, Any]) -> str:
    modelled = summary["modelled_us"]
    told = ""
    if all(modelled.values()):
        token_ms = (modelled["decode"] + modelled["head"]) / 1000
        told = f" Kernels on an NPU, modelled: prompt {modelled['prefill'] / 1e6:.3f} s, token {token_ms:.1f} ms."
    each = summary["dispatches_per_layer"]
    numerics = f"{summary['numerics']} numerics; " if summary["ran_on"] == ["emulator"] else ""
    return (
        f"{summary['tokens']} tokens in {summary['wall_s']:.1f} s by {summary['runs']} kernel runs on the "
        f"{' and '.join(summary['ran_on'])} ({numerics}{each['prefill']} dispatches a layer for a "
        f"prompt of up to {summary['seq_len']} tokens, {each['decode']} for a token). On the host: "
        f"{', '.join(summary['on_host'])}, the embedding.{told}"
    )
