"""Decide what a message asks for, and who of several characters answers it; pure."""
