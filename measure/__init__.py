"""Measures what the planner predicts: real runs and dry runs of a training step.

The instrument never sees the prediction: of ``planner`` it imports only the shared nouns and the readers
(``units``, ``errors``, ``domain``, ``catalog``, ``records``, ``configs``, ``intake``).
"""
