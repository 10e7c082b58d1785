"""Read messages' files: pictures, and the texts of text files and PDFs."""
