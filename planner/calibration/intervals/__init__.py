"""Intervals from held-out errors, and how often they hold."""
