"""Read the files of messages: pictures, and the texts of text files and PDFs."""
