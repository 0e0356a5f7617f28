"""What pip needs of the host to install inside a build: its configuration and CA bundle.

Both are lent to the build's RUN steps as secrets, so nothing of the machine is baked in.
"""

import configparser
import os
from collections.abc import Mapping
from pathlib import Path

# The rest of a host's pip configuration (folders, caches, target) means nothing in a container.
_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_CA_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE")
_SYSTEM_CA = "/etc/ssl/certs/ca-certificates.crt"
_CA_INSIDE = "/run/secrets/ca.pem"


def lend(folder: Path, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The `--secret` arguments of a build, for files written into `folder`."""
    settings = _settings(environment)
    bundle = _ca_bundle(settings, environment)
    lines = [f"{key} = {settings[key]}" for key in _KEYS if key in settings]
    if bundle is not None:
        lines.append(f"cert = {_CA_INSIDE}")
    config = folder / "pip.conf"
    config.write_text("\n".join(["[global]", *lines, ""]), encoding="utf-8")
    lent = {"pip.conf": config} | ({"ca.pem": bundle} if bundle else {})
    return [word for name, path in lent.items() for word in ("--secret", f"id={name},src={path}")]


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings on this host: files first, then the variables, as pip reads them."""
    parser = configparser.RawConfigParser()
    parser.read(_config_files(environment), encoding="utf-8")
    settings: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            # A value of several lines is a list, which one line separates by blanks as well.
            settings |= {key: " ".join(value.split()) for key, value in parser.items(section)}
    for key in _KEYS:
        if value := environment.get("PIP_" + key.upper().replace("-", "_")):
            settings[key] = value
    return settings


def _config_files(environment: Mapping[str, str]) -> list[str]:
    home = environment.get("HOME", "/root")
    config_home = environment.get("XDG_CONFIG_HOME", f"{home}/.config")
    files = ["/etc/pip.conf", f"{home}/.pip/pip.conf", f"{config_home}/pip/pip.conf"]
    return [*files, environment.get("PIP_CONFIG_FILE", os.devnull)]


def _ca_bundle(settings: Mapping[str, str], environment: Mapping[str, str]) -> Path | None:
    """The certificates this host trusts, the most specific choice first."""
    named = [environment[name] for name in _CA_VARIABLES if name in environment]
    candidates = [*named[:1], settings.get("cert", ""), *named[1:], _SYSTEM_CA]
    return next((Path(path) for path in candidates if path and Path(path).is_file()), None)
