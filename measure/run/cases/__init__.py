"""What is to be measured: a case, its options, its folder, and where it stops to fit."""
