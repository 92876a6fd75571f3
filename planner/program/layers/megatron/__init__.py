"""Layers as Megatron-Core builds them of Transformer Engine's modules."""
