"""Programs are built from pinned modules, once."""

import re
from pathlib import Path

import pytest

from localcluster import binaries, gobuild


@pytest.mark.parametrize("project", binaries.PROJECTS, ids=lambda project: project.name)
def test_version_is_what_the_module_pins(project: binaries.Project) -> None:
    """The version we claim, and key the cache by, is the one in the wrapper's go.mod."""
    if project.name == "pause":
        pytest.skip("pause is our own source")
    package = project.module or next(iter(project.packages.values()))
    text = (project.source / "go.mod").read_text()
    pins = dict(re.findall(r"^(?:require )?\s*([\w./-]+) (v[\w.+-]+)", text, re.MULTILINE))
    module = max((path for path in pins if package.startswith(path)), key=len)
    assert pins[module] == project.version
    assert (project.source / "go.sum").is_file()


def test_unknown_program_is_refused() -> None:
    """Asking for a program that nothing builds is an error, not an empty answer."""
    with pytest.raises(KeyError, match="no project builds nonsense"):
        binaries.ensure({"nonsense"})


def test_key_follows_the_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed module file is another cache folder, so nothing stale is ever used."""
    monkeypatch.setenv("TPUJOB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(binaries, "MODULES", tmp_path)
    project = binaries.Project("some", "v1", {"some": "example.test/some"})
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "go.mod").write_text("module a\n")
    before = project.folder
    assert project.folder == before
    (tmp_path / "some" / "go.mod").write_text("module b\n")
    assert project.folder != before


@pytest.mark.skipif(not gobuild.has_go(), reason="needs Go")
def test_failed_build_shows_the_compilers_words(tmp_path: Path) -> None:
    """A build that fails raises, with Go's own lines."""
    (tmp_path / "go.mod").write_text("module example.test/broken\n\ngo 1.21\n")
    (tmp_path / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n")
    build = gobuild.Build("broken", tmp_path, [], {"broken": "example.test/broken"}, print)
    with pytest.raises(RuntimeError, match="undefined: nonsense"):
        build.run(tmp_path)


@pytest.mark.skipif(not gobuild.has_go(), reason="needs Go")
def test_build_says_what_and_names_the_program(tmp_path: Path) -> None:
    """A build reports begin and end, and its program has the asked name."""
    (tmp_path / "go.mod").write_text("module example.test/tool\n\ngo 1.21\n")
    (tmp_path / "main.go").write_text("package main\n\nfunc main() {}\n")
    lines: list[str] = []
    out = tmp_path / "out"
    out.mkdir()
    packages = {"mine": "example.test/tool"}
    gobuild.Build("[1/1] tool", tmp_path, [], packages, lines.append).run(out)
    assert (out / "mine").is_file()
    assert lines[0] == "[1/1] tool: building"
    assert re.fullmatch(r"\[1/1\] tool: built in \d+ s", lines[-1])
