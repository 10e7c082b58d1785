"""The path of the checkout that contains these tests."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
