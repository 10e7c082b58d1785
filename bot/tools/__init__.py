"""The tools that models may call; those that come with Troupe read and change nothing."""
