"""The one place of configuration: `VITSCALE_*` variables and a `.env` file."""

from pathlib import Path

from platformdirs import user_data_path
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Every field `x` is read from `VITSCALE_X`. Secrets never leave this object but as a request header."""

    model_config = SettingsConfigDict(env_prefix="VITSCALE_", env_file=".env", extra="ignore")

    data_dir: Path = Field(default_factory=lambda: user_data_path("vitscale"))
    database_url: str | None = None  # null: SQLite in the data directory
    api_token: SecretStr | None = None  # null: made at the first start, kept in data_dir/api_token
    data_roots: list[Path] = Field(default_factory=list)  # data_root of a spec must lie below one of these
    host: str = "127.0.0.1"
    port: int = 8321  # 0: a free one
    allowed_hosts: list[str] = Field(default_factory=lambda: ["127.0.0.1", "localhost", "[::1]"])
    url: str | None = None  # for clients
    ray_dashboard_url: str | None = None  # null: local mode, our own head
    ray_auth_token: SecretStr | None = None  # the cluster's token; else RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH
    ray_timeout_seconds: float = 10.0  # of one call to Ray's dashboard
    max_running_studies: int = Field(default=1, ge=1)

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir / 'vitscale.db'}"
