"""Training on completions that the model writes itself: how long they are, who generates them,
how often, and who scores them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from planner.domain.model import ModelSpec

Generator = Literal["transformers", "vllm", "vllm-server"]
"""Who generates: the model in training itself, vLLM on the same cards, or vLLM on others."""
GENERATORS: tuple[Generator, ...] = get_args(Generator)


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """A frozen model on the card that gives each completion one number, or that teaches a student;
    ``load_dtype``: of its weights.
    """

    model: ModelSpec
    load_dtype: Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class Rollout:
    """What a task that generates adds to a recipe.

    ``completion_tokens``: those of ``seq_len`` that are generated; the rest is the prompt.  ``generations``:
    completions of one prompt.  ``micro_steps``: how many micro-batches are generated at once; ``None`` as
    many as an optimizer step takes.  ``iterations``: how often each completion is trained on.
    ``has_reference``: whether the model as it was before is asked.  ``vllm_share``: of the card's memory,
    which vLLM takes beside the training.  ``vllm_gpus``: how many GPUs divide its weights.  ``vllm_sleeps``:
    it gives its share back while the model is trained.
    ``reward``: the model that scores; ``None`` where functions do, which need no card.  ``scores_itself``:
    the policy scores with a second adapter, as large as its own.
    """

    completion_tokens: int
    generations: int
    micro_steps: int | None = None
    iterations: int = 1
    has_reference: bool = False
    generator: Generator = "transformers"
    vllm_share: float = 0.0
    vllm_sleeps: bool = False
    vllm_gpus: int = 1
    reward: FrozenModel | None = None
    scores_itself: bool = False

    def vllm_weight_bytes(self, params: float) -> float:
        """Bytes of vLLM's own 16-bit weights on one GPU.

        Source: vllm config/model.py (dtype ``auto``: that of the checkpoint, and 16 bits for one of fp32).
        """
        return 2 * params / self.vllm_gpus
