"""Turn a stream of words into messages that a platform takes."""
