"""The places that people write in; one file or folder is one platform."""
