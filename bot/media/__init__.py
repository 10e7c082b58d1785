"""Read the files of messages: pictures for models that see, the texts of text files and PDFs."""
