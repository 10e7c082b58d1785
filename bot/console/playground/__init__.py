"""The playground: talk to characters in the browser, and read the next prompt as one writes."""
