"""Settings: flags, then the environment (`WEIGHTSYNC_*`), then a TOML file, then the defaults here.

The file is the one that `--config` or `WEIGHTSYNC_CONFIG` names, else `$XDG_CONFIG_HOME/weightsync/config.toml` if it exists. Its keys
are the field names below.
"""

import os
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from weightsync.errors import Invalid, NotFound


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


class Settings(BaseSettings):
    """What every command needs to know. Immutable."""

    model_config = SettingsConfigDict(env_prefix="WEIGHTSYNC_", env_ignore_empty=True, frozen=True, extra="forbid")

    config: Path | None = None
    store: str | None = Field(None, description="file:///absolute/path, s3://bucket/prefix or mem://name")
    run: str | None = Field(None, description="name of the run in the store")
    cache: Path = Field(default_factory=default_cache, description="verified objects, images and publisher bases; safe to delete")
    cache_max_bytes: int = Field(64 << 30, ge=0, description="verified objects kept for restarts and rebuilds")
    images: Path | None = Field(
        None,
        description="where subscribers keep their images of the weights; default: shared memory where there is 1 GiB of it, else cache",
    )
    trusted_keys: Path | None = Field(None, description="TOML file of public keys; without it nothing needs a signature")
    key: Path | None = Field(None, description="file with the key that signs what this process writes")
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_json: bool = False

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
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"the settings file is not TOML: {error}", remedy="fix it, or name another with --config") from error
    except ValidationError as error:
        raise Invalid(_explain(error), remedy="fix the flag, the WEIGHTSYNC_* variable or the line in the settings file") from error


def _explain(error: ValidationError) -> str:
    # The input value is left out: it may be a secret typed into the wrong place.
    return "; ".join(f"setting {'.'.join(str(part) for part in item['loc']) or '?'}: {item['msg']}" for item in error.errors())
