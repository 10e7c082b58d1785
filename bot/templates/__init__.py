"""Chat templates: the text that a model was trained on, made from messages."""
