"""PyTorch's CUDA caching allocator as a model: events of allocation, their replay,
and what a replay says. Needs no torch.
"""
