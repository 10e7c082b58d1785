"""Split a long text into messages that a platform accepts."""
