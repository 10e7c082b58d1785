"""Requests over HTTP/1.1 whose responses are read as they arrive."""
