"""Sizes as people write them."""

from weightsync.errors import Invalid

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "B": 1}


def parse_size(text: str) -> int:
    """`256MB`, `1.5GiB` or `1000` -> bytes; raises `Invalid` for anything else."""
    upper = text.strip().upper()
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if upper.endswith(unit)), "")
    try:
        return int(float(upper.removesuffix(unit)) * _UNITS.get(unit, 1))
    except ValueError:
        raise Invalid(f"{text!r} is not a size", remedy="write for example 256MB or 1GiB") from None
