"""`weightsync serve`: the control plane."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightsync.cli.context import Context
from weightsync.cli.options import LOG_FORMAT, METRICS, POLL, RUN, STORE, TRUST, Shared, verb
from weightsync.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from weightsync.catalog import Catalog
    from weightsync.config import Settings
    from weightsync.control.access import Gate
    from weightsync.control.server import ControlServer
    from weightsync.control.tls import ServerTls

NOBODY = "nobody"


def _flag(name: str, metavar: str, text: str, kind: Any = Path) -> Shared:
    flag = f"--{name.replace('_', '-')}"
    return Shared(name, Annotated[kind | None, typer.Option(flag, metavar=metavar, help=f"{text} [WEIGHTSYNC_{name.upper()}]")])


def _switch(name: str, text: str) -> Shared:
    return Shared(name, Annotated[bool | None, typer.Option(f"--{name}", help=f"{text} [WEIGHTSYNC_{name.upper()}]")])


SERVING = (
    _flag("listen", "HOST:PORT", "Where to listen; port 0: any free one; default 127.0.0.1:7443.", str),
    _flag("tls_cert", "FILE", "The server's certificate chain, PEM; read again when it changes."),
    _flag("tls_key", "FILE", "Its key, PEM."),
    _flag("client_ca", "FILE", "Callers must show a certificate of this CA: O is the role, CN the name."),
    _flag("tokens", "FILE", "TOML file of bearer tokens and their roles; read again when it changes."),
    _flag(
        "anonymous",
        "ROLE",
        "CallerRole of callers without a credential: nobody, reader, subscriber, publisher or operator. "
        "Default: operator on a loopback address without --tokens and --client-ca, else nobody.",
        str,
    ),
    _switch("insecure", "Serve in plaintext where others can listen in."),
    _switch("reflection", "Describe the services to tools such as grpcurl."),
    POLL,
)


@verb(STORE, RUN, TRUST, *SERVING, METRICS, LOG_FORMAT)
def serve(context: Context) -> None:
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
    settings = context.settings
    tls = _tls(settings)
    gate = _gate(settings)
    _run(context, lambda: _server(context, gate, tls))


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


def _server(context: Context, gate: "Gate", tls: "ServerTls | None") -> "ControlServer":
    from weightsync.control.server import ControlServer
    from weightsync.control.settings import Pace, ServerSettings

    settings = context.settings
    return ControlServer(
        lambda run: _catalog(context, run),
        gate,
        listen=settings.listen,
        tls=tls,
        insecure=settings.insecure,
        settings=ServerSettings(pace=Pace(poll_s=settings.poll_s), reflection=settings.reflection),
    )


def _tls(settings: "Settings") -> "ServerTls | None":
    from weightsync.control.tls import ServerTls

    certificate, key = settings.tls_cert, settings.tls_key
    if certificate is None or key is None:
        if (certificate, key, settings.client_ca) != (None, None, None):
            raise Invalid("TLS needs a certificate and its key", remedy="give --tls-cert and --tls-key")
        return None
    return ServerTls(certificate, key, settings.client_ca)


def _gate(settings: "Settings") -> "Gate":
    from weightsync.control.access import CallerRole, Gate, Tokens
    from weightsync.control.addresses import is_loopback

    listen, tokens, anonymous, certificates = settings.listen, settings.tokens, settings.anonymous, settings.client_ca is not None
    known = tokens is not None or certificates
    if anonymous is None:
        if not known and not is_loopback(listen):
            raise Invalid(
                f"{listen} can be reached from elsewhere, and nobody would have to say who they are",
                remedy="give --tokens or --client-ca, or say with --anonymous what everybody may do",
            )
        anonymous = NOBODY if known else CallerRole.OPERATOR.value
    roles = {role.value: role for role in CallerRole}
    if anonymous not in (*roles, NOBODY):
        raise Invalid(f"{anonymous!r} is no role", remedy=f"take one of {', '.join((NOBODY, *roles))}")
    return Gate(tokens=Tokens(tokens) if tokens else None, certificates=certificates, anonymous=roles.get(anonymous))
