"""From a preset and a history to exactly the prompt that the model is asked; pure."""
