"""Flags, TOML files and records -> Scenario, with the origin of every value; shared by both command lines."""
