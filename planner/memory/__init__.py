"""Bytes: the step program replayed (``replayed_peak``) or read quickly (``quick``),
what lies outside of it, and host RAM.
"""
