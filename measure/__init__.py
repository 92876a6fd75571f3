"""Measures what the planner predicts: replays of allocation events now, traces and real runs on top of them.

The instrument never sees the prediction: of ``planner`` it imports only the shared nouns and the readers
(``units``, ``errors``, ``domain``, ``catalog``, ``records``, ``configs``, ``intake``).
"""
