"""Seconds in which completions are generated, before they are trained on."""

from __future__ import annotations

from dataclasses import replace

from planner.arrays import maximum, minimum
from planner.domain.recipes.recipe import DTYPE_BYTES, Number
from planner.throughput.counted import Pass
from planner.throughput.terms import kernel_seconds, pass_seconds
from planner.throughput.time_inputs import TimedJob

# Accesses of each cached byte for one more token: Transformers' cache is read, written anew,
# and read by attention.
_COPIED_ACCESSES, _KEPT_ACCESSES = 3, 1


def generation_seconds(job: TimedJob) -> Number:
    """Completions of all micro-batches of one optimizer step, each of its full length; seconds.

    Formula: generations per step x (prompts in one pass + completion tokens x one more token of each
    sequence).  A pass takes its kernels, or the host's time to issue its operators if that is longer; vLLM
    issues recorded graphs.  One more token reads all weights, and the cache of prompt and half a completion.
    Source: as :mod:`planner.throughput.evaluation`; transformers 5.23 cache_utils.py DynamicLayer.update.
    Ignored: sequences that end early, sampling, rewards, synchronising weights with vLLM, its speculation and
    its prefix cache; generation on other cards (``vllm-server``), whose speed nobody gave.
    """
    recipe, rollout = job.recipe, job.recipe.rollout
    if rollout is None or rollout.generator == "vllm-server":
        return 0.0
    completion = minimum(rollout.completion_tokens, recipe.batch.seq_len - 1)
    prompt = recipe.batch.seq_len - completion
    rows = recipe.batch.rows * recipe.generation_micro_steps
    cached = rows * (prompt + completion / 2) * cache_bytes_per_token(job)
    own = rollout.generator == "transformers"
    reread = cached * (_COPIED_ACCESSES if own else _KEPT_ACCESSES)
    token = _pass_seconds(job, "token", rows, 1) + reread / job.rates.memory_bytes_per_s
    first = _pass_seconds(job, "prompts", rows * prompt, prompt)
    return recipe.generations_per_step * (first + completion * token)


def _pass_seconds(job: TimedJob, passes: Pass, tokens: Number, length: Number) -> Number:
    """Kernels of one pass over ``tokens`` of sequences of ``length``, or the time to issue its operators."""
    rollout, real = job.recipe.rollout, tokens * job.micro.real / job.micro.computed
    micro = replace(job.micro, real=real, computed=tokens, length=length, spread=0.0)
    found = pass_seconds(replace(job, micro=micro), passes)
    if rollout is not None and rollout.generator == "transformers":
        return maximum(kernel_seconds(found), found["launches"] * job.coefficients.launch_s)
    found.pop("weight_casts", None)
    return kernel_seconds(found)


def cache_bytes_per_token(job: TimedJob) -> Number:
    """Keys and values of one token in all layers.

    Formula: layers x key heads x (key features + value features) x bytes of the compute dtype.
    Source: transformers 5.23 cache_utils.py DynamicLayer.  Ignored: windows,
    which cache no more than themselves.
    """
    width = DTYPE_BYTES[job.recipe.numerics.compute_dtype]
    groups = job.scenario.model.groups
    heads = ((group.count, group.block.attention) for group in groups)
    return width * sum(
        count * each.n_kv_heads * (each.head_dim + each.value_head_dim) for count, each in heads
    )
