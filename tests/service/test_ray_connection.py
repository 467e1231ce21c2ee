"""Where a cluster's token comes from, and that it goes nowhere but into the header."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from service.errors import RayRefused
from service.ray_connection import RayConnection, RemoteHead, normalized_dashboard_url, token_of_environment
from service.settings import Settings


def settings(**fields: object) -> Settings:
    return Settings(_env_file=None, **{"ray_dashboard_url": "http://head:8265/", **fields})


def test_the_token_is_in_the_header_and_not_in_the_text() -> None:
    connection = RayConnection("http://head:8265", "s3cret", "here")
    assert connection.headers == {"Authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(connection)
    assert RayConnection("http://head:8265").headers == {}


def test_the_setting_comes_first() -> None:
    connection = RemoteHead(settings(ray_auth_token=SecretStr("mine"))).connection
    assert (connection.token, connection.token_source) == ("mine", "VITSCALE_RAY_AUTH_TOKEN")
    assert connection.dashboard_url == "http://head:8265"


def test_then_the_variables_and_files_that_ray_itself_knows(tmp_path: Path) -> None:
    file, home = tmp_path / "token", tmp_path / "home"
    file.write_text("of the file\n")
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("of the home")
    environment = {"HOME": str(home)}
    assert token_of_environment(environment)[0] == "of the home"
    environment["RAY_AUTH_TOKEN_PATH"] = str(file)
    assert token_of_environment(environment) == ("of the file", f"RAY_AUTH_TOKEN_PATH ({file})")
    environment["RAY_AUTH_TOKEN"] = "of the variable"
    assert token_of_environment(environment) == ("of the variable", "RAY_AUTH_TOKEN")
    assert token_of_environment({"HOME": str(tmp_path)})[0] is None


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RayRefused, match=r"nowhere, which cannot be read"):
        token_of_environment({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "nowhere")})


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://head:8265/", "http://head:8265"),
        ("head:8265", "http://head:8265"),
        ("https://rays.example/team/", "https://rays.example/team"),
    ],
)
def test_the_url_is_taken_as_people_write_it(given: str, used: str) -> None:
    assert normalized_dashboard_url(given) == used


@pytest.mark.parametrize("url", ["ray://head:10001", "http://", "http://me:pass@head:8265"])
def test_a_url_that_cannot_be_used_is_refused_without_repeating_a_password(url: str) -> None:
    with pytest.raises(RayRefused) as refusal:
        normalized_dashboard_url(url)
    assert "pass@" not in str(refusal.value)
