"""What docs/security.md says about rights and policies is what the chart has."""

from __future__ import annotations

import json
from pathlib import Path

from tests.rendering import rendered

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


def test_every_right_is_explained() -> None:
    """Each kind of object that a role of the operator names has a row with a reason."""
    roles = [item for item in rendered() if item["kind"] in ("Role", "ClusterRole")]
    own = [role for role in roles if not role["metadata"]["name"].endswith(("-edit", "-view"))]
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    for role in own:
        for rule in role["rules"]:
            for resource in rule["resources"]:
                assert any(f"`{resource}`" in row.split("|")[1] for row in rows), resource


def test_every_group_of_the_policy_is_explained() -> None:
    """What an administrator can open is in the table of what is refused."""
    chart = ROOT / "charts" / "tpujob-operator"
    schema = json.loads((chart / "values.schema.json").read_text())["properties"]
    for group in schema["templatePolicy"]["properties"]["allow"]["items"]["enum"]:
        assert f"`{group}`" in PAGE, group
