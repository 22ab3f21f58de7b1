"""What the oracle is asked, and where weights come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

Token = Annotated[int, Field(ge=0)]


class WeightsSource(Protocol):
    """What the oracle needs of `npu_tools.models.weights`: a tensor by its Hugging Face name."""

    def tensor(self, name: str) -> NDArray[Any]:
        """One tensor, float32 or bf16, in Hugging Face's orientation (projections [out, in])."""
        ...


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")
    config: dict[str, Any]
    """A Hugging Face config.json."""
    weights: str
    """As `open_weights` takes it: a folder, a .gguf file, random:SEED, a hub id."""
    folder: str
    """Where arrays go."""
    threads: int = Field(default=0, ge=0, le=256)
    """Of torch; 0 leaves its own choice."""


class StagesRequest(_Request):
    """The FP32 decomposition of one prompt, its stage arrays streamed to `folder`, compared with Hugging Face."""

    kind: Literal["stages"] = "stages"
    tokens: list[Token] = Field(min_length=1)
    length: int | None = Field(default=None, ge=1)
    """Real tokens, the rest being padding; logits are those of position length - 1. All by default."""
    depth: int | None = Field(default=None, ge=1)
    """Stop after so many layers; final norm and logits then follow from there, on both sides."""
    keep: list[str] | None = None
    """Stages whose arrays are written; every one by default, [] for none."""
    compare: bool = True
    """Whether Hugging Face's own layers run beside; without, neither torch nor transformers is needed."""


class GreedyRequest(_Request):
    """Greedy decoding by Hugging Face: tokens, the five best ids and the logits of every step, for the token gate."""

    kind: Literal["greedy"] = "greedy"
    prompts: list[list[Token]] = Field(min_length=1)
    steps: int = Field(default=32, ge=1, le=4096)
    dtype: Literal["bfloat16", "float32"] = "bfloat16"


Request = StagesRequest | GreedyRequest
