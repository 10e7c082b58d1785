"""The OpenAI-compatible chat completions protocol: request, stream, timeouts, retries, errors."""
