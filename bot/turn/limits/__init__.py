"""What limits answers: how often, how many at once, and for how much money."""
