"""Synthetic token ids with the planned lengths."""

from __future__ import annotations

from itertools import cycle

import torch

from measure.run.cases.lengths import MicroBatch

_IGNORED_LABEL = -100


def collate(batch: MicroBatch, vocabulary: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """What a padding collator hands over: ids, attention mask and labels, padded on the right; on the CPU."""
    shape = (len(batch.lengths), batch.width_tokens)
    ids = torch.randint(0, vocabulary, shape, generator=generator)
    real = torch.arange(batch.width_tokens)[None, :] < torch.tensor(batch.lengths)[:, None]
    return {
        "input_ids": torch.where(real, ids, 0),
        "attention_mask": real.to(torch.int64),
        "labels": torch.where(real, ids, _IGNORED_LABEL),
    }


class Feed:
    """Micro-batches in their order, again and again."""

    def __init__(self, batches: tuple[MicroBatch, ...], vocabulary: int, seed: int) -> None:
        self._batches = cycle(batches)
        self._vocabulary = vocabulary
        self._generator = torch.Generator().manual_seed(seed)

    def next(self) -> tuple[MicroBatch, dict[str, torch.Tensor]]:
        """The next micro-batch and its tensors."""
        batch = next(self._batches)
        return batch, collate(batch, self._vocabulary, self._generator)
