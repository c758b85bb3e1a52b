"""A run's own record: made once, adopted ever after."""

from weightsync.catalog.context import Context
from weightsync.catalog.read import Reader
from weightsync.catalog.signing import sealed
from weightsync.errors import AlreadyExists, Invalid, NotFound
from weightsync.format.operators import Run
from weightsync.trust import Role


def open_run(ctx: Context, reader: Reader, model: str) -> Run:
    """The run, made if it does not exist. Raises `Invalid` when it holds another model; an empty `model` is any."""
    try:
        run = reader.run()
    except NotFound:
        run = _create(ctx, reader, model)
    if model and run.model and model != run.model:
        raise Invalid(f"run {ctx.run!r} holds model {run.model!r}, not {model!r}", remedy="publish it under another --run")
    return run


def _create(ctx: Context, reader: Reader, model: str) -> Run:
    run = Run(ctx.run, ctx.new_id(), model, ctx.now_ms(), ctx.policy.key_names)
    envelope = sealed(ctx, run.to_body, Role.PUBLISHER, lambda e: Run.from_envelope(e, run=ctx.run))
    try:
        ctx.ensure(ctx.keys.run_record, envelope.data)
    except AlreadyExists:  # another process made it at the same time
        return reader.run()
    return run
