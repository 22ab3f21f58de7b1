"""Tokens after a prompt, by a runner: greedily, or drawn from a seed.

for token in generate(runner, tokens, 32, stops=tokenizer.stops): ...
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.models.host import Sampling
from npu_tools.models.runner import Runner

GREEDY = Sampling()


@dataclass(slots=True)
class Generated:
    """What `generated` collected: the tokens, and the logits each was chosen from [steps, vocab]."""

    tokens: list[int] = field(default_factory=list[int])
    logits: list[NDArray[Any]] = field(default_factory=list["NDArray[Any]"])


def generate(
    runner: Runner,
    prompt: Sequence[int],
    count: int,
    *,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    stops: Collection[int] = (),
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Up to `count` tokens, each with the logits it was chosen from; a stop token is given and ends it.

    Raises:
        UnusableInput: a prompt the runner does not take.
        KernelFailed: a kernel was refused or its run failed.
    """
    rng = np.random.default_rng(seed)
    logits = runner.prefill(prompt).logits
    for number in range(count):
        token = sampling.choose(logits, rng)
        yield token, logits
        if token in stops or number == count - 1:
            return
        logits = runner.decode(token)


def generated(runner: Runner, prompt: Sequence[int], count: int, **options: Any) -> Generated:
    """All of `generate` at once; for the token gate leave `stops` empty, so that there are `count` steps."""
    found = Generated()
    for token, logits in generate(runner, prompt, count, **options):
        found.tokens.append(token)
        found.logits.append(logits)
    return found
