"""The tools that models may call: each reads something and changes nothing."""
