"""Tests, and ``tests.accuracy``, whose modules are run by their names."""
