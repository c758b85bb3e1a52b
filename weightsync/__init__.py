"""Carries model weights from a trainer to inference fleets as lossless deltas, bit for bit."""
