"""Infrastructure: HTTP client, worker pool, child processes, plug-ins, operating system."""
