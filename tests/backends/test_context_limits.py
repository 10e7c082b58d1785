"""The length of a rejected prompt and of a model's context, as servers word them."""

import pytest

from bot.backends.chat_completions.errors import TooLong, read_too_long

ERRORS = [
    (
        "This model's maximum context length is 8192 tokens. However, your messages "
        'resulted in 9000 tokens. Please reduce the length of the messages.',
        8192, 9000,
    ),
    (
        "This model's maximum context length is 4097 tokens, however you requested 5000 "
        'tokens (4900 in your prompt; 100 for the completion). Please reduce your prompt;'
        ' or completion length.',
        4097, 4900,
    ),
    (
        "This model's maximum context length is 2048 tokens. However, you requested 3000 "
        'tokens (2900 in the messages, 100 in the completion).',
        2048, 2900,
    ),
    (
        "This endpoint's maximum context length is 32768 tokens. However, you requested "
        'about 40000 tokens (39000 of text input, 1000 in the output).',
        32768, 39000,
    ),
    (
        'the request exceeds the available context size (4096 tokens), try increasing it',
        4096, None,
    ),
    (
        'request (5000 tokens) exceeds the available context size (4096 tokens), try '
        'increasing it',
        4096, 5000,
    ),
    (
        '{"error":{"type":"exceed_context_size_error","n_prompt_tokens":5000,"n_ctx":4096}}',
        4096, 5000,
    ),
    (
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
        4096, 5000,
    ),
    (
        "Requested token count exceeds the model's maximum context length of 4096 tokens."
        ' You requested a total of 5100 tokens: 5000 tokens from the input messages and '
        '100 tokens for the completion.',
        4096, 5000,
    ),
    (
        'The decoder prompt (length 5000) is longer than the maximum model length of '
        '4096. Make sure that `max_model_len` is no smaller than the number of text '
        'tokens.',
        4096, 5000,
    ),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 1000. This model's maximum"
        ' context length is 4096 tokens and your request has 3500 input tokens (1000 > '
        '4096 - 3500).',
        4096, 3500,
    ),
    (
        'You passed 4097 input tokens and requested 100 output tokens. However, the '
        "model's context length is only 4096 tokens, resulting in a maximum input length "
        'of 3996 tokens.',
        3996, 4097,
    ),
    (
        'Trying to keep the first 5000 tokens when context the overflows. However, the '
        'model is loaded with context length of only 4096 tokens, which is not enough.',
        4096, None,
    ),
    (
        'The number of tokens to keep from the initial prompt is greater than the context'
        ' length (n_keep: 5000>= n_ctx: 4096). Try to load the model with a larger '
        'context length',
        4096, None,
    ),
    (
        'Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. '
        'Given: 9000 `inputs` tokens and 100 `max_new_tokens`',
        8193, 9000,
    ),
    (
        'Input validation error: `inputs` must have less than 4096 tokens. Given: 5000',
        4096, 5000,
    ),
    (
        'prompt is too long: 210000 tokens > 200000 maximum',
        200000, 210000,
    ),
    (
        'input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, '
        'decrease input length or `max_tokens` and try again',
        200000, 190000,
    ),
    (
        'Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 '
        'maximum context length',
        32768, 40000,
    ),
    (
        'The input token count (1100000) exceeds the maximum number of tokens allowed '
        '(1048575).',
        1048575, 1100000,
    ),
    (
        'The input token count exceeds the maximum number of tokens allowed 1048576.',
        1048576, None,
    ),
    (
        'Range of input length should be [1, 30720]',
        30720, None,
    ),
    (
        'Invalid request: Your request exceeded model token limit: 8192',
        8192, None,
    ),
    (
        'Request too large for gpt-4o in organization org-x on tokens per min (TPM): '
        'Limit 30000, Requested 40000.',
        30000, 40000,
    ),
    (
        'too many tokens: total number of tokens in the prompt cannot exceed 4081 - '
        'received 4292.',
        4081, 4292,
    ),
    (
        "This model's maximum prompt length is 131072 but the request contains 140000 "
        'tokens.',
        131072, 140000,
    ),
    (
        'The prompt is too long: 9000, model maximum context length: 8191',
        8191, 9000,
    ),
    (
        'Please reduce the length of the messages or completion. Current length is 9000 '
        'while limit is 8192',
        8192, 9000,
    ),
    (
        'Prompt length 5000 is greater than max_seq_len 4096',
        4096, 5000,
    ),
    (
        'Input length 5000 exceeds maximum context length of 4,096 tokens',
        4096, 5000,
    ),
    (
        'the input length exceeds the context length',
        None, None,
    ),
    (
        'prompt too long; exceeded max context length by 904 tokens',
        None, None,
    ),
    (
        'Context size has been exceeded.',
        None, None,
    ),
    (
        'Input is too long for requested model.',
        None, None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("error", "context", "prompt"), ERRORS)
def test_figures_of_a_rejected_prompt_are_read(
    error: str, context: int | None, prompt: int | None
) -> None:
    assert read_too_long(error.encode()) == TooLong(context, prompt)
