"""The browser console, its API, and everything else served over HTTP."""
