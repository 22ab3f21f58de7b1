"""What the host does around the LM head: cut the weight into partitions, fill the last with zeros, join the logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def arrange(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"x", "weight_0" …}: views of the weight where a partition is whole."""
    rows, emb = int(settings["n_part"]), shape["emb"]
    made = {name: tensors[name] for name in ("x",) if name in tensors}
    if "weight" not in tensors:
        return made
    for index in range(int(settings["n_partitions"])):
        part = tensors["weight"][index * rows : (index + 1) * rows]
        if len(part) < rows:
            part = np.concatenate([part, np.zeros((rows - len(part), emb), part.dtype)])
        made[f"weight_{index}"] = part
    return made


def collect(arguments: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"logits"} of the vocabulary alone: the padding's zeros would win an argmax over negative logits."""
    parts = [arguments[f"logits_{index}"] for index in range(int(settings["n_partitions"]))]
    return {"logits": np.concatenate(parts)[: shape["vocab"]]}
