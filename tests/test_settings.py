import pytest

from jobq import WorkerSettings
from jobq.errors import SettingsError
from jobq.settings import DashboardSettings

DSN = "postgresql://user:secret@db.example/jobs"


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = WorkerSettings.from_environment({})
    assert settings.model_dump() == {
        "database_url": None,
        "listen_url": None,
        "app": None,
        "threads": 10,
        "lease_seconds": 60,
        "poll_seconds": 5,
        "kinds": (),
        "exclude": (),
        "shutdown_seconds": 30,
        "reap_seconds": 15,
        "log_level": "INFO",
        "retention_days": 7,
        "failed_retention_days": 30,
    }


def test_every_variable_is_read() -> None:
    settings = WorkerSettings.from_environment(
        {
            "DATABASE_URL": DSN,
            "JOB_WORKER_LISTEN_URL": "host=direct dbname=jobs",
            "JOB_WORKER_APP": "shop.jobs:app",
            "JOB_WORKER_THREADS": " 3 ",
            "JOB_WORKER_LEASE_SECONDS": "7.5",
            "JOB_WORKER_POLL_SECONDS": "0.5",
            "JOB_WORKER_KINDS": "a, b,,c ",
            "JOB_WORKER_EXCLUDE": "b",
            "JOB_WORKER_SHUTDOWN_SECONDS": "0",
            "JOB_WORKER_REAP_SECONDS": "1",
            "JOB_WORKER_LOG_LEVEL": "debug",
            "JOB_RETENTION_DAYS": "0",
            "JOB_FAILED_RETENTION_DAYS": "1.5",
        }
    )
    assert settings.database_url == DSN
    assert settings.listen_url == "host=direct dbname=jobs"
    assert settings.app == "shop.jobs:app"
    assert (settings.threads, settings.lease_seconds, settings.poll_seconds) == (3, 7.5, 0.5)
    assert (settings.kinds, settings.exclude) == (("a", "b", "c"), ("b",))
    assert (settings.shutdown_seconds, settings.reap_seconds) == (0, 1)
    assert settings.log_level == "DEBUG"
    assert (settings.retention_days, settings.failed_retention_days) == (0, 1.5)


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("JOB_WORKER_THREADS", "0", "greater than or equal to 1"),
        ("JOB_WORKER_THREADS", "ten", "valid integer"),
        ("JOB_WORKER_LEASE_SECONDS", "0.5", "greater than or equal to 1"),
        ("JOB_WORKER_LEASE_SECONDS", "nan", "less than or equal to 86400"),
        ("JOB_WORKER_POLL_SECONDS", "61", "less than or equal to 60"),
        ("JOB_WORKER_SHUTDOWN_SECONDS", "-1", "greater than or equal to 0"),
        ("JOB_WORKER_REAP_SECONDS", "0", "greater than or equal to 0.1"),
        ("JOB_WORKER_LOG_LEVEL", "LOUD", "'DEBUG', 'INFO'"),
        ("JOB_RETENTION_DAYS", "-1", "greater than or equal to 0"),
        ("JOB_WORKER_APP", "shop.jobs", "MODULE:APP"),
        ("DATABASE_URL", "nonsense", "postgresql://"),
        ("JOB_WORKER_LISTEN_URL", "postgresql://[", "postgresql://"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(variable: str, value: str, allowed: str) -> None:
    with pytest.raises(SettingsError) as caught:
        WorkerSettings.from_environment({variable: value})
    assert variable in str(caught.value)
    assert value in str(caught.value)
    assert allowed in str(caught.value)


def test_all_bad_values_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        WorkerSettings.from_environment({"JOB_WORKER_THREADS": "x", "JOB_RETENTION_DAYS": "y"})
    assert len(str(caught.value).splitlines()) == 2


def test_a_password_is_never_told() -> None:
    for url in ("postgresql://user:secret@[bad", "password=secret host='x"):
        with pytest.raises(SettingsError) as caught:
            WorkerSettings.from_environment({"DATABASE_URL": url})
        assert "secret" not in str(caught.value)


def test_an_empty_variable_is_not_set_and_an_override_wins() -> None:
    environment = {"JOB_WORKER_THREADS": "", "JOB_WORKER_POLL_SECONDS": "2"}
    settings = WorkerSettings.from_environment(environment, poll_seconds=3, lease_seconds=None)
    assert (settings.threads, settings.poll_seconds, settings.lease_seconds) == (10, 3, 60)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(SettingsError, match="speed"):
        WorkerSettings.from_environment({}, speed=1)
    with pytest.raises(SettingsError, match="speed"):
        WorkerSettings(speed=1)


@pytest.mark.parametrize(
    ("value", "read_only"),
    [("", False), ("false", False), ("0", False), ("TRUE", True), ("1", True)],
)
def test_the_dashboard_reads_its_own(value: str, read_only: bool) -> None:
    environ = {"JOB_DASHBOARD_READ_ONLY": value}
    assert DashboardSettings.from_environment(environ).read_only is read_only


def test_a_switch_takes_true_or_false_only() -> None:
    with pytest.raises(SettingsError) as refused:
        DashboardSettings.from_environment({"JOB_DASHBOARD_READ_ONLY": "ture"})
    assert str(refused.value) == (
        "JOB_DASHBOARD_READ_ONLY='ture' cannot be used: allowed: true or false"
    )
