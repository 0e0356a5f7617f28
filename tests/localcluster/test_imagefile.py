"""What a target of a Dockerfile depends on."""

from pathlib import Path

import pytest

from localcluster import imagefile

DOCKERFILE = """\
# a comment
FROM python:3.13-slim AS base
RUN one \\
    # a comment inside
 && two

FROM base AS code
COPY src/a src/b /lib/

FROM base AS other
COPY other.txt /

FROM base AS app
COPY lock.txt /
COPY --from=code /lib /lib
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that the Dockerfile above could be built from."""
    for name in ("src/a/__init__.py", "src/b/deep/code.py", "other.txt", "lock.txt", "unused.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    return tmp_path


def stages_of(target: str) -> list[imagefile.Stage]:
    """The stages behind a target of the Dockerfile above."""
    return imagefile.closure(imagefile.parse(DOCKERFILE), target)


def test_closure_follows_from_and_copy() -> None:
    """A target depends on its base and on stages it copies from, and on no other."""
    first_lines = [stage.instructions[0] for stage in stages_of("app")]

    assert first_lines == [
        "FROM python:3.13-slim AS base",
        "FROM base AS code",
        "FROM base AS app",
    ]


def test_continued_lines_are_one_instruction() -> None:
    """A RUN over several lines, comments in between, counts as one instruction."""
    base = imagefile.parse(DOCKERFILE)["base"]

    assert base.instructions[1].split() == ["RUN", "one", "&&", "two"]


def test_sources_are_those_of_the_build_context() -> None:
    """Only paths copied from the checkout count, not those copied between stages."""
    assert imagefile.sources(stages_of("app")) == ["lock.txt", "src/a", "src/b"]


def test_digest_changes_with_a_source_only(checkout: Path) -> None:
    """The hash changes with a copied file, and with nothing that is not copied."""
    before = imagefile.digest(checkout, stages_of("app"))
    (checkout / "unused.txt").write_text("changed")
    (checkout / "other.txt").write_text("changed")
    pycache = checkout / "src/a/__pycache__"
    pycache.mkdir()
    (pycache / "x.pyc").write_bytes(b"bytecode")
    assert before == imagefile.digest(checkout, stages_of("app"))

    (checkout / "src/b/deep/code.py").write_text("changed")
    assert before != imagefile.digest(checkout, stages_of("app"))


def test_digest_changes_with_an_instruction(checkout: Path) -> None:
    """The hash changes with the instructions of a stage behind the target."""
    changed = imagefile.parse(DOCKERFILE.replace("two", "three"))
    before = imagefile.digest(checkout, stages_of("app"))

    assert before != imagefile.digest(checkout, imagefile.closure(changed, "app"))


def test_snapshot_hashes_like_its_origin(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What is copied for a build has the hash of what it was copied from."""
    context = tmp_path_factory.mktemp("context")
    imagefile.snapshot(checkout, stages_of("app"), context)

    assert imagefile.digest(checkout, stages_of("app")) == imagefile.digest(
        context, stages_of("app")
    )
    assert not (context / "unused.txt").exists()


def test_unknown_target_is_named_with_the_known() -> None:
    """A target that is not there is refused with the list of those that are."""
    with pytest.raises(ValueError, match=r"'nope'.*it has base, code, other, app"):
        stages_of("nope")


def test_nameless_stage_is_refused() -> None:
    """A stage without a name is refused, because nothing could refer to it."""
    with pytest.raises(ValueError, match="every stage needs a name: FROM scratch"):
        imagefile.parse("FROM scratch\n")


def test_missing_source_is_named(checkout: Path) -> None:
    """A COPY of something that is not there fails with its path."""
    (checkout / "lock.txt").unlink()

    with pytest.raises(ValueError, match=r"lock\.txt, which is not there"):
        imagefile.digest(checkout, stages_of("app"))
