"""The backend for any provider with an OpenAI-compatible chat completions API."""
