"""Chat over HTTP: OpenAI's chat completions format, and the request handling of every vendor."""
