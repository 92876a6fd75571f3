"""What the command line and Python share: a job, config files or a search answered,
before anything is printed.
"""
