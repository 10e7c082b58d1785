"""Count the units of Markdown whose marks readers do not get: an estimate, checked later."""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate

# A code block first, so that nothing in it is taken for a mark.
_MARKS = re.compile(
    r"^[ \t]*(?P<run>`{3,}|~{3,})[^\n]*\n(?P<code>(?:.*?\n)??)(?:[ \t]*(?P=run)[ \t]*$|\Z)"
    r"|(?P<line>^[ \t]*(?:>[ \t]?|\#{1,6}[ \t])+)"
    r"|!?\[(?P<label>[^\[\]\n]*)\]\(https?://[^()\s]*\)"
    r"|(?P<mark>`+|\*{1,3}|__|~~|\|\|)(?=\S)(?P<inner>[^\n]*?\S)(?P=mark)(?![*`])",
    re.MULTILINE | re.DOTALL,
)
_SHOWN = ("code", "label", "inner")


def visible_offsets(text: str) -> Sequence[int]:
    """Return the UTF-16 units that readers get before each position, the end included."""
    weights = [2 if letter > "\uffff" else 1 for letter in text]
    for start, end in _hidden_spans(text):
        weights[start:end] = [0] * (end - start)
    return [0, *accumulate(weights)]


def _hidden_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of complete marks; what stands within other marks is counted as it is."""
    for found in _MARKS.finditer(text):
        start, end = found.span()
        shown = next((name for name in _SHOWN if found[name] is not None), None)
        if shown is None:
            yield start, end
        else:
            yield start, found.start(shown)
            yield found.end(shown), end
