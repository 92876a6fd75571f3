"""What was given by flags, files and records, before names are looked up."""
