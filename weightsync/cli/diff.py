"""`weightsync diff`: what changed between two versions, or between two checkpoints on disk."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightsync.cli import words
from weightsync.cli.context import Context
from weightsync.cli.options import RUN, STORE, TRUST, verb
from weightsync.errors import Invalid

if TYPE_CHECKING:
    from weightsync.cli.difference import Difference, Side

_SIDE = "A version number, a channel, or a checkpoint on disk (a path with a slash)."


@verb(STORE, RUN, TRUST)
def diff(
    context: Context,
    *,
    old: Annotated[str, typer.Argument(metavar="OLD", help=_SIDE)],
    new: Annotated[str, typer.Argument(metavar="NEW", help=_SIDE)],
    top: Annotated[int, typer.Option("--top", metavar="N", min=0, help="Show the N tensors that changed most; 0: all.")] = 20,
) -> None:
    """Compares two versions, tensor by tensor.

    Shows the share of changed values of each tensor, and how far they moved in ULP (representable values between old and new).
    Two versions are rebuilt and verified in scratch space first, so that needs room for both.

    Examples:
      1. What one training step changed
           weightsync diff 6 7 --store file:///data/store --run tuning
      2. Two checkpoint directories
           weightsync diff ./step-6 ./step-7
      3. Is the newest version what the trainer wrote?
           weightsync diff latest ./step-7 --store file:///data/store --run tuning
    """
    from weightsync.cli.difference import compare, total
    from weightsync.format.layout import describe_difference

    with ExitStack() as stack:
        before, after = _side(context, stack, old), _side(context, stack, new)
        layout_change = describe_difference(before.layout, after.layout)
        found = list(compare(before, after))
    whole = total(found)
    context.out.document(
        {
            "old": old,
            "new": new,
            "identical": not layout_change and not whole.changed,
            "layout_change": layout_change,
            "total": whole.to_json() | {"changed": whole.changed / whole.lanes if whole.lanes else 0.0},
            "tensors": [one.to_json() for one in found],
        }
    )
    _print(context, found, whole, layout_change, top)


def _side(context: Context, stack: ExitStack, text: str) -> "Side":
    from weightsync.cli import sides

    if "/" in text or text.endswith(".safetensors"):
        return stack.enter_context(sides.checkpoint(Path(text)))
    if text in (".", ".."):
        raise Invalid(f"{text!r} is no version", remedy=f"write {text}/ for the directory")
    return stack.enter_context(sides.version(context, text))


def _print(context: Context, found: list["Difference"], whole: "Difference", layout_change: str, top: int) -> None:
    out = context.out
    changed = sorted((one for one in found if one.changed), key=lambda one: one.changed / one.lanes, reverse=True)
    shown = changed[:top] if top else changed
    if layout_change:
        out.line(f"tensors: {layout_change}")
    if shown:
        out.table(("tensor", "dtype", "changed", "lanes", "largest"), [_row(one) for one in [*shown, whole]], left=2)
    if len(shown) < len(changed):
        out.line(f"... and {len(changed) - len(shown)} more that changed less (--top 0 shows all)")
    out.line(f"{len(found) - len(changed)} of {len(found)} tensors are the same")
    if whole.changed:
        out.line()
        out.table(("ULP", "values", "share"), _bins(whole))


def _row(one: "Difference") -> tuple[str, ...]:
    return one.name, one.dtype, words.percent(one.changed, one.lanes), f"{one.lanes:,}", f"{one.largest:,} ULP"


def _bins(whole: "Difference") -> list[tuple[str, ...]]:
    from weightsync.cli.difference import histogram

    counts: dict[str, Any] = histogram(whole.ulps)
    return [(name, f"{count:,}", words.percent(count, whole.changed)) for name, count in counts.items() if count]
