"""Records against predictions: how wrong each one is, and (later) the coefficients that make them less wrong.

``rows`` compares one record with its prediction, ``metrics`` sums comparisons up, ``validate`` does both for whole files.
``budget`` and ``misses`` write the two files under ``data/`` that the tests hold the published rows to.
"""
