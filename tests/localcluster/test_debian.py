"""Debian packages and mirrors."""

from pathlib import Path

import pytest

from localcluster.debian import choose_mirror, mirror

DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
TARGETS = """\
https://packages.invalid/apt cloud main
http://security.invalid/debian-security/ bookworm-security main
http://mirror.invalid/debian/ bookworm main
http://other.invalid/debian/ bookworm main
"""


def test_mirror_is_the_one_of_the_hosts_release() -> None:
    """Of all apt sources, the one with the host's own release and `main` is taken."""
    assert choose_mirror(TARGETS, DEBIAN) == "http://mirror.invalid/debian"


@pytest.mark.parametrize(
    "os_release", [{}, {"ID": "ubuntu", "VERSION_CODENAME": "noble"}, {"ID": "debian"}]
)
def test_other_hosts_have_no_debian_mirror(os_release: dict[str, str]) -> None:
    """A host that is no Debian, or does not say which, has no mirror to offer."""
    assert choose_mirror(TARGETS, os_release) is None


def test_variable_names_the_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror set by hand is taken as it is."""
    monkeypatch.setenv("TPUJOB_DEBIAN_MIRROR", "http://mine.invalid/debian")

    assert mirror() == "http://mine.invalid/debian"


def test_without_any_source_debootstrap_is_left_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A host without apt names no mirror."""
    monkeypatch.delenv("TPUJOB_DEBIAN_MIRROR", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert mirror() is None
