"""A model that says what a script has for each character, and fails where there is nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from tests.support.model_server import ModelServer


class ScriptedModel(ModelServer):
    """Gives the answers of the script, and fails where there is none."""

    def __init__(self, script: Mapping[str, Any]) -> None:
        super().__init__()
        self._systems, self._answers = script["systems"], script["answer"]
        self._given: Counter[str] = Counter()
        self.prompts: dict[str, str] = {}
        """What was asked, by the words that the newest answer is to."""

    @override
    def write_answer(self, messages: Sequence[Mapping[str, Any]]) -> str:
        [speaker] = [
            name for name, system in self._systems.items() if system in str(messages[0]["content"])
        ]
        said = "\n".join(str(one["content"]) for one in messages)
        mine = [one for one in self._answers if one["by"] == speaker]
        rule = max(mine, key=lambda one: said.rfind(one["to"]))
        assert rule["to"] in said, f"{speaker} has nothing to say to {said[-200:]!r}"
        number = min(self._given[rule["to"]], len(rule["says"]) - 1)
        self._given[rule["to"]] += 1
        self.prompts[rule["to"]] = said
        answer = str(rule["says"][number])
        is_slow = rule.get("slow", False)
        self.chunk_delays = (0.3,) if is_slow else (0.12,)
        self.chunk_count = max(2, len(answer) // (12 if is_slow else 25))
        return answer
