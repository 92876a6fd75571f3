"""The job as its libraries build it, shared by real runs and the dry run.  Imports torch."""
