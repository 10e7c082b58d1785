"""Remove the beginning of an answer from its continuation, where a service sends it again."""


class RepeatedBeginning:
    """Filters the text of a continuation: what comes before it was shown already.

    Some services answer with the whole text, others with the rest. White space at the cut was not
    sent to the model, so the model may write it again.
    """

    def __init__(self, begun: str) -> None:
        self._begun = begun.rstrip()
        self._gap = begun[len(self._begun) :]
        self._held = ""
        self._is_at_cut = True

    def feed(self, text: str) -> str:
        """Return what a piece of text adds to the answer."""
        if not self._is_at_cut:
            return text
        self._held += text
        if len(self._held) < len(self._begun) and self._begun.startswith(self._held):
            return ""  # it may repeat the beginning
        rest = self._held.removeprefix(self._begun)
        if not rest.strip() and self._gap.startswith(rest):
            return ""
        self._is_at_cut = False
        return _without_gap(rest, self._gap)

    def finish(self) -> str:
        """Return what was held back at the end."""
        is_repeated = not self._is_at_cut or self._held.startswith(self._begun)
        return "" if is_repeated else self._held


def _without_gap(text: str, gap: str) -> str:
    """Return a text without the white space at its beginning that ends what comes before it."""
    begin = 0
    while begin < min(len(text), len(gap)) and text[begin] == gap[begin]:
        begin += 1
    return text[begin:]
