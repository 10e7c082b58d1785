"""Write what a person has said, and self-descriptions, as a JSON file for that person."""

import json

from bot.chat.incoming import Said
from bot.chat.outgoing import Attachment
from bot.ports import PersonalData


async def export_words(data: PersonalData, said: Said) -> tuple[int, Attachment]:
    """Return how many messages were found, and the file."""
    person = said.author.id
    lines = await data.lines(person)
    content = {
        "person": person,
        "exported_at": said.at.isoformat(),
        "descriptions": dict(await data.descriptions(person)),
        "messages": [
            {"conversation": conversation, "at": turn.at.isoformat(), "text": turn.text}
            for conversation, turn in lines
        ],
    }
    text = json.dumps(content, ensure_ascii=False, indent=1)
    return len(lines), Attachment("my-words.json", f"{text}\n")
