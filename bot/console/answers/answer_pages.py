"""Serve the list of answers, one answer, its prompt, and its comparison with another one."""

from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlencode

from aiohttp import web

from bot.backends.exact_prompt import ExactPromptWriter
from bot.backends.spec import ProviderSettings
from bot.chat.access import Scope
from bot.chat.console.answers import StoredAnswer
from bot.chat.incoming import address_of
from bot.chat.prompt import PromptDescription, PromptToken
from bot.chat.usage import format_cost
from bot.console.answers.answer_models import (
    AnswerDetail,
    AnswerList,
    AnswerQuery,
    ComparedAnswer,
    PromptQuery,
    ShownMessage,
    ShownPrompt,
    ShownToken,
    answer_detail,
    answer_row,
)
from bot.console.answers.costs import costs_elsewhere
from bot.console.answers.differences import differing_pieces
from bot.console.answers.figures import budget_segments, waterfall
from bot.console.answers.masking import find_answer, masked_answer, with_masked_text
from bot.console.answers.parameters import UsedParameter, used_parameters
from bot.console.answers.prompt_view import (
    described_pieces,
    instructions_of,
    joined_messages,
    prompt_sections,
    token_pieces,
)
from bot.console.routes import (
    ConsoleRequest,
    NavigationItem,
    Page,
    RouteGroup,
    redirect,
    route,
)
from bot.errors import BackendUnavailable, RequestRefused
from bot.ports import AnswerLog, Backend, PresetDrafts, PresetVersions, TokenizingBackend
from bot.texts.stored import looked_up
from bot.texts.text import translatable

_ANSWERS_PER_PAGE = 50
_NO_TOKENS = translatable(
    "The tokens are known to models on this machine only; this provider counts them itself."
)


class AnswerPages(RouteGroup):
    """Shows what was answered, and from what.

    Args:
        answers: the stored answers.
        prompts: describes what a model was sent.
        backends: the providers, of which some can tell their tokens.
        versions: the presets as they were.
        providers: what their models cost.
        presets: whose model can be asked again; none where there is nobody to ask.
        drafts: what prompts can be composed from anew, beside the presets.
    """

    navigation = (NavigationItem("/answers", translatable("Answers"), "answers"),)

    def __init__(
        self,
        answers: AnswerLog,
        prompts: ExactPromptWriter,
        backends: Mapping[str, Backend],
        versions: PresetVersions,
        providers: Mapping[str, ProviderSettings],
        presets: Collection[str] = (),
        drafts: PresetDrafts | None = None,
    ) -> None:
        self._answers = answers
        self._prompts = prompts
        self._backends = backends
        self._versions = versions
        self._providers = providers
        self._presets = presets
        self._drafts = drafts

    # --- the list ---------------------------------------------------------------------------

    @route(
        "GET /api/v1/answers",
        Scope.READ,
        "Search answers, newest first.",
        query=AnswerQuery,
        answer=AnswerList,
    )
    async def _list(self, request: ConsoleRequest) -> AnswerList:
        asked = request.query(AnswerQuery).to_search()
        found = await self._answers.search(asked, _ANSWERS_PER_PAGE)
        return AnswerList(
            answers=[
                answer_row(with_masked_text(one, self._prompts.mask)) for one in found.answers
            ],
            next_before=found.next_before,
        )

    @route("GET /answers", Scope.READ, "The list of answers.", query=AnswerQuery)
    async def _list_page(self, request: ConsoleRequest) -> Page:
        query = request.query(AnswerQuery)
        found = await self._list(request)
        older = {**dict(request.http.query), "before": found.next_before}
        return Page(
            "answers.html",
            {
                "found": found,
                "query": query,
                "older": None if found.next_before is None else f"/answers?{urlencode(older)}",
                "is_filtered": bool(request.http.query),
            },
        )

    # --- one answer -------------------------------------------------------------------------

    async def _find(self, request: ConsoleRequest, name: str = "number") -> StoredAnswer:
        found = await find_answer(self._answers, request.number(name))
        return masked_answer(found, self._prompts.mask)

    @route(
        "GET /api/v1/answers/{number}",
        Scope.READ,
        "One answer, and what it was made of.",
        answer=AnswerDetail,
    )
    async def _detail(self, request: ConsoleRequest) -> AnswerDetail:
        return answer_detail(await self._find(request))

    @route(
        "GET /api/v1/answers/{number}/prompt",
        Scope.READ,
        "The prompt that was sent, secrets removed.",
        query=PromptQuery,
        answer=ShownPrompt,
        errors={409: "The tokens are not known."},
    )
    async def _prompt(self, request: ConsoleRequest) -> ShownPrompt:
        answer = await self._find(request)
        match request.query(PromptQuery).form:
            case "messages":
                return ShownPrompt(
                    messages=[
                        ShownMessage(role=one.role, content=one.content)
                        for one in answer.receipt.prompt.messages
                    ]
                )
            case "tokens":
                return ShownPrompt(
                    tokens=[
                        ShownToken(
                            id=one.id, text=one.text, control=one.control, trusted=one.trusted
                        )
                        for one in await self._tokens(answer)
                    ]
                )
            case "text":
                return ShownPrompt(text=(await self._describe(answer)).text)

    async def _describe(self, answer: StoredAnswer) -> PromptDescription:
        return await self._prompts.describe(answer.receipt)

    async def _tokens(self, answer: StoredAnswer) -> list[PromptToken]:
        """Return the tokens of a prompt; raises `RequestRefused` where nobody here knows them."""
        backend = self._backends.get(answer.receipt.provider)
        if not isinstance(backend, TokenizingBackend):
            raise RequestRefused(409, _NO_TOKENS)
        try:
            return list(await backend.tokenize(answer.receipt.prompt))
        except BackendUnavailable as error:
            raise RequestRefused(409, str(error)) from None

    @route("GET /answers/{number}", Scope.READ, "One answer.", query=PromptQuery)
    async def _answer_page(self, request: ConsoleRequest) -> Page:
        answer = await self._find(request)
        receipt = answer.receipt
        form = request.query(PromptQuery).form
        row = answer_row(answer)
        return Page(
            "answer.html",
            {
                "answer": row,
                "text": receipt.answer,
                "thoughts": receipt.thoughts,
                "address": address_of(answer.conversation),
                "received_at": receipt.timings.received_at,
                "form": form,
                "cost": None if receipt.charge.cost is None else format_cost(receipt.charge.cost),
                "segments": budget_segments(receipt),
                "steps": waterfall(receipt, await self._delivered_seconds(answer)),
                "named": [span for span in receipt.layout if span.name],
                "dropped": [(item, looked_up(item.why)) for item in receipt.dropped],
                "dropped_tokens": sum(item.tokens or 0 for item in receipt.dropped),
                "parameters": await self._parameters(answer),
                "before": await self._answers.find_before(answer),
                "elsewhere": costs_elsewhere(receipt, self._providers),
                "presets": sorted(self._presets),
                "drafts": await self._draft_names(),
                "instructions": instructions_of(receipt.prompt),
                **await self._prompt_values(answer, form),
            },
        )

    async def _delivered_seconds(self, answer: StoredAnswer) -> float | None:
        """Return after how long the last message of an answer was sent; None: not known."""
        received = answer.receipt.timings.received_at
        sent = None if received is None else await self._answers.find_delivery(answer)
        return None if sent is None or received is None else max(0.0, sent - received)

    async def _draft_names(self) -> Sequence[str]:
        return () if self._drafts is None else [one.name for one in await self._drafts.all()]

    async def _parameters(self, answer: StoredAnswer) -> list[UsedParameter]:
        receipt = answer.receipt
        number = receipt.preset_version
        version = None if number is None else await self._versions.find(receipt.preset, number)
        return used_parameters(receipt.prompt, version)

    async def _prompt_values(self, answer: StoredAnswer, form: str) -> Mapping[str, object]:
        """Return what the prompt is shown from: its sections, its text or its tokens."""
        values: dict[str, object] = {"sections": [], "pieces": [], "problem": "", "details": {}}
        match form:
            case "messages":
                values["sections"] = prompt_sections(answer.receipt)
            case "tokens":
                try:
                    values["pieces"] = token_pieces(await self._tokens(answer), answer.receipt)
                except RequestRefused as error:
                    values["problem"] = error.text
            case _:
                description = await self._describe(answer)
                values["pieces"] = described_pieces(description, answer.receipt)
                values["details"] = description.details
        return values

    # --- comparison -------------------------------------------------------------------------

    @route(
        "GET /answers/{number}/compare",
        Scope.READ,
        "Go to the comparison with a chosen answer.",
        query=ComparedAnswer,
    )
    async def _choose_other(self, request: ConsoleRequest) -> web.Response:
        older, newer = sorted((request.number("number"), request.query(ComparedAnswer).other))
        return redirect(f"/answers/{newer}/compare/{older}")

    @route("GET /answers/{number}/compare/{other}", Scope.READ, "Two answers beside each other.")
    async def _comparison_page(self, request: ConsoleRequest) -> Page:
        newer = await self._find(request)
        older = await self._find(request, "other")
        prompts = [joined_messages(one.receipt.prompt) for one in (older, newer)]
        answers = [one.receipt.answer for one in (older, newer)]
        return Page(
            "comparison.html",
            {
                "older": answer_row(older),
                "newer": answer_row(newer),
                "prompt": differing_pieces(*prompts),
                "answer": differing_pieces(*answers),
            },
        )
