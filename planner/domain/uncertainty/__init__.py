"""Coefficients, their priors, and intervals."""
