"""Mixtures of experts, as their code runs them: sorted, each in turn, or every expert."""
