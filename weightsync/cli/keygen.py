"""`weightsync keygen`: a key that signs."""

from pathlib import Path
from typing import Annotated

import typer

from weightsync.cli.context import Context
from weightsync.cli.options import verb


@verb()
def keygen(
    context: Context,
    *,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="A new file for the signing key. Nothing is ever overwritten.")],
    role: Annotated[
        str, typer.Option("--role", metavar="ROLE", help="publisher, operator or freshness: where the line goes.")
    ] = "publisher",
) -> None:
    """Makes a signing key and prints its public half.

    The file goes to who signs (--key), readable for its owner only; the printed line goes into the file of trusted keys of everybody else
    (--trusted-keys). One key may stand under several roles.

    Examples:
      1. The publisher's key, and the first line of everybody's trusted keys
           weightsync keygen --out publisher.key > trusted.toml
      2. Another one for operators
           weightsync keygen --out operator.key --role operator >> trusted.toml
    """
    from weightsync.errors import Invalid
    from weightsync.store.oserrors import named_errors
    from weightsync.trust import Role, SigningKey

    if role not in {known.value for known in Role}:
        raise Invalid(f"{role!r} is no role", remedy=f"take one of {', '.join(known.value for known in Role)}")
    with named_errors(f"writing {str(out)!r}"):
        public = SigningKey.create(out).public
    context.out.line(f'{role} = ["{public.raw.hex()}"]')
    context.out.note(f"key {public.name} is in {out}: give it with --key, and keep it secret")
    context.out.document({"name": public.name, "public": public.raw.hex(), "role": role, "out": str(out)})
