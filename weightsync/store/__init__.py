"""Immutable objects behind one Protocol: a directory, an S3 bucket, or memory with faults.

`api` holds the Protocol, `open` picks a backend by URL, `settle` makes a create certain, `probe` finds out which conditional writes
a server really honours, `retry` says what is worth trying again.
"""
