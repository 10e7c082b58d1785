"""The console in the browser, its API, and all else that is served over HTTP."""
