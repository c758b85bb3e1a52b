"""`weightsync rl`: the table of the loop's verbs."""

from importlib import import_module

import typer

VERBS = ("run", "status", "replay", "eval", "hub", "train", "work")

HELP = """The reinforcement-learning loop that everything else serves.

\b
  1. Train a small policy to sort digits: trainer, hub and workers in two regions, each a process
       weightsync rl run --store file:///data/store --run sort --home ./sort
\b
  2. Do a step again from its record, and compare every number
       weightsync rl replay run/records/step-00000012.safetensors --checkpoints run/checkpoints
  3. What is a checkpoint worth?
       weightsync rl eval ./step-7 --environment sort
"""


def build() -> typer.Typer:
    """All verbs of the loop; their modules are `cli/rl_VERB.py`."""
    group = typer.Typer(name="rl", help=HELP, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
    for name in VERBS:
        group.command(name)(getattr(import_module(f"weightsync.cli.rl_{name}"), name))
    return group
