"""Local models with llama.cpp: a GGUF file in a child process, one KV slot a conversation."""
