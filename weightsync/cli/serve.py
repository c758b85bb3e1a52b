"""`weightsync serve`: the control plane."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weightsync.cli.context import Context
from weightsync.cli.options import LOG_FORMAT, METRICS, RUN, STORE, TRUST, verb
from weightsync.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from weightsync.catalog import Catalog
    from weightsync.control.access import Gate
    from weightsync.control.server import ControlServer
    from weightsync.control.tls import ServerTls

DEFAULT_LISTEN = "127.0.0.1:7443"
NOBODY = "nobody"

File = Path | None


def _file(flag: str, text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        flag, metavar="FILE", help=text, envvar=f"WEIGHTSYNC_{flag.removeprefix('--').upper().replace('-', '_')}"
    )
    return option


@verb(STORE, RUN, TRUST, METRICS, LOG_FORMAT)
def serve(
    context: Context,
    *,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen; port 0: any free one.", envvar="WEIGHTSYNC_LISTEN")
    ] = DEFAULT_LISTEN,
    tls_cert: Annotated[File, _file("--tls-cert", "The server's certificate chain, PEM.")] = None,
    tls_key: Annotated[File, _file("--tls-key", "Its key, PEM.")] = None,
    client_ca: Annotated[File, _file("--client-ca", "Callers must show a certificate of this CA: O is the role, CN the name.")] = None,
    tokens: Annotated[File, _file("--tokens", "TOML file of bearer tokens and their roles; read again when it changes.")] = None,
    anonymous: Annotated[
        str | None,
        typer.Option(
            "--anonymous",
            metavar="ROLE",
            help="Role of callers without a credential: nobody, reader, subscriber, publisher or operator. "
            "Default: operator on a loopback address without --tokens and --client-ca, else nobody.",
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve in plaintext where others can listen in.")] = False,
    reflection: Annotated[bool, typer.Option("--reflection", help="Describe the services to tools such as grpcurl.")] = False,
    poll: Annotated[float, typer.Option("--poll", metavar="SECONDS", min=0.05, help="Look for news this often.")] = 2.0,
) -> None:
    """Serves the runs of a store over gRPC.

    To subscribers, publishers and operators. It keeps nothing that the store does not hold: stop it, start another one, or run
    several. Without it, everybody polls the store.

    With --metrics it shows the runs that it is asked about, and the one that --run names, as metrics.

    SIGTERM and Ctrl-C drain: health says NOT_SERVING, and all who watch are told where to go on.

    Examples:
      1. On this machine
           weightsync serve --store s3://bucket/models
      2. For others, with tokens
           weightsync serve --store s3://bucket/models --listen 0.0.0.0:7443 --tls-cert tls.crt --tls-key tls.key --tokens tokens.toml
      3. With client certificates instead
           weightsync serve --store s3://bucket/models --listen 0.0.0.0:7443 --tls-cert tls.crt --tls-key tls.key --client-ca ca.crt
    """
    try:
        import weightsync.control.server  # noqa: F401
    except ModuleNotFoundError as error:
        raise Unsupported(f"the control plane needs {error.name}", remedy="pip install 'weightsync[control]'") from None
    tls = _tls(tls_cert, tls_key, client_ca)
    gate = _gate(listen, tokens, anonymous, certificates=client_ca is not None)
    _run(context, lambda: _server(context, listen, gate, tls, insecure=insecure, reflection=reflection, poll_s=poll))


def _run(context: Context, make: "Callable[[], ControlServer]") -> None:
    from weightsync.daemon.serve import ServingLoop
    from weightsync.telemetry import names

    def listening(address: str) -> None:
        context.out.event("listening", f"listening on {address}", address=address, store=context.store.url)

    runs = [context.settings.run] if context.settings.run else []
    with context.process("server", names.SERVER) as process:
        loop = ServingLoop(process, make, lambda run: _catalog(context, run), runs=runs, on_listening=listening, limits=context.thresholds)
        loop.run()
    context.out.event("stopped", "stopped")


def _catalog(context: Context, run: str) -> "Catalog":
    from weightsync.catalog import Catalog
    from weightsync.trust import load_policy

    # It checks moves, and can make none.
    return Catalog(context.store, run, policy=load_policy(context.settings.trusted_keys, None))


def _server(
    context: Context, listen: str, gate: "Gate", tls: "ServerTls | None", *, insecure: bool, reflection: bool, poll_s: float
) -> "ControlServer":
    from weightsync.control.server import ControlServer
    from weightsync.control.settings import Pace, ServerSettings

    return ControlServer(
        lambda run: _catalog(context, run),
        gate,
        listen=listen,
        tls=tls,
        insecure=insecure,
        settings=ServerSettings(pace=Pace(poll_s=poll_s), reflection=reflection),
    )


def _tls(certificate: File, key: File, client_ca: File) -> "ServerTls | None":
    from weightsync.control.tls import ServerTls

    if certificate is None or key is None:
        if (certificate, key, client_ca) != (None, None, None):
            raise Invalid("TLS needs a certificate and its key", remedy="give --tls-cert and --tls-key")
        return None
    return ServerTls(certificate, key, client_ca)


def _gate(listen: str, tokens: File, anonymous: str | None, *, certificates: bool) -> "Gate":
    from weightsync.control.access import Gate, Role, Tokens
    from weightsync.control.server import is_loopback

    known = tokens is not None or certificates
    if anonymous is None:
        if not known and not is_loopback(listen):
            raise Invalid(
                f"{listen} can be reached from elsewhere, and nobody would have to say who they are",
                remedy="give --tokens or --client-ca, or say with --anonymous what everybody may do",
            )
        anonymous = NOBODY if known else Role.OPERATOR.value
    roles = {role.value: role for role in Role}
    if anonymous not in (*roles, NOBODY):
        raise Invalid(f"{anonymous!r} is no role", remedy=f"take one of {', '.join((NOBODY, *roles))}")
    return Gate(tokens=Tokens(tokens) if tokens else None, certificates=certificates, anonymous=roles.get(anonymous))
