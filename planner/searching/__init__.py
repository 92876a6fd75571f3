"""Many estimates: grids of scenarios, and what would make one job fit."""
