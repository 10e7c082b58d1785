"""The address of a read replica: what is refused, without its password."""

from pathlib import Path

import pytest

from bot.errors import SettingsError
from bot.settings import Settings, collect_secrets
from bot.storage.replica.read_replica import open_read_replica
from bot.storage.sql.database import open_database
from tests.fakes import FakeClock

PASSWORD = "hunter2-canary"


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://reader:{PASSWORD}@standby/troupe",
        f"sqlite:///{PASSWORD}.db",
        f"postgresql+asyncpg://reader:{PASSWORD}@standby:x/troupe",
        PASSWORD,
    ],
)
async def test_refused_address_is_not_repeated(url: str, tmp_path: Path) -> None:
    async with open_database(f"sqlite:///{tmp_path / 'troupe.db'}") as primary:
        with pytest.raises(SettingsError, match="TROUPE_DATABASE_READ_URL") as refused:
            async with open_read_replica(url, primary, 10.0, FakeClock()):
                pass
    assert PASSWORD not in str(refused.value)


def test_password_of_a_replica_is_masked_in_logs() -> None:
    url = f"postgresql+asyncpg://reader:{PASSWORD}@standby/troupe"
    settings = Settings(database_read_url=url)
    assert any(PASSWORD in secret for secret in collect_secrets(settings))
