"""Numbers as people read them."""

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size(nbytes: float) -> str:
    """Bytes, decimal units, three digits: `1.23 MB`."""
    value, unit = float(nbytes), _UNITS[0]
    for unit in _UNITS:
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 999.5 else f"{value:.3g} {unit}"


def count(number: int, noun: str, plural: str = "s") -> str:
    """`1 version`, `2 versions`."""
    return f"{number} {noun}{'' if number == 1 else plural}"


def percent(part: int, whole: int) -> str:
    """A share, two digits after the point."""
    return f"{100 * part / whole:.2f} %" if whole else "-"


def ratio(whole: int, part: int) -> str:
    """How many times smaller `part` is: `205x`."""
    if not part:
        return "-"
    value = whole / part
    return f"{value:.0f}x" if value >= 100 else f"{value:.1f}x"


def seconds(value: float) -> str:
    """A short time: `12 ms`, `3.4 s`."""
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def age(past_s: float) -> str:
    """How long ago: `12 s`, `5 min`, `3 h`, `2 d`."""
    for limit, unit, divisor in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if past_s < limit:
            return f"{max(0, past_s) / divisor:.0f} {unit}"
    return f"{past_s / 86_400:.0f} d"
