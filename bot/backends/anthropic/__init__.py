"""The backend for Anthropic's Messages API and services that are compatible with it."""
