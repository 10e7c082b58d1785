import bot.platforms.telegram.model_building  # noqa: F401 # before a test imports aiogram
