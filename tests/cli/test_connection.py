"""Flags, environment variables and profiles: which of them counts, and what errors say about them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from odradek.cli.app import cli, run
from odradek.cli.connection import explain
from odradek.cli.options import clustered
from odradek.errors import Unreachable
from odradek.io.security import Security

Profiles = Callable[[str], Path]


class Reached(NamedTuple):
    """What a command was told."""

    url: str
    security: Security


@pytest.fixture(autouse=True)
def _nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("ODRADEK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def profiles(tmp_path: Path) -> Profiles:
    """Write the user's file."""

    def write(text: str) -> Path:
        file = tmp_path / "odradek" / "config.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
        return file

    return write


@pytest.fixture
def reach() -> Iterator[Callable[..., Reached]]:
    """Run a command with these options; return what it was told."""
    calls: list[Reached] = []

    @click.command("reach")
    @clustered
    def command(url: str) -> int:
        calls.append(Reached(url, Security().with_environment()))
        return 0

    def call(*arguments: str) -> Reached:
        before = dict(os.environ)
        assert run(["reach", *arguments]) == 0
        assert dict(os.environ) == before
        return calls.pop()

    cli.add_command(command)
    yield call
    del cli.commands["reach"]


def refused(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    capfd.readouterr()
    assert run(["ls", *arguments]) == code
    return capfd.readouterr().err


PROFILE = """
[profiles.prod]
cluster = "prod:9093"
sasl_mechanism = "PLAIN"
sasl_username = "of-profile"
sasl_password = "secret-of-profile"
"""


def test_a_flag_goes_before_the_environment_and_that_before_the_profile(
    reach: Callable[..., Reached], profiles: Profiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles(PROFILE)
    url, security = reach("--profile", "prod")
    assert url == "kafka+sasl://prod:9093"
    assert (security.sasl_username, security.sasl_password) == ("of-profile", "secret-of-profile")
    monkeypatch.setenv("ODRADEK_PROFILE", "prod")
    monkeypatch.setenv("ODRADEK_SASL_USERNAME", "of-environment")
    url, security = reach()
    assert (url, security.sasl_username) == ("kafka+sasl://prod:9093", "of-environment")
    secret = tmp_path / "password"
    secret.write_text("secret of flag\n")
    url, security = reach(
        *("-b", "kafka+ssl://b:1", "--sasl-username", "of-flag", "--sasl-password-file", str(secret)),
        *("--sasl-mechanism", "scram-sha-512"),
    )
    assert url == "kafka+sasl+ssl://b:1"
    assert (security.sasl_mechanism, security.sasl_username) == ("SCRAM-SHA-512", "of-flag")
    assert security.sasl_password == "secret of flag"


@pytest.mark.parametrize(
    ("cluster", "flags", "url"),
    [
        ("b:1", [], "b:1"),
        ("b:1,c:2", ["--tls"], "kafka+ssl://b:1,c:2"),
        ("kafka://b", ["--sasl-username", "a"], "kafka+sasl://b"),
        ("kafka+sasl://b:1", ["--tls"], "kafka+sasl+ssl://b:1"),
        ("kafka+sasl+ssl://b:1", ["--sasl-mechanism", "PLAIN"], "kafka+sasl+ssl://b:1"),
        ("kafka07+zk://z:1/kafka", [], "kafka07+zk://z:1/kafka"),
    ],
)
def test_flags_add_what_they_need_to_the_scheme(
    reach: Callable[..., Reached], cluster: str, flags: list[str], url: str
) -> None:
    assert reach("--cluster", cluster, *flags).url == url


def test_the_login_of_a_profile_does_not_change_the_scheme_of_another_cluster(
    reach: Callable[..., Reached], profiles: Profiles
) -> None:
    profiles(PROFILE)
    assert reach("--profile", "prod", "-b", "kafka://localhost:9092").url == "kafka://localhost:9092"


def test_it_is_said_that_the_environment_names_the_cluster_and_not_the_profile(
    reach: Callable[..., Reached],
    profiles: Profiles,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    profiles(PROFILE)
    monkeypatch.setenv("ODRADEK_CLUSTER", "kafka://localhost:9092")
    assert reach("--profile", "prod").url == "kafka://localhost:9092"
    assert "ODRADEK_CLUSTER names the cluster, not profile prod" in capfd.readouterr().err
    reach("--profile", "prod", "-b", "other:1")
    assert capfd.readouterr().err == ""


def test_files_of_a_profile_are_relative_to_it_and_may_have_its_secrets(
    reach: Callable[..., Reached], profiles: Profiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = profiles('[profiles.a]\ncluster = "b:1"\nssl_cafile = "ca.pem"\nsasl_token_file = "~/token"\n')
    (file.parent / "ca.pem").write_text("")
    (tmp_path / "token").write_text("t\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    moved = file.rename(file.parent / "other.toml")
    monkeypatch.setenv("ODRADEK_CONFIG", str(moved))
    url, security = reach("--profile", "a")
    assert url == "kafka+sasl+ssl://b:1"
    assert (security.ssl_cafile, security.sasl_token) == (str(file.parent / "ca.pem"), "t")


def test_a_file_that_a_flag_names_goes_before_a_text_of_the_environment(
    reach: Callable[..., Reached], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("")
    monkeypatch.setenv("ODRADEK_SSL_CA_PEM", "text")
    monkeypatch.setenv("ODRADEK_SSL_CERTIFICATE_PEM", "text")
    security = reach("-b", "b:1", "--ssl-cafile", str(file)).security
    assert (security.ssl_ca_pem, security.ssl_cafile) == (None, str(file))
    assert security.ssl_certificate_pem == "text"


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (PROFILE.replace("PLAIN", "PLAN"), "config.toml:4: profiles.prod.sasl_mechanism: 'PLAN': must be one of"),
        (
            PROFILE.replace("sasl_user", "user"),
            "config.toml:5: profiles.prod.username: unknown key; known here: cluster",
        ),
        (PROFILE.replace('"of-profile"', "3"), "config.toml:5: profiles.prod.sasl_username: must be a text"),
        (PROFILE + 'sasl_password_file = "x"', "config.toml:6: profiles.prod.sasl_password: cannot be combined with"),
        (PROFILE + 'sasl_token_file = "none"', "config.toml:7: profiles.prod.sasl_token_file: "),
        (PROFILE + 'ssl_cafile = "none.pem"', "config.toml:7: profiles.prod.ssl_cafile: "),
        (
            PROFILE + 'ssl_cafile = "~unknown-user/x"',
            "config.toml:7: profiles.prod.ssl_cafile: ~unknown-user/x: ",
        ),
        (PROFILE + 'sasl_token_file = "~unknown-user/x"', "config.toml:7: profiles.prod.sasl_token_file: ~"),
        (PROFILE.replace("of-profile", "a\\u0000b"), "config.toml:5: profiles.prod.sasl_username: must be a text"),
        (PROFILE + "x = ", "not TOML: Invalid value"),
        ('color = "red"\n' + PROFILE, "config.toml:1: color: unknown key; known here: profiles"),
        ("[profiles.dev]\n[profiles.ops]", "no table [profiles.prod]; the profiles are: dev, ops"),
        ("", "no table [profiles.prod]; the profiles are: none"),
        ('profiles = "x"', "no table [profiles.prod]"),
        ('profiles.prod = {cluster = "b:1", tls = "x"}', "config.toml: profiles.prod.tls: unknown key"),
        ('[profiles.prod]\nsasl_username = "x"', "no cluster: give --cluster URL, set ODRADEK_CLUSTER"),
    ],
)
def test_a_mistake_of_a_profile_is_told_with_its_place_and_without_secrets(
    profiles: Profiles, capfd: pytest.CaptureFixture[str], text: str, mistake: str
) -> None:
    profiles(text)
    printed = refused(capfd, "--profile", "prod")
    assert mistake in printed and "secret-of-profile" not in printed


def test_a_file_that_is_not_there_is_told(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert f"{tmp_path}/odradek/config.toml: no such file; profile prod" in refused(capfd, "--profile", "prod")
    assert "does not exist" in refused(capfd, "-b", "b:1", "--ssl-cafile", str(tmp_path / "no.pem"))


@pytest.mark.parametrize("flags", [["--tls"], ["--sasl-username", "a"]])
def test_0_7_has_neither_tls_nor_sasl(capfd: pytest.CaptureFixture[str], flags: list[str]) -> None:
    assert "kafka07:// has neither TLS nor SASL" in refused(capfd, "-b", "kafka07://b:1", *flags)


@pytest.mark.parametrize(
    ("flags", "environment", "said"),
    [
        (
            ["--sasl-username", "a"],
            {},
            "SASL needs --sasl-mechanism [or ODRADEK_SASL_MECHANISM, or sasl_mechanism of a",
        ),
        (
            ["--sasl-mechanism", "PLAIN"],
            {},
            "--sasl-username [or ODRADEK_SASL_USERNAME, or sasl_username of a profile]",
        ),
        (["--sasl-mechanism", "PLAIN"], {}, "and --sasl-password-file [or ODRADEK_SASL_PASSWORD, or sasl_password of"),
        (["--sasl-mechanism", "OAUTHBEARER"], {}, "or ODRADEK_SASL_TOKEN [or sasl_token of a profile]"),
        (["-b", "kafka://a@b:1"], {}, "use --sasl-username [or ODRADEK_SASL_USERNAME, or"),
        (
            ["--tls"],
            {"SSL_KEYFILE": __file__},
            "--ssl-keyfile [or ODRADEK_SSL_KEYFILE, or ssl_keyfile of a profile] without",
        ),
        (["-b", "kafka+sasl://b:1"], {"SASL_MECHANISM": "PLAN"}, "ODRADEK_SASL_MECHANISM='PLAN': must be one of"),
        (["--ssl-cafile", __file__], {}, "no certificates in PEM format"),
    ],
)
def test_errors_name_flags_variables_and_keys(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    environment: dict[str, str],
    said: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(f"ODRADEK_{name}", value)
    printed = refused(capfd, "-b", "b:1", *flags)
    assert said in printed and "Security" not in printed


def test_hints_name_flags_too() -> None:
    assert explain("the peer speaks TLS (use a URL with +ssl)") == "the peer speaks TLS (use a URL with +ssl, or --tls)"
    assert explain("set Security(ssl_certfile=...)") == (
        "set --ssl-certfile [or ODRADEK_SSL_CERTFILE, or ssl_certfile of a profile]"
    )
    assert explain("set ssl_password") == "set ODRADEK_SSL_PASSWORD [or ssl_password of a profile]"
    assert explain("a key without ssl_certificate_pem") == "a key without ODRADEK_SSL_CERTIFICATE_PEM"


def test_errors_of_a_group_are_told_alike(capfd: pytest.CaptureFixture[str]) -> None:
    @click.command("fail")
    @clustered
    def fail(url: str) -> int:
        error = Unreachable("tls", "b:1", "no")
        error.hint = "set Security(ssl_cafile=...)"
        raise ExceptionGroup("tasks", [ExceptionGroup("more", [error])])

    cli.add_command(fail)
    try:
        assert run(["fail", "-b", "b:1"]) == 1
    finally:
        del cli.commands["fail"]
    assert "(set --ssl-cafile [or ODRADEK_SSL_CAFILE" in capfd.readouterr().err
