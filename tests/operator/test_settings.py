"""Settings come from the environment, and wrong ones are told all at once."""

import pytest

from tpujob_operator.settings import Settings, SettingsError, variable_of

_GOOD = {"TPUJOB_OPERATOR_KEY": "0123456789abcdef", "TPUJOB_OPERATOR_IMAGE": "operator:1"}


def test_defaults() -> None:
    """Key and image are all that must be given; empty variables count as unset."""
    settings = Settings.from_env({**_GOOD, "TPUJOB_METRICS_PORT": "", "HOME": "/"})
    assert settings.metrics_port == 9090
    assert settings.watch_namespaces == ()


def test_namespaces_are_separated_by_commas() -> None:
    """Blanks around namespaces do not matter."""
    settings = Settings.from_env({**_GOOD, "TPUJOB_WATCH_NAMESPACES": "a, b,"})
    assert settings.watch_namespaces == ("a", "b")


def test_all_mistakes_are_told_with_their_variables() -> None:
    """Each wrong or missing variable is named, with what it is for."""
    with pytest.raises(SettingsError) as raised:
        Settings.from_env({"TPUJOB_OPERATOR_KEY": "short", "TPUJOB_PROBE_PORT": "http"})
    for variable in ("TPUJOB_OPERATOR_KEY", "TPUJOB_OPERATOR_IMAGE", "TPUJOB_PROBE_PORT"):
        assert variable in str(raised.value)
    assert "is not set" in str(raised.value)


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        ("cheap", "Expecting value"),
        ('{"v9": {"Spot": 1}}', "no TPU generation v9: use v2, v3"),
        ('{"v5e": {"spot": 1}}', "Spot"),
        ('{"v5e": {"Spot": -1}}', "greater than or equal to 0"),
    ],
)
def test_wrong_prices_are_refused(prices: str, words: str) -> None:
    """What is wrong with a price table is said, and what it should look like."""
    with pytest.raises(SettingsError, match=words) as raised:
        Settings.from_env({**_GOOD, "TPUJOB_PRICES": prices})
    assert "USD per chip-hour" in str(raised.value)


def test_key_is_not_shown() -> None:
    """The secret does not appear where settings are printed."""
    assert _GOOD["TPUJOB_OPERATOR_KEY"] not in repr(Settings.from_env(_GOOD))


@pytest.mark.parametrize("field", sorted(Settings.model_fields))
def test_every_setting_is_documented(field: str) -> None:
    """Every setting has a description, which its error message carries."""
    assert Settings.model_fields[field].description
    assert variable_of(field).startswith("TPUJOB_")
