"""Replace what databases cannot store in texts."""


def make_storable(text: str) -> str:
    """Replace NUL and lone surrogates, which JSON can spell, by U+FFFD.

    PostgreSQL stores no NUL and UTF-8 encodes no surrogates. The two halves of a surrogate pair
    become the character that they encode.
    """
    if "\0" not in text and text.isascii():
        return text
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "\ufffd")
