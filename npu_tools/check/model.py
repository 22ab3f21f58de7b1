"""Check a whole model, from its Hugging Face config.json, at a sequence length: every kernel of every phase.

    report = check_model(json.load(open("config.json")), 2048)
    report.ok, report.findings, [elf.name for elf in report.prefill]

The plan is upstream's (Xilinx/mlir-air programming_examples/llms @ e972f2942): prefill and decode ELFs a layer, the LM
head's partitions, decode attention and the final norm on the CPU. Each launch is checked with the configuration the
registry would choose; then memory, buffers, hardware contexts and what the sequence length demands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from npu_tools.architectures import README, Dimensions, read_config
from npu_tools.check import fused
from npu_tools.check.fused import Elf
from npu_tools.check.kernel import elf_findings
from npu_tools.device import Device
from npu_tools.device import device as find_device
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding

SEQ_STEP = 64
"""Prefill takes whole tiles of 64 tokens (Xilinx/mlir-air llms/llama32_1b/llama32_1b_prefill.py, #1764)."""
FULL_HERD_FROM = 512
"""Tokens from which tile_m 64 fills 8 columns; shorter prompts take fewer."""
MOST_TOKENS = 1 << 20
FLAKY_CONTEXTS = 9
"""Loaded ELFs from which upstream saw context creation fail (llms/smolvla/docs/profile.md)."""
BF16 = 2


@dataclass(frozen=True, slots=True)
class Memory:
    """What the model keeps in DDR, in bytes."""

    weights: int
    kv_cache: int
    largest_buffer: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.activations


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What a check of a model found. `deployable` says nothing refuses it."""

    model: str
    architecture: str
    seq_len: int
    device: str
    parsed: bool
    ok: bool
    findings: tuple[Finding, ...]
    dimensions: Dimensions | None
    prefill: tuple[Elf, ...]
    decode: tuple[Elf, ...]
    lm_head: Elf | None
    memory: Memory | None

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-ready fields; launches by kernel, shape and settings."""
        return {
            "model": self.model,
            "architecture": self.architecture,
            "seq_len": self.seq_len,
            "device": self.device,
            "parsed": self.parsed,
            "ok": self.ok,
            "findings": [finding.as_dict() for finding in self.findings],
            "elfs_a_layer": {
                "prefill": [elf.name for elf in self.prefill],
                "decode": [elf.name for elf in self.decode],
            },
            "plan": {
                phase: [{"elf": elf.name, "launches": [_launch(launch) for launch in elf.launches]} for elf in elfs]
                for phase, elfs in (("prefill", self.prefill), ("decode", self.decode))
            },
            "lm_head": _lm_head(self.lm_head),
            "memory_bytes": None
            if self.memory is None
            else {
                "weights": self.memory.weights,
                "kv_cache": self.memory.kv_cache,
                "activations": self.memory.activations,
                "largest_buffer": self.memory.largest_buffer,
                "total": self.memory.total,
            },
        }


def check_model(
    config: Mapping[str, Any], seq_len: int, device: str | Device = "npu2", *, name: str = "model"
) -> ModelReport:
    """Whether this model deploys at this prompt length, with the plan it would run by.

    Raises:
        UnusableInput: this is no config.json, or the length is no positive number of tokens.
        UnknownDevice: no such device.
    """
    if not 0 < seq_len <= MOST_TOKENS:
        raise UnusableInput(f"seq_len must lie between 1 and {MOST_TOKENS} tokens, not {seq_len}")
    target = device if isinstance(device, Device) else find_device(device)
    model = read_config(config, name=name)
    if isinstance(model, Finding):
        architecture = str((config.get("architectures") or [config.get("model_type")])[0])
        return ModelReport(name, architecture, seq_len, target.name, True, False, (model,), None, (), (), None, None)
    return _planned(model, seq_len, target)


def _planned(model: Dimensions, seq: int, target: Device) -> ModelReport:
    padded = -(-seq // SEQ_STEP) * SEQ_STEP
    prefill = (
        fused.attention_input(model, padded, target),
        fused.attend(model, padded, target),
        *fused.ffn(model, padded, target),
    )
    decode = (fused.attention_input_decode(model, target), *fused.ffn_decode(model, target))
    head = fused.lm_head(model.vocab, model.emb, target)
    memory = _memory(model, seq)
    found = [
        *_sequence(model, seq, target),
        *_output((*prefill, *decode, head), target),
        *_elfs((*prefill, *decode, head), target),
        *_buffers(model, memory, target),
        *_contexts(len(prefill), len(decode), target),
        *_architecture(model),
    ]
    found.sort(key=lambda one: ("error", "warning", "note").index(one.severity))
    ok = all(finding.severity != "error" for finding in found)
    return ModelReport(
        model.name, model.architecture, seq, target.name, True, ok, tuple(found), model, prefill, decode, head, memory
    )


def _elfs(elfs: tuple[Elf, ...], target: Device) -> Iterator[Finding]:
    told: set[tuple[str, str]] = set()
    for elf in elfs:
        for finding in elf_findings(elf, target):
            if finding.severity == "note" and (finding.code, "") in told:
                continue
            if (finding.code, finding.message) in told:
                continue
            told |= {(finding.code, finding.message), (finding.code, "")}
            yield finding


def _sequence(model: Dimensions, seq: int, target: Device) -> Iterator[Finding]:
    if seq % SEQ_STEP:
        longer = -(-seq // SEQ_STEP) * SEQ_STEP
        yield Finding(
            severity="error",
            code="seq_len",
            message=f"seq_len = {seq} is not a multiple of {SEQ_STEP}",
            op="prefill",
            diagnostic=f"seq_len={seq} must be a multiple of {SEQ_STEP} for the fused-cast GEMM (tile_m<=64); "
            f"got remainder {seq % SEQ_STEP}",
            source="Xilinx/mlir-air #1764; programming_examples/llms/llama32_1b/llama32_1b_prefill.py @ e972f2942",
            remedy=f"pad the prompt to {longer} tokens",
        )
    elif seq < FULL_HERD_FROM:
        yield Finding(
            severity="note",
            code="short_prompt",
            message=f"below {FULL_HERD_FROM} tokens a GEMM cannot fill {target.columns} columns with tile_m 64; "
            "the chosen configurations use fewer columns or smaller tiles, and builders that do not return garbage",
            op="prefill",
            source="tonyjie/mlir-air programming_examples/qwen25_1_5b/docs/development_progress/LESSONS.md @ 7267eb8b",
        )
    if model.max_positions and seq > model.max_positions:
        yield Finding(
            severity="warning",
            code="positions",
            message=f"{seq} tokens are more than the model's max_position_embeddings = {model.max_positions}",
            op="prefill",
        )


def _output(elfs: tuple[Elf, ...], target: Device) -> Iterator[Finding]:
    several = [elf.name for elf in elfs if len(elf.launches) > 1]
    if target.compile_target == "npu1" and several:
        yield Finding(
            severity="error",
            code="elf_output",
            message=f"{', '.join(several)} are several launches and so ELFs; npu1 takes no ELF, and as xclbin they mis-run",
            op="compile",
            diagnostic="AirBackendError",
            source="Xilinx/mlir-air python/air/backend/xrt.py @ e972f2942",
            remedy="run on npu2, or each kernel in an xclbin of its own",
        )


def _architecture(model: Dimensions) -> Iterator[Finding]:
    if not model.measured:
        yield Finding(
            severity="warning",
            code="unmeasured",
            message=f"{model.architecture} has the dimensions of a supported family, and nobody upstream ran it",
            source=README,
            certain=False,
        )
    if model.rope_scaling:
        yield Finding(
            severity="note",
            code="rope_scaling",
            message="the bf16 examples' RoPE table ignores rope_scaling; within the first few thousand positions that "
            "passed the gates, beyond it compute the scaled table on the host",
            source="Xilinx/mlir-air programming_examples/llms/llama32_1b/llama32_1b_weights.py @ e972f2942",
        )
    if not model.tied:
        yield Finding(
            severity="note",
            code="untied_lm_head",
            message="the LM head is not tied to the embedding: load its own weights; tying it gives cosine 0.017, no error",
            source="Xilinx/mlir-air #1840",
        )


def _memory(model: Dimensions, seq: int) -> Memory:
    widest = max(model.emb * model.hidden, model.emb * model.q_dim, 16384 * model.emb)
    return Memory(
        weights=BF16 * model.weights,
        kv_cache=BF16 * 2 * model.layers * seq * model.kv_dim,
        largest_buffer=BF16 * max(widest, seq * model.hidden),
        activations=BF16 * seq * (3 * model.hidden + 4 * model.emb + model.q_dim + 2 * model.kv_dim),
    )


def _buffers(model: Dimensions, memory: Memory, target: Device) -> Iterator[Finding]:
    limit = target.limit("buffer_object.offset_bytes")
    if memory.largest_buffer > limit.value:
        yield Finding(
            severity="error",
            code="buffer_bytes",
            message=f"one buffer of {memory.largest_buffer} bytes: a shim BD's offset reaches {limit.value}",
            op="host",
            limit=str(limit),
            source=limit.source,
            remedy="split the buffer so that each part stays below 4 GiB",
        )
    elif memory.weights > limit.value:
        groups = -(-memory.weights // limit.value)
        yield Finding(
            severity="warning",
            code="buffer_bytes",
            message=f"{memory.weights} bytes of weights are more than one buffer can address ({limit.value}): past it "
            "offsets wrap and logits turn NaN",
            op="host",
            limit=str(limit),
            source=limit.source,
            remedy=f"a buffer a matrix, as the bf16 pipeline has it, or at least {groups} groups of layers",
        )


def _contexts(prefill: int, decode: int, target: Device) -> Iterator[Finding]:
    limit = target.limit("driver.contexts")
    loaded = prefill + decode + 1
    if loaded > FLAKY_CONTEXTS:
        over = loaded > limit.value
        yield Finding(
            severity="error" if max(prefill, decode) + 1 > limit.value else "warning",
            code="contexts",
            message=f"{prefill} prefill, {decode} decode and 1 LM-head ELF hold {loaded} hardware contexts; "
            + (f"the driver has {limit.value}" if over else f"upstream saw creation fail from {FLAKY_CONTEXTS} on"),
            op="host",
            diagnostic="DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed (err=-22)",
            limit=str(limit),
            source=limit.source,
            remedy=f"unload the prefill ELFs before decode: {max(prefill, decode) + 1} at a time",
            certain=over,
        )


def _launch(launch: fused.Launch) -> dict[str, Any]:
    return {
        "role": launch.role,
        "kernel": launch.kernel,
        "shape": list(launch.case.shape()),
        "settings": launch.case.settings(),
    }


def _lm_head(elf: Elf | None) -> dict[str, Any] | None:
    if elf is None:
        return None
    rows = elf.launches[0].case.shape()[0]
    return {"partitions": len(elf.launches), "rows": rows, "settings": elf.launches[0].case.settings()}
