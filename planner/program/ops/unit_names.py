"""What units of a batch that is trained on are called in other batches."""

from __future__ import annotations

from planner.program.ops.tensors import Unit

EVALUATED = {
    Unit.TOKENS: Unit.EVAL_TOKENS,
    Unit.SHIFTED_TOKENS: Unit.EVAL_SHIFTED_TOKENS,
    Unit.REAL_TOKENS: Unit.EVAL_REAL_TOKENS,
    Unit.PAIRS: Unit.EVAL_PAIRS,
    Unit.RANK_TOKENS: Unit.EVAL_RANK_TOKENS,
    Unit.PIECE_TOKENS: Unit.EVAL_PIECE_TOKENS,
    Unit.PIECE_LOGITS: Unit.EVAL_PIECE_LOGITS,
    Unit.SINK_PAIRS: Unit.EVAL_SINK_PAIRS,
    Unit.ROWS: Unit.EVAL_ROWS,
    Unit.PATCHES: Unit.EVAL_PATCHES,
    Unit.RANK_PATCHES: Unit.EVAL_RANK_PATCHES,
    Unit.IMAGE_TOKENS: Unit.EVAL_IMAGE_TOKENS,
    Unit.COMPLETION_TOKENS: Unit.EVAL_COMPLETION_TOKENS,
    Unit.ARRIVED_ROWS: Unit.EVAL_ARRIVED_ROWS,
    Unit.EXPERT_ROWS: Unit.EVAL_EXPERT_ROWS,
    Unit.CHUNKS: Unit.EVAL_CHUNKS,
    Unit.CHUNK_TOKENS: Unit.EVAL_CHUNK_TOKENS,
    Unit.CHUNK_SQUARES: Unit.EVAL_CHUNK_SQUARES,
    Unit.CHUNK_ROWS: Unit.EVAL_CHUNK_ROWS,
    Unit.LATER_CHUNK_TOKENS: Unit.EVAL_LATER_CHUNK_TOKENS,
}
"""Units of a batch that is trained on -> those of one that is evaluated."""
PROMPTED = {
    Unit.TOKENS: Unit.PROMPT_TOKENS,
    Unit.PAIRS: Unit.PROMPT_PAIRS,
    Unit.SINK_PAIRS: Unit.PROMPT_PAIRS,
    Unit.LENGTH: Unit.PROMPT_LENGTH,
    Unit.LENGTH_PAIRS: Unit.PROMPT_LENGTH_PAIRS,
    Unit.RANK_TOKENS: Unit.PROMPT_RANK_TOKENS,
    Unit.ROWS: Unit.GENERATED_ROWS,
}
"""Units of a batch that is trained on -> those of the prompts of one that is generated."""
SAMPLED = {
    Unit.TOKENS: Unit.GENERATED_ROWS,
    Unit.PAIRS: Unit.CACHED_TOKENS,
    Unit.SINK_PAIRS: Unit.CACHED_SINK_TOKENS,
    Unit.LENGTH: Unit.ONE,
    Unit.LENGTH_PAIRS: Unit.ONE,
    Unit.RANK_TOKENS: Unit.GENERATED_RANK_ROWS,
    Unit.ROWS: Unit.GENERATED_ROWS,
}
"""The same -> those of one more token of each sequence."""
SCORED = {
    Unit.TOKENS: Unit.SCORED_TOKENS,
    Unit.PAIRS: Unit.SCORED_PAIRS,
    Unit.SINK_PAIRS: Unit.SCORED_SINK_PAIRS,
    Unit.ROWS: Unit.GENERATED_ROWS,
}
"""The same -> those of all sequences that were generated at once, prompts and completions."""
