"""`weightsync rl train`: the trainer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weightsync.cli.channels import me
from weightsync.cli.context import Context
from weightsync.cli.options import CACHE, KEY, RUN, STORE, TRUST, verb

if TYPE_CHECKING:
    from weightsync.rl.trainer import Done


@verb(STORE, RUN, CACHE, TRUST, KEY)
def train(
    context: Context,
    *,
    settings: Annotated[Path | None, typer.Option("--settings", metavar="FILE", help="The run's TOML file.")] = None,
    home: Annotated[Path, typer.Option("--home", metavar="DIR", help="The trainer's checkpoints and records.")],
    hub: Annotated[str, typer.Option("--hub", metavar="HOST:PORT", help="Where the hub is.")] = "127.0.0.1:7500",
) -> None:
    """Takes groups, learns, publishes; goes on from its last checkpoint.

    Examples:
      1. On the trainer's machine
           weightsync rl train --store s3://bucket/models --run sort --home ./trainer --hub 10.0.0.5:7500
    """
    from weightsync.cli.rl_parts import needs_the_loop

    with needs_the_loop():
        from weightsync.rl.journal import Journal, read_journal
        from weightsync.rl.service import LoopClient
        from weightsync.rl.settings import read_settings
        from weightsync.rl.threads import use_one_thread
        from weightsync.rl.trainer import Trainer

    use_one_thread()
    journal = Journal(home / "trainer.jsonl")
    known = {row.get("step") for row in read_journal(home / "trainer.jsonl")}

    def told(done: "Done") -> None:
        if done.again and done.step.step in known:
            return
        published = done.published
        journal.write(
            step=done.step.step,
            version=done.version,
            sent_bytes=published.total_bytes,
            full_bytes=published.checkpoint_bytes,
            changed=published.changed_fraction,
            waited_s=done.waited_s,
            learned_s=done.learned_s,
            published_s=done.published_s,
            tasks=[group.task.number for group in done.step.groups],
            metrics=dict(done.step.metrics),
        )
        reward = done.step.metrics.get("reward", 0.0)
        sentence = f"step {done.step.step}: version {done.version}, reward {reward:.3f}"
        context.out.event("step", sentence, step=done.step.step, version=done.version, reward=reward)

    client = LoopClient(hub)
    with context.publisher(who=me(), model="", single_writer=False) as publisher:
        trainer = Trainer(read_settings(settings), client, publisher, home)
        version = trainer.run(told)
    client.close()
    context.out.event("done", f"done: version {version}", version=version)
