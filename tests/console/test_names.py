"""Names of people and channels that the console shows."""

from bot.chat.session import CHANNEL_TITLE_KEY
from bot.console.pages import DisplayNames
from bot.runtime.in_process import InProcessSignals
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.database import Database
from bot.storage.reports import ServiceState
from bot.storage.web_channels import SqlWebChannels
from tests.samples import ALICE
from tests.turn.setup import Setup


async def test_names_stay_in_memory_for_at_most_five_seconds(database: Database) -> None:
    setup = Setup(database)
    await setup.say("hello")
    state, channels = (
        ServiceState(database, setup.clock),
        SqlWebChannels(database, InProcessSignals()),
    )
    names = DisplayNames(state, channels, setup.clock, dict)
    await names.refresh()
    assert names.person_name(ALICE.id) == ALICE.name
    assert ALICE.name in names.channel_title("en", "telegram:5")
    await SqlChatSettings(database, setup.clock).set(
        "telegram:5", CHANNEL_TITLE_KEY, "Round table", ""
    )
    await setup.clock.advance(6)
    assert ALICE.name not in str(names)
    await names.refresh()
    assert names.channel_title("en", "telegram:5") == "Telegram › Round table"
    assert names.channel_title("en", "telegram:5#user=1") == "Telegram › Round table › user=1"
    assert names.person_name(ALICE.id) == ALICE.name
