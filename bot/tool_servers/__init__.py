"""Servers of the Model Context Protocol (MCP): processes and services that bring further tools."""
