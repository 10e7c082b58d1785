"""The web: channels that live in our own database, for the playground of the console.

A page stores what people do there; the platform reads it in the order of its revisions, as it would
read the events of a vendor.
"""

from bot.chat.playground.web_channel import WEB_PLATFORM
from bot.platforms.spec import PlatformSpec

SPEC = PlatformSpec(
    kind=WEB_PLATFORM,
    factory="bot.platforms.web.platform:make",
    user_id_pattern=".+",
    is_companion=True,
)
