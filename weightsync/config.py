"""Settings: flags, then the environment (`WEIGHTSYNC_*`), then a TOML file, then the defaults here.

The file is the one that `--config` or `WEIGHTSYNC_CONFIG` names, else `$XDG_CONFIG_HOME/weightsync/config.toml` if it exists. Its keys
are the field names below.
"""

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from weightsync.errors import Invalid, NotFound

MAX_SETTINGS_BYTES = 1 << 20
_SERVER = re.compile(r"(?:dns|unix|ipv4|ipv6):.+|(?:[^\s:/\[\]]+|\[[0-9a-fA-F:.%]+\]):(?P<port>[0-9]{1,5})")


def _xdg(variable: str, fallback: str) -> Path:
    base = os.environ.get(variable, "")
    # The XDG specification tells to ignore relative paths.
    return (Path(base) if base.startswith("/") else Path.home() / fallback) / "weightsync"


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/weightsync`."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def default_config() -> Path:
    """`$XDG_CONFIG_HOME/weightsync/config.toml`."""
    return _xdg("XDG_CONFIG_HOME", ".config") / "config.toml"


def read_text(path: Path) -> str:
    """A file of settings or keys, or a pipe that ends. Never waits for a writer of a FIFO, nor reads a device without end.

    Raises `OSError`, `UnicodeDecodeError`; `Invalid` for what is neither or larger than 1 MiB.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise Invalid(f"{str(path)!r} is not a plain file", remedy="name a file")
        os.set_blocking(fd, True)
        data = file.read(MAX_SETTINGS_BYTES + 1)
    if len(data) > MAX_SETTINGS_BYTES:
        raise Invalid(f"{str(path)!r} has more than {MAX_SETTINGS_BYTES} bytes", remedy="name a file of settings or keys")
    return data.decode("utf-8")


class Settings(BaseSettings):
    """What every command needs to know. Immutable."""

    model_config = SettingsConfigDict(env_prefix="WEIGHTSYNC_", env_ignore_empty=True, frozen=True, extra="forbid")

    config: Path | None = None
    store: str | None = Field(None, description="file:///absolute/path, s3://bucket/prefix or mem://name")
    allow_link_local: bool = Field(False, description="let S3 endpoints be link-local addresses, such as cloud metadata services")
    run: str | None = Field(None, description="name of the run in the store")
    cache: Path = Field(default_factory=default_cache, description="verified objects, images and publisher bases; safe to delete")
    cache_max_bytes: int = Field(64 << 30, ge=0, description="verified objects kept for restarts and rebuilds")
    images: Path | None = Field(
        None,
        description="where subscribers keep their images of the weights; default: shared memory where there is 1 GiB of it, else cache",
    )
    trusted_keys: Path | None = Field(None, description="TOML file of public keys; without it nothing needs a signature")
    key: Path | None = Field(None, description="file with the key that signs what this process writes")
    server: str | None = Field(None, description="HOST:PORT of a control plane; without one everything goes through the store")
    server_tls: bool = Field(False, description="speak TLS to it, trusting the system's authorities (implied by the files below)")
    server_ca: Path | None = Field(None, description="PEM file of who signed the server's certificate")
    server_cert: Path | None = Field(None, description="PEM file of our own certificate, with server_key")
    server_key: Path | None = Field(None, description="PEM file of its key")
    server_name: str | None = Field(None, description="what the server's certificate must name, if not the host that is connected to")
    server_insecure: bool = Field(False, description="let a token go to another host in plaintext")
    token_file: Path | None = Field(None, description="file with our bearer token; read again for each call")
    listen: str = Field("127.0.0.1:7443", description="HOST:PORT where a control plane listens")
    tls_cert: Path | None = Field(None, description="PEM file of a control plane's certificate chain, with tls_key")
    tls_key: Path | None = Field(None, description="PEM file of its key")
    client_ca: Path | None = Field(None, description="PEM file of who signs its callers' certificates (O: role, CN: name)")
    tokens: Path | None = Field(None, description="TOML file of its callers' bearer tokens and their roles; read again when it changes")
    anonymous: str | None = Field(None, description="role of its callers without a credential; nobody: they are refused")
    insecure: bool = Field(False, description="a control plane may serve in plaintext where others can listen in")
    reflection: bool = Field(False, description="a control plane describes its services to tools such as grpcurl")
    name: str | None = Field(None, description="this subscriber's name in the fleet; default: the host's name")
    region: str = Field("", description="the region that it is in")
    metrics: str | None = Field(None, description="HOST:PORT (or PORT, on loopback) where daemons serve /metrics, /healthz and /readyz")
    channel: str = Field("latest", description="the channel that a subscriber follows")
    out: Path | None = Field(None, description="directory where a subscriber writes each version as DIR/<N>/")
    engine: str | None = Field(None, description="URL of an engine that a subscriber feeds, or several with commas")
    engine_token_file: Path | None = Field(None, description="file with the bearer token that engines over HTTP ask for")
    keep: int = Field(2, ge=1, description="versions kept there")
    poll_s: float = Field(2.0, ge=0.02, description="mean seconds between looks at the channel, or at the directory of checkpoints")
    spread_s: float = Field(0.5, ge=0, description="subscribers start, and look after a hint, at random times within so many seconds")
    watch: Path | None = Field(None, description="directory whose checkpoints a publisher publishes as they appear")
    alarm_behind_s: float = Field(300.0, ge=0, description="alarm: a subscriber is behind its channel for longer; 0, here and below: never")
    alarm_behind_versions: int = Field(10, ge=0, description="alarm: a subscriber is more versions behind")
    alarm_below_s: float = Field(60.0, ge=0, description="alarm: some subscriber is below its channel for longer")
    alarm_unchanged_versions: int = Field(3, ge=0, description="alarm: so many versions in a row changed nothing")
    alarm_change_factor: float = Field(5.0, ge=0, description="alarm: a version changed more than so many times the usual")
    alarm_silent_s: float = Field(3600.0, ge=0, description="alarm: no new version for longer")
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_format: Literal["text", "json"] = "text"

    @field_validator("server")
    @classmethod
    def _is_server(cls, value: str | None) -> str | None:
        """Looked at first: who starts a publisher should not hear of a mistyped server when the run is claimed already."""
        found = _SERVER.fullmatch(value) if value is not None else None
        if value is not None and (found is None or int(found["port"] or 1) not in range(1, 1 << 16)):
            raise ValueError("it is not HOST:PORT; write for example cp.example:7443 or [::1]:7443, without http://")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, environment, file: earlier ones win."""
        named = init_settings().get("config") or env_settings().get("config")
        if named and not Path(named).is_file():
            raise NotFound(f"settings file {str(named)!r} is not there", remedy="name an existing TOML file, or none")
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, Path(named) if named else default_config())


def load(**flags: object) -> Settings:
    """The settings in force. A flag that is None was not given.

    Raises `Invalid` naming the setting that cannot be used, `NotFound` for a named settings file that is missing.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)  # type: ignore[arg-type]  # pydantic checks the values
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the settings file is not TOML: {error}", remedy="fix it, or name another with --config") from error
    except ValidationError as error:
        raise Invalid(_explain(error), remedy="fix the flag, the WEIGHTSYNC_* variable or the line in the settings file") from error


_WORDS = {"extra_forbidden": "there is no such setting"}  # where pydantic speaks of itself


def _explain(error: ValidationError) -> str:
    # The input value is left out: it may be a secret typed into the wrong place.
    said = {".".join(str(part) for part in item["loc"]) or "?": _WORDS.get(item["type"], item["msg"]) for item in error.errors()}
    return "; ".join(f"setting {name}: {text.removeprefix('Value error, ')}" for name, text in said.items())
