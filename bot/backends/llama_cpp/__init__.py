"""Run GGUF files on this machine with llama.cpp, in child processes with KV slots."""
