"""Model Context Protocol (MCP) servers: processes and services that provide more tools."""
