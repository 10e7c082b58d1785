"""Read the files attached to messages: pictures, text files, PDFs, voice messages, cards."""
