"""The fit of coefficients to measured runs: which readings are used, the priors, the machines,
and the solver.
"""
