"""Experts that are drawn by chance, weighed by a function of their own (Phi-3.5-MoE).

Source: transformers 5.23 models/phimoe/modeling_phimoe.py PhimoeTopKRouter, sparsemixer,
PhimoeSparseMoeBlock.
Ignored: what drawing saves for each expert and token: masks, random numbers, copies of the scores.
"""

from __future__ import annotations

from planner.program.layers.mixture.experts import experts
from planner.program.layers.mixture.selected_experts import jittered
from planner.program.ops.operators import Operators
from planner.program.ops.tensors import Tensor
from planner.program.view import LayerView
from planner.program.weights.matrices import linear


def sampled_experts(torch: Operators, view: LayerView, x: Tensor) -> Tensor:
    """What the experts add to the stream; their input is multiplied by noise twice, by block and router."""
    mlp = view.block.mlp
    x = jittered(torch, x) if mlp.jitters else x
    rows = torch.reshaped(x)
    rows = jittered(torch, rows) if mlp.jitters else rows
    chooser = next(each for each in view.linears("mlp_in") if each.group == "router")
    scores = torch.softmax(linear(torch, view, chooser, rows))
    return experts(torch, view, rows, torch.chosen(scores, mlp.top_k))
