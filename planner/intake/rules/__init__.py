"""Combinations that a library refuses, and why."""
