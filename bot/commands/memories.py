"""The /memory commands, with which people list, correct, delete, and add memories."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from bot.chat.command import ButtonAction, CommandOption, CommandSpec, encode_button
from bot.chat.incoming import ButtonPress, Person, Request
from bot.chat.memory import (
    MEMORY_APPROVAL_KEY,
    Audience,
    Memory,
    MemoryPlace,
    MemoryReader,
    MemoryState,
    MemorySubject,
    Reach,
    SubjectKind,
)
from bot.chat.outgoing import Attachment, Button, Menu, MenuOption
from bot.chat.session import OWNER_SEPARATOR, Claim, Consent, Turn, display_name
from bot.commands.authority import writes_as_group
from bot.commands.characters import CharacterHandlers, with_changed_texts
from bot.commands.request import CommandRequest, CommandResult, private_command
from bot.errors import UserError
from bot.importers.chats import MAX_CHAT_LINES, ChatLine, ExportedChat, encode_chat
from bot.importers.memory_files import (
    MAX_MEMORY_CHARS,
    MemoryFile,
    add_to_lorebook,
    encode_character_card,
    encode_memories,
    encode_world_info,
    read_memory_file,
)
from bot.memory.recall import MemoryRecaller
from bot.prompting.presets.fields import preset_id
from bot.prompting.speakers import clean_name
from bot.replying.answer_parts import page_buttons
from bot.routing.presets import find_character_owner
from bot.storage.conversations import Conversations
from bot.texts.text import Text, join_texts, marked, supported_language, translatable, translate

MEMORY_GROUP = CommandSpec(
    "memory",
    marked("see, correct, and delete what I remember, and add to it"),
    is_private=True,
    default_action="list",
)
_PAGE_SIZE, _MAX_LISTED_MEMORIES = 10, 40
_MAX_LISTED_CHARS, _MAX_LABEL_CHARS = 150, 60
_SHOW_CODE, _LORE_CODE = "s", "l"
_ACTION_BY_CODE = {_SHOW_CODE: "show", "p": "pin", "f": "forget", "w": "widen", _LORE_CODE: "lore"}
_MENU_VALUE = re.compile(rf"([{''.join(_ACTION_BY_CODE)}])(\d{{1,9}})")
"""Matches the value of a menu option: an action's letter, then a memory's number."""
_LIST_COMMAND = re.compile(r"/memory(?: (?:list|lore)(?: .*)?| show (?!#?\d+$).*)?", re.DOTALL)
"""Matches a command that shows a list of memories."""
_NUMBER_OR_ALL = re.compile(r"(?<=\S) (?:\d+|all)$")
"""Matches the memory number, or "all", at the end of a command that adds to the lore."""
_NUMBER_OPTION = CommandOption("number", marked("the number in /memory list"))
_UNKNOWN_MEMORY_NOTICE = translatable(
    "There is no memory with this number that you may see here; /memory list shows them."
)
_OTHERS_MEMORY_NOTICE = translatable(
    "Only the person who said it, or the person it is about, can change this memory."
)
_MISSING_TEXT_NOTICE = translatable(
    "What should I remember? Write /memory add TEXT, or reply to a message with /memory add."
)
_UNADDRESSED_MESSAGE_NOTICE = translatable(
    "That message was not written to me, so only its author can add it to my memories."
)
_PRIVATE_ONLY_NOTICE = translatable(
    "Send this command to me in a private chat: here, other people could read my answer."
)
_MISSING_FILE_NOTICE = translatable(
    "Attach the file: memories or World Info (JSON), a character from /memory export, or a chat"
    " from SillyTavern or Character.AI."
)
_STATE_LABELS: Mapping[MemoryState, Text | None] = {
    MemoryState.KEPT: None,
    MemoryState.PROPOSED: translatable("an admin has not approved it yet"),
    MemoryState.RETIRED: translatable("no longer true"),
}
_AUDIENCE_LABELS = {
    Reach.PRIVATE: (translatable("this private chat"), translatable("a private chat")),
    Reach.CHANNEL: (translatable("this channel"), translatable("another channel")),
    Reach.SERVER: (translatable("this server"), translatable("another server")),
    Reach.EVERYWHERE: (translatable("everywhere"), translatable("everywhere")),
}
"""Names for each reach in lists: one for the list's own place, and one for other places."""
_COMMA = translatable(", ")
_SERVER_WIDE_REACHES = frozenset({Reach.SERVER, Reach.EVERYWHERE})
_REACH_BY_WORD = {"here": None, "server": Reach.SERVER, "everywhere": Reach.EVERYWHERE}


@dataclass(eq=False)
class MemoryHandlers:
    """Handles the /memory actions; only the asker (the command's author) sees the replies."""

    recaller: MemoryRecaller
    conversations: Conversations
    characters: CharacterHandlers

    def __post_init__(self) -> None:
        self.memories, self._embed = self.recaller.memories, self.recaller.embed

    # show

    @private_command(
        "memory list",
        marked("list your memories, those that I may use here, or those of a character"),
        CommandOption(
            "what",
            marked("mine (the default), here, or the name of a character"),
            required=False,
            autocompletes=True,
        ),
    )
    async def list_memories(self, request: CommandRequest) -> CommandResult:
        """List memories: the asker's, those that may be known in this chat, or a character's."""
        message, argument = request.incoming, request.argument
        memories = await self.memories.list_visible(_make_reader(message))
        if argument.lower() in {"", "mine"}:
            own_memories = [one for one in memories if _involves_person(message.author.id, one)]
            heading = translatable(
                "Memories that come from you or are about you: {count}", count=len(own_memories)
            )
            return self._show_page(request, heading, own_memories)
        local_memories = [one for one in memories if _may_be_known_at(_find_place(message), one)]
        if argument.lower() == "here":
            heading = translatable(
                "Memories that I may use here: {count}", count=len(local_memories)
            )
            return self._show_page(request, heading, local_memories)
        preset = await self.characters.resolver.find_named_preset(argument, message, request.active)
        known_memories = [one for one in local_memories if _is_known_to_character(preset.name, one)]
        placeholders = {"name": preset.character_name, "count": len(known_memories)}
        heading = translatable("Memories of {name} that you may see: {count}", **placeholders)
        return self._show_page(request, heading, known_memories)

    @private_command(
        "memory show",
        marked("show one memory, or what a character knows"),
        CommandOption("what", marked("a number, or the name of a character"), autocompletes=True),
    )
    async def show_memory_or_list(self, request: CommandRequest) -> CommandResult:
        """Show a memory with its source and audience, or what a character knows."""
        if _parse_number(request.argument) is None:
            return await self.list_memories(request)
        return await self._show_memory(request, await self._find_by_number(request))

    @private_command("memory who", marked("show who may know a memory"), _NUMBER_OPTION)
    async def show_who_knows(self, request: CommandRequest) -> CommandResult:
        """Say which people and characters may know a memory."""
        memory = await self._find_by_number(request)
        return CommandResult(await self._describe_who_may_know(request, memory))

    # change

    @private_command(
        "memory add",
        marked(
            "remember something about you; start with `here:` or `NAME:` if it is about this chat"
            " or a character"
        ),
        CommandOption("text", marked("for example: I am allergic to nuts"), required=False),
    )
    async def add_memory(self, request: CommandRequest) -> CommandResult:
        """Remember a text, or the message that the command replies to."""
        message, text = request.incoming, request.argument
        if text:
            subject, text = self._split_off_subject(request, text)
            new_memory = _empty_memory(message, message.author)
            new_memory = replace(new_memory, subject=subject, text=_validate_text(text))
        elif message.quote is None:
            raise UserError(_MISSING_TEXT_NOTICE)
        elif request.quoted_turn is not None:
            new_memory = await self._create_quotation(message, request.quoted_turn)
        else:
            problem = translatable("I don't know that message, so I can't remember it.")
            raise UserError(problem)
        stored_memory = await self._store_memory(message, new_memory)
        return await self._show_memory(request, stored_memory, translatable("I will remember:"))

    async def remember_turn(self, press: ButtonPress, turn: Turn) -> None:
        """Remember a message because somebody reacted to it; raises `UserError`."""
        await self._store_memory(press, await self._create_quotation(press, turn))

    @private_command(
        "memory correct",
        marked("edit a memory that came from you or is about you"),
        _NUMBER_OPTION,
        CommandOption("text", marked("the corrected text")),
    )
    async def correct_memory(self, request: CommandRequest) -> CommandResult:
        """Replace a memory's text."""
        memory, message = await self._find_by_number(request), request.incoming
        text = _validate_text(request.argument.partition(" ")[2])
        reader, embedding = _make_reader(message), await self._embed(text)
        new_memory = await self.memories.correct_text(memory.id, reader, text, embedding)
        return await self._show_memory(request, new_memory, translatable("Corrected."))

    @private_command(
        "memory pin",
        marked("pin a memory, so that I recall it before all others, or unpin it"),
        _NUMBER_OPTION,
    )
    async def pin_or_unpin(self, request: CommandRequest) -> CommandResult:
        """Pin a memory, or unpin it."""
        memory = await self._find_by_number(request)
        reader = await self._load_reader(request)
        new_memory = await self.memories.change(memory.id, reader, is_pinned=not memory.is_pinned)
        return await self._show_memory(request, new_memory)

    @private_command(
        "memory forget",
        marked("delete a memory; admins can also delete those about this chat"),
        _NUMBER_OPTION,
    )
    async def forget_memory(self, request: CommandRequest) -> CommandResult:
        """Delete a memory."""
        memory, message = await self._find_by_number(request), request.incoming
        if not _involves_person(message.author.id, memory):
            action = translatable("delete what I remember about others")
            admins, audit_name = self.characters.admins, "forget memory"
            await admins.require_admin(
                message, action, refuses_anonymous=True, audit_name=audit_name
            )
        reader = await self._load_reader(request)
        if await self.memories.forget(memory.id, reader) is None:
            raise UserError(_OTHERS_MEMORY_NOTICE)
        text = translatable("I have forgotten: {text}", text=_shorten_text(memory.text))
        return self._with_menu(request, CommandResult(text), (), can_go_back=True)

    @private_command(
        "memory widen",
        marked("choose who may know what you said"),
        _NUMBER_OPTION,
        CommandOption(
            "reach", marked("here, server or everywhere"), False, choices=(*_REACH_BY_WORD,)
        ),
    )
    async def widen_audience(self, request: CommandRequest) -> CommandResult:
        """Choose where a memory may be recalled; only the person who said it may do this."""
        memory, message = await self._find_by_number(request), request.incoming
        reach_word = request.argument.partition(" ")[2].strip().lower() or "server"
        problem = None
        if reach_word not in _REACH_BY_WORD:
            problem = translatable("Use /memory widen NUMBER and one of server, everywhere, here.")
        elif memory.said_by != message.author.id:
            problem = translatable("Only the person who said it can choose who may know it.")
        elif memory.place.is_private:
            problem = translatable("What was said in private stays in that chat.")
        elif memory.subject.kind is SubjectKind.PERSON and memory.subject.key != message.author.id:
            problem = translatable(
                "This memory is about somebody else, so it stays where it was said."
            )
        if problem is not None:
            raise UserError(problem)
        reach = _REACH_BY_WORD[reach_word]
        audience = memory.place.audience_with_reach(reach) if reach else None
        new_memory = await self.memories.widen_audience(memory.id, _make_reader(message), audience)
        return await self._show_memory(request, new_memory)

    @private_command(
        "memory approve",
        marked(
            "approve a memory about this chat; `on`: new ones wait for approval, `off`: they don't"
            " (admins)"
        ),
        CommandOption("what", marked("a number, on, or off")),
    )
    async def approve_memory(self, request: CommandRequest) -> CommandResult:
        """Approve a memory about this server, or choose whether new ones wait for approval."""
        message, admins, choice = request.incoming, self.characters.admins, request.argument.lower()
        await admins.require_admin(message, translatable("approve memories about this chat"))
        if choice not in {"on", "off"}:
            memory = await self._find_by_number(request)
            reader = await self._load_reader(request)
            new_memory = await self.memories.change(memory.id, reader, state=MemoryState.KEPT)
            return await self._show_memory(request, new_memory, translatable("Approved."))
        setting, server = "on" if choice == "on" else None, message.scopes[-1]
        await request.store(admins.chat_settings, server, MEMORY_APPROVAL_KEY, setting)
        text = translatable("New memories about this chat wait until an admin approves them.")
        return CommandResult(text if setting else translatable("New memories don't need approval."))

    # export and import

    @private_command(
        "memory export",
        marked("export to a file: your memories, your chat with me, or a character with both"),
        CommandOption(
            "what",
            marked("json (the default), lorebook, chat, or the name of a character"),
            required=False,
            autocompletes=True,
        ),
    )
    async def export_memories(self, request: CommandRequest) -> CommandResult:
        """Export the asker's memories, this private chat, or a character with its memories."""
        message, argument, person = request.incoming, request.argument, request.incoming.author.id
        memories = await self.memories.list_visible(_make_reader(message))  # the newest first
        memories = [one for one in reversed(memories) if one.state is MemoryState.KEPT]
        own_memories = [one for one in memories if _involves_person(person, one)]
        text = translatable("Your memories: {count}", count=len(own_memories))
        match argument.lower():
            case "" | "json":
                file = Attachment("memories.json", encode_memories(own_memories, person))
            case "lorebook":
                file = Attachment("world-info.json", encode_world_info(own_memories, person))
            case "chat":
                content = encode_chat(await self._load_chat_to_export(request))
                file = Attachment("chat.jsonl", content)
                text = translatable("Your chat with me.")
            case _:
                text, file = await self._export_character(request, memories)
        return CommandResult(text, file=file)

    async def _export_character(
        self, request: CommandRequest, memories: Sequence[Memory]
    ) -> tuple[Text, Attachment]:
        message, resolver = request.incoming, self.characters.resolver
        preset = await resolver.find_named_preset(request.argument, message, request.active)
        is_own_character = preset.name.startswith(f"{message.author.id}{OWNER_SEPARATOR}")
        if not is_own_character:  # the file has the character's instructions
            action = translatable("export this character, because the file has its instructions")
            await self.characters.admins.require_prompt_access(message, action)
        local_memories = [one for one in memories if _may_be_known_at(_find_place(message), one)]
        known_memories = [one for one in local_memories if _is_known_to_character(preset.name, one)]
        chat = await self._load_chat_to_export(request) if message.is_private else None
        content = encode_character_card(preset, known_memories, chat, message.author.id)
        text = translatable(
            "Memories of {name}: {count}. /memory import and SillyTavern can read this file.",
            name=preset.character_name,
            count=len(known_memories),
        )
        return text, Attachment("character.json", content)

    async def _load_chat_to_export(self, request: CommandRequest) -> ExportedChat:
        message = request.incoming
        if not message.is_private:
            raise UserError(_PRIVATE_ONLY_NOTICE)
        read_only_claim = Claim(message.address.conversation, 0, "")  # this claim can only read
        session = await self.conversations.load_session(read_only_claim, MAX_CHAT_LINES)
        turns = [one for one in session.turns if one.text.strip()]
        names = self.characters.resolver.character_names({one.preset or "" for one in turns})
        user_name, character_name = message.author.name, request.active.first.preset.character_name
        lines = [
            ChatLine(
                one.speaker.name if one.speaker else names[one.preset or ""] or character_name,
                one.text,
                one.role == "user",
                int(one.at.timestamp() * 1000),
            )
            for one in turns
        ]
        return ExportedChat(user_name, character_name, tuple(lines))

    @private_command(
        "memory import",
        marked("read memories, a character with memories, or a chat from a file"),
        CommandOption("file", marked("JSON or JSONL"), required=False, is_file=True),
    )
    async def import_memory_file(self, request: CommandRequest) -> CommandResult:
        """Import a file with memories, a character, or a chat. An imported chat continues here."""
        message = request.incoming
        if (file_content := await self.characters.download_attached_file(message)) is None:
            raise UserError(_MISSING_FILE_NOTICE)
        empty_memory = _empty_memory(message, message.author)
        file = await asyncio.to_thread(read_memory_file, file_content, empty_memory)
        if file.chat is not None and not message.is_private:
            raise UserError(_PRIVATE_ONLY_NOTICE)
        reply_lines: list[str] = []
        if file.cleaned_card is not None:
            preset = await self.characters.store_card(request, file.cleaned_card)
            reply_lines.append(translatable("{name} is ready.", name=preset.display_name))
            if message.is_private:
                resolver, person = self.characters.resolver, message.author.id
                await resolver.set_active_presets(request.scope, [preset], person)
                request = replace(request, active=await resolver.resolve(message.scopes))
            character_memories = [replace(one, witnesses=(preset.name,)) for one in file.memories]
            file = replace(file, memories=tuple(character_memories))
        reply_lines += await self._import_memories(request, file)
        turns = await self._import_chat(request, file.chat) if file.chat else ()
        if file.chat is not None:
            reply_lines.append(
                translatable(
                    "The chat with {name} continues here. Messages read: {count}",
                    name=file.chat.character,
                    count=len(turns),
                )
            )
        return CommandResult(join_texts(reply_lines), starts_session=bool(turns), turns=turns)

    async def _import_memories(self, request: CommandRequest, file: MemoryFile) -> list[str]:
        """Store a file's memories, and return lines that say how many were stored or left out."""
        stored_memory_count, other_people, last_problem = 0, dict.fromkeys(file.other_people), ""
        presets = await self._map_ids_to_usable_presets(request)
        for one in file.memories:
            subject = one.subject
            if subject.kind is SubjectKind.CHARACTER:
                if (preset_name := presets.get(preset_id(subject.name))) is None:
                    other_people[subject.name] = None
                    continue
                subject = replace(subject, key=preset_name)
            try:
                await self._store_memory(request.incoming, replace(one, subject=subject))
                stored_memory_count += 1
            except UserError as error:
                last_problem = error.text
        lines: list[str] = []
        if file.memories or other_people or file.skipped_entry_count:
            lines.append(translatable("Memories read: {count}", count=stored_memory_count))
        if other_people:
            names = ", ".join([*other_people][:_PAGE_SIZE])
            lines.append(
                translatable("Left out because they are about other people: {names}", names=names)
            )
        if file.skipped_entry_count:
            text = translatable(
                "Left out because they have no usable text: {count}", count=file.skipped_entry_count
            )
            lines.append(text)
        return [*lines, last_problem] if last_problem else lines

    async def _import_chat(self, request: CommandRequest, chat: ExportedChat) -> tuple[Turn, ...]:
        """Return a chat's messages as turns; the command's author takes the user's role."""
        presets, author = await self._map_ids_to_usable_presets(request), request.incoming.author
        speakers = {preset_id(one.name) for one in chat.lines if not one.is_person}
        if len(speakers) == 1 and not request.active.is_group:  # the active preset takes the part
            presets = dict.fromkeys(speakers, request.active.first.preset.name) | presets
        first_sent_at = request.now - timedelta(milliseconds=len(chat.lines))
        turns = []
        for number, one in enumerate(chat.lines):
            sent_at = first_sent_at + timedelta(milliseconds=number)
            if one.is_person:
                turns.append(Turn("user", one.text, Person(author.id, one.name), sent_at))
            else:
                preset = presets.get(preset_id(one.name), one.name)
                turns.append(Turn("assistant", one.text, None, sent_at, preset))
        return tuple(turns)

    async def _map_ids_to_usable_presets(self, request: CommandRequest) -> dict[str, str]:
        """Map ids, derived from preset and character names, to the presets usable here."""
        descriptions = await self.characters.resolver.list_descriptions(request.incoming)
        presets = {preset_id(display_name(one)): one for one in descriptions}
        return presets | {preset_id(one.character_name): one.name for one in request.active.presets}

    @private_command(
        "memory lore",
        marked("add memories about this chat to a character's lorebook (admins)"),
        CommandOption("name", marked("a character of this server"), autocompletes=True),
        CommandOption(
            "number", marked("the memory's number or `all`; without it, I list the memories"), False
        ),
    )
    async def add_memories_to_lorebook(self, request: CommandRequest) -> CommandResult:
        """Add memories of this chat to a lorebook, or list those that may be added."""
        message, characters = request.incoming, self.characters
        if message.is_private:
            raise UserError(translatable("Send this command in the server that has the character."))
        action = translatable("change a character's lorebook")
        await characters.admins.require_admin(message, action)
        typed_name, _, choice = request.argument.rpartition(" ")
        number = _parse_number(choice)
        if number is None and choice.lower() != "all":
            typed_name, choice = request.argument, ""
        name = await characters.find_name_with_owner(
            typed_name, find_character_owner(message), "/memory lore"
        )
        preset = await characters.load_newest_version(name)
        lorebook = preset.parsed_lorebook
        lore_texts = {one.content for one in lorebook.entries} if lorebook else set()
        memories = await self.memories.list_visible(_make_reader(message))
        addable_memories = [
            one for one in memories if _can_be_lore(message, one) and one.text not in lore_texts
        ]
        chosen_memories = [
            one for one in addable_memories if choice.lower() == "all" or one.id == number
        ]
        if number is not None and not chosen_memories:
            raise UserError(_UNKNOWN_MEMORY_NOTICE)
        for one in chosen_memories:
            changes = {"lorebook": add_to_lorebook(preset.lorebook, one)}
            preset = with_changed_texts(preset, changes)
        if chosen_memories:
            await characters.save_character(request, preset, name)
        remaining_memories = [one for one in addable_memories if one not in chosen_memories]
        heading = translatable(
            "New entries in the lorebook: {count}. Memories about this chat that can still be"
            " added: {left}. To add them, write a memory's number, or all, after the command.",
            count=len(chosen_memories),
            left=len(remaining_memories),
        )
        return self._show_page(request, heading, remaining_memories, _LORE_CODE)

    # helpers

    async def _find_by_number(self, request: CommandRequest) -> Memory:
        """Return the memory whose number starts the command's text; raises `UserError`."""
        number = _parse_number(request.argument.partition(" ")[0])
        visible_memories = await self.memories.list_visible(_make_reader(request.incoming))
        memory = next((one for one in visible_memories if one.id == number), None)
        if memory is None:
            raise UserError(_UNKNOWN_MEMORY_NOTICE)
        return memory

    def _split_off_subject(self, request: CommandRequest, text: str) -> tuple[MemorySubject, str]:
        """Split "subject: text"; without a subject, the memory is about the author."""
        message, (subject_name, colon, content) = request.incoming, text.partition(":")
        if colon and subject_name.strip().lower() == "here":
            return MemorySubject(SubjectKind.PLACE, _find_place(message).channel), content
        typed_preset_id = preset_id(subject_name.strip())
        for one in request.active.presets if colon else ():
            if typed_preset_id in {preset_id(one.display_name), preset_id(one.character_name)}:
                return MemorySubject(SubjectKind.CHARACTER, one.name, one.character_name), content
        return _empty_memory(message, message.author).subject, text

    async def _create_quotation(self, request: Request, turn: Turn) -> Memory:
        """Return a memory that quotes a turn; raises `UserError` if the speaker did not consent."""
        text, speaker = _validate_text(turn.text[:MAX_MEMORY_CHARS]), turn.speaker
        new_memory = replace(_empty_memory(request, speaker or request.author), text=text)
        if speaker is None:
            name = turn.preset or ""
            character_name = self.characters.resolver.character_names({name})[name]
            subject = MemorySubject(SubjectKind.CHARACTER, name, character_name)
            return replace(new_memory, subject=subject, said_by=name)
        if turn.is_observed and speaker.id != request.author.id:
            consent = await self.characters.resolver.find_consent(speaker.id)
            if consent not in {Consent.SERVER, Consent.EVERYWHERE}:
                raise UserError(_UNADDRESSED_MESSAGE_NOTICE)
        return new_memory

    async def _store_memory(self, request: Request, memory: Memory) -> Memory:
        """Store and return a memory that somebody added by hand; raises `UserError`."""
        if writes_as_group(request):
            raise UserError(translatable("You are writing as the group. Use your own name."))
        settings = self.characters.admins.chat_settings
        if memory.subject.kind is SubjectKind.PLACE and not request.is_private:
            approval_setting = await settings.resolve(request.scopes[-1:], MEMORY_APPROVAL_KEY)
            if approval_setting is not None and not await self.characters.admins.is_admin(request):
                memory = replace(memory, state=MemoryState.PROPOSED)
        model, vector = await self._embed(memory.text) or ("", None)
        stored_memory = await self.memories.add(replace(memory, model=model, vector=vector))
        if stored_memory is None:
            problem = translatable("I can't remember that: it's about somebody who opted out.")
            raise UserError(problem)
        return stored_memory

    async def _load_reader(self, request: CommandRequest) -> MemoryReader:
        is_admin = await self.characters.admins.is_admin(request.incoming)
        return replace(_make_reader(request.incoming), is_admin=is_admin)

    async def _describe_who_may_know(self, request: CommandRequest, memory: Memory) -> Text:
        names = self.characters.resolver.character_names(memory.witnesses).values()
        audience = _describe_audience(_find_place(request.incoming), memory)
        if not names:
            return translatable("Who may know it: {audience}; all characters.", audience=audience)
        values = {"audience": audience, "names": ", ".join(names)}
        return translatable("Who may know it: {audience}; only the characters {names}.", **values)

    async def _show_memory(
        self, request: CommandRequest, memory: Memory | None, heading: Text | None = None
    ) -> CommandResult:
        """Return a memory's details; raise `UserError` if it is None, which means "not allowed"."""
        if memory is None:
            raise UserError(_OTHERS_MEMORY_NOTICE)
        message = request.incoming
        kind = translatable("from what was said") if memory.is_derived else translatable("by hand")
        since_day = f"{datetime.fromtimestamp(memory.since, UTC):%Y-%m-%d}"
        labels_text = join_texts([*_collect_labels(message, memory), kind], _COMMA)
        lines = [
            *([heading] if heading else []),
            f"#{memory.id} {memory.text}",
            translatable("{labels}; since {day}", labels=labels_text, day=since_day),
            await self._describe_who_may_know(request, memory),
        ]
        pin_label = translatable("Unpin it") if memory.is_pinned else translatable("📌 Pin it")
        options = [(pin_label, "p"), (translatable("🗑 Forget it"), "f")]
        if memory.said_by == message.author.id and not memory.place.is_private:
            options.append((translatable("The whole server may know it"), "w"))
        language = supported_language(message.locale)
        menu = [MenuOption(translate(text, language), f"{key}{memory.id}") for text, key in options]
        return self._with_menu(request, CommandResult(join_texts(lines)), menu, can_go_back=True)

    def _show_page(
        self,
        request: CommandRequest,
        heading: Text,
        memories: Sequence[Memory],
        action_code: str = _SHOW_CODE,
    ) -> CommandResult:
        if not memories:
            return CommandResult(heading)
        page_size = _PAGE_SIZE if _can_show_menus(request) else _MAX_LISTED_MEMORIES
        page_count = -(-len(memories) // page_size)
        page = min(max(1, request.page), page_count)
        rows = memories[(page - 1) * page_size : page * page_size]
        lines = [_format_memory_line(request.incoming, one) for one in rows]
        options = [
            MenuOption(f"#{one.id} {one.text}"[:_MAX_LABEL_CHARS], f"{action_code}{one.id}")
            for one in rows
        ]
        result = CommandResult(join_texts([heading, *lines]))
        result = self._with_menu(request, result, options)
        buttons = page_buttons(ButtonAction.MEMORY, request.part_name, page, page_count)
        return replace(result, buttons=buttons) if result.menus else result

    def _with_menu(
        self,
        request: CommandRequest,
        result: CommandResult,
        options: Sequence[MenuOption],
        *,
        can_go_back: bool = False,
    ) -> CommandResult:
        if not _can_show_menus(request):
            return result
        title = translate(translatable("Choose one"), supported_language(request.incoming.locale))
        menu = Menu(encode_button(ButtonAction.MEMORY, request.part_name), title, tuple(options))
        buttons = (back_button(request),) if can_go_back else ()
        return replace(result, menus=(menu,) if options else (), buttons=buttons)


def command_for_choice(menu_values: Sequence[str], command: str) -> str:
    """Return the command to run for what was chosen in a menu.

    `command` is the command whose reply has the menu. Without a choice, the list is shown again.
    """
    match = _MENU_VALUE.fullmatch("".join(menu_values))
    list_command = command if _LIST_COMMAND.fullmatch(command) else "/memory list"
    list_command = _NUMBER_OR_ALL.sub("", list_command)
    if match is None:
        return list_command
    prefix = list_command if match[1] == _LORE_CODE else f"/memory {_ACTION_BY_CODE[match[1]]}"
    return f"{prefix} {match[2]}"


def back_button(request: CommandRequest) -> Button:
    """Return the button that leads back to the list."""
    label = translate(translatable("‹ Back"), supported_language(request.incoming.locale))
    return Button(label, encode_button(ButtonAction.MEMORY, request.part_name, 1))


def _can_show_menus(request: CommandRequest) -> bool:
    """Return whether the reply can have menus, which only work in the command's own chat."""
    message = request.incoming
    return message.is_private or message.interaction is not None or request.page > 0


def _parse_number(word: str) -> int | None:
    digits = word.strip().removeprefix("#")
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 12 else None


def _validate_text(text: str) -> str:
    text = " ".join(text.split())
    if not text:
        raise UserError(_MISSING_TEXT_NOTICE)
    if len(text) > MAX_MEMORY_CHARS:
        raise UserError(translatable("Use at most {count} characters.", count=MAX_MEMORY_CHARS))
    return text


def _find_place(message: Request) -> MemoryPlace:
    return MemoryPlace.from_event(message.address, message.scopes, is_private=message.is_private)


def _make_reader(message: Request) -> MemoryReader:
    return MemoryReader(message.author.id, _find_place(message))


def _empty_memory(message: Request, person: Person) -> Memory:
    """Return an empty memory about a person, as if added by hand in this chat."""
    return Memory(
        MemorySubject(SubjectKind.PERSON, person.id, clean_name(person.name)),
        "",
        person.id,
        _find_place(message),
        conversation=message.address.conversation,
        is_derived=False,
        since=message.at.timestamp(),
    )


def _involves_person(person_id: str, memory: Memory) -> bool:
    return person_id in {memory.said_by, memory.subject.key}


def _may_be_known_at(place: MemoryPlace, memory: Memory) -> bool:
    audience = memory.audience or memory.place.narrowest_audience
    server_audience = place.audience_with_reach(Reach.SERVER)
    return audience in {place.narrowest_audience, server_audience, Audience(Reach.EVERYWHERE)}


def _is_known_to_character(preset: str, memory: Memory) -> bool:
    is_witness = not memory.witnesses or preset in memory.witnesses
    return is_witness and memory.state is MemoryState.KEPT


def _can_be_lore(message: Request, memory: Memory) -> bool:
    """Return whether a memory is about this channel and the whole server may know it."""
    is_about_place = memory.subject.kind is SubjectKind.PLACE
    reaches_server = memory.audience is not None and memory.audience.reach in _SERVER_WIDE_REACHES
    is_from_here = memory.place.server == message.scopes[-1]
    return is_about_place and reaches_server and is_from_here and memory.state is MemoryState.KEPT


def _shorten_text(text: str) -> str:
    return text if len(text) <= _MAX_LISTED_CHARS else f"{text[:_MAX_LISTED_CHARS]}…"


def _format_memory_line(message: Request, memory: Memory) -> Text:
    number = f"#{memory.id}" + " 📌" * memory.is_pinned  # "1." would start a Markdown list
    labels, text = join_texts(_collect_labels(message, memory), _COMMA), _shorten_text(memory.text)
    return translatable("{number} {text} ({labels})", number=number, text=text, labels=labels)


def _collect_labels(message: Request, memory: Memory) -> list[str]:
    """List labels: what a memory is about, who may know it, and whether it is in use."""
    place, subject, subject_label = _find_place(message), memory.subject, memory.subject.name
    if subject.key == message.author.id:
        subject_label = translatable("about you")
    elif subject.key in {place.channel, place.server}:
        subject_label = translatable("about this chat")
    elif subject_label:
        subject_label = translatable("about {name}", name=subject_label)
    labels = [subject_label, _describe_audience(place, memory), _STATE_LABELS[memory.state]]
    return [label for label in labels if label]


def _describe_audience(place: MemoryPlace, memory: Memory) -> Text:
    audience = memory.audience or memory.place.narrowest_audience
    label_here, label_elsewhere = _AUDIENCE_LABELS[audience.reach]
    return label_here if audience.key in {place.channel, place.server} else label_elsewhere
