"""Recipes searched for: the choices of a space, each tried, and the best or the largest that fit."""
