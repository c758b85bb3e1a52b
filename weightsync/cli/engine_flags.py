"""What `subscribe` is told about engines, as settings of a swap."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weightsync.cli.durations import milliseconds
from weightsync.errors import Invalid

if TYPE_CHECKING:
    from weightsync.engine.swap import SwapSettings

BEFORE_RESUME = "before-resume"
WHILE_SERVING = "while-serving"


def engine_urls(flags: Sequence[str] | None, setting: str | None) -> tuple[str, ...]:
    """The engines that flags name, else the setting. Raises `Invalid` for what is no URL of an engine."""
    from weightsync.engine.open import kind_of

    urls = tuple(url.strip() for url in (flags or (setting or "").split(",")) if url.strip())
    for url in urls:
        kind_of(url)
    return urls


def kinds(urls: Sequence[str]) -> str:
    """What is fed, for the fleet: the kinds of the engines."""
    from weightsync.engine.open import kind_of

    return "+".join(sorted({kind_of(url) for url in urls}))


def swap_settings(urls: Sequence[str], mode: str | None, prove: str | None, pause_limit: str | None) -> "SwapSettings | None":
    """None without engines. Raises `Invalid` for flags that cannot be, or that need an engine."""
    if not urls:
        if mode or prove or pause_limit:
            raise Invalid("--mode, --prove and --pause-limit are for engines", remedy="give --engine URL too")
        return None
    from weightsync.engine.api import Mode
    from weightsync.engine.swap import SwapSettings

    given = SwapSettings()
    modes = {one.value: one for one in Mode}
    if mode is not None and mode not in modes:
        raise Invalid(f"--mode {mode!r} does not exist", remedy=f"choose one of {', '.join(modes)}")
    if prove not in (None, BEFORE_RESUME, WHILE_SERVING):
        raise Invalid(f"--prove {prove!r} does not exist", remedy=f"choose {BEFORE_RESUME} or {WHILE_SERVING}")
    limit_s = given.pause_limit_s if pause_limit is None else milliseconds(pause_limit, "--pause-limit") / 1000
    if limit_s <= 0:
        raise Invalid("--pause-limit must be longer than nothing", remedy="give 30s, say")
    return SwapSettings(mode=modes[mode] if mode else given.mode, prove_before_resume=prove == BEFORE_RESUME, pause_limit_s=limit_s)
