"""Allocation events of a training step, and their replay through a model of PyTorch's CUDA caching allocator.

``events`` is the common format, ``history`` imports recorded histories, ``settings`` and ``allocator`` are the model and
``replay`` runs a stream of events through it.  None of these needs torch.
"""
