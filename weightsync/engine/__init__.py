"""Engines: how verified weights get into running ones, and how it is proven that they did. `api` is the contract."""
