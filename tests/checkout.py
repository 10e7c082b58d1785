"""Where the checkout is that the tests run in."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
