"""Take off the speaker tag that a model in a crowd puts before its own answer."""


class EchoRemover:
    """Feed it the answer as it streams in; only its very beginning is ever held back."""

    def __init__(self, speaker: str | None) -> None:
        self._tags = () if speaker is None else (f"{speaker}:", f"{speaker}：")
        self._held = ""

    def feed(self, text: str) -> str:
        if not self._tags:
            return text
        self._held += text
        begun = self._held.lstrip()
        tag = next((tag for tag in self._tags if begun.startswith(tag)), None)
        answer = begun.removeprefix(tag).lstrip() if tag else ""
        if answer:
            return self._let_go(answer)
        if tag or any(one.startswith(begun) for one in self._tags):
            return ""  # it may still become the tag, or the blank after it
        return self._let_go(self._held)

    def finish(self) -> str:
        begun = self._held.lstrip()
        return self._let_go("" if begun in self._tags else self._held)

    def _let_go(self, text: str) -> str:
        self._tags = ()
        self._held = ""
        return text
