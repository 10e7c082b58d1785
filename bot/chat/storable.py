"""Make a text one that every database stores and every model's tokenizer reads."""


def make_storable(text: str) -> str:
    """Replace what JSON can spell and UTF-8 or PostgreSQL cannot: NUL and lone surrogates, U+FFFD.

    Two halves of a surrogate pair that stand together become the sign that they stand for.
    """
    if "\0" not in text and text.isascii():
        return text
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "\ufffd")
