"""Measurements of weightsync beside the encodings of other systems. Each module is a command: `python -m benchmarks.NAME --help`."""
