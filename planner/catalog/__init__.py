"""Data files -> nouns: model, GPU, stack and price entries under ``data/``, read strictly; and
``config.json`` -> model.
"""
