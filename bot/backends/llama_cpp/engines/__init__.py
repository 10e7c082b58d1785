"""The two engines that can run a GGUF file, and the client that talks to their process."""
