"""The answer of a prediction: sections, the short report, the explanation and the JSON."""
