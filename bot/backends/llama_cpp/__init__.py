"""Run GGUF files locally with llama.cpp, in child processes with KV cache slots."""
