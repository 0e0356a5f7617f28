"""What a build borrows of the host's pip configuration."""

from pathlib import Path

from localcluster import imagepip


def lent(folder: Path, environment: dict[str, str]) -> tuple[list[str], str]:
    """The arguments, and the content of the configuration they name."""
    arguments = imagepip.lend(folder, {"HOME": str(folder), **environment})
    return arguments, (folder / "pip.conf").read_text()


def test_variables_override_files(tmp_path: Path) -> None:
    """The environment wins over the files, and the user's file over the machine's."""
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text(
        "[global]\nindex-url = https://file.invalid/simple\ntimeout = 7\ntarget = /somewhere\n"
    )
    _, config = lent(tmp_path, {"PIP_INDEX_URL": "https://variable.invalid/simple"})

    assert "index-url = https://variable.invalid/simple\n" in config
    assert "timeout = 7\n" in config
    assert "target" not in config


def test_lists_are_joined(tmp_path: Path) -> None:
    """Several extra indexes, one per line, all arrive."""
    (tmp_path / "pip.conf.mine").write_text(
        "[global]\nextra-index-url =\n    https://a.invalid\n    https://b.invalid\n"
    )
    _, config = lent(tmp_path, {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf.mine")})

    assert "extra-index-url = https://a.invalid https://b.invalid\n" in config


def test_bundle_is_lent_under_a_fixed_name(tmp_path: Path) -> None:
    """The host's CA bundle is lent as a secret, and named by where it is inside."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text("certificates")
    arguments, config = lent(tmp_path, {"PIP_CERT": str(bundle)})

    assert f"id=ca.pem,src={bundle}" in arguments
    assert "cert = /run/secrets/ca.pem\n" in config
    assert str(bundle) not in config


def test_missing_bundle_is_passed_over(tmp_path: Path) -> None:
    """A variable that names no file does not end up in the build."""
    arguments, _ = lent(tmp_path, {"PIP_CERT": str(tmp_path / "nothing")})

    assert f"id=ca.pem,src={tmp_path / 'nothing'}" not in arguments
