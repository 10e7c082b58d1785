"""Unpack one entry of a zip archive, never more of it than its header says."""

import zipfile

_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Python unpacks the others in whole blocks: 700 bytes of bzip2 may become gigabytes."""


def read_zip_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the content of an entry, one byte more than its header says if it has more.

    `ZipFile.read` unpacks everything before it cuts it to the size in the header.

    Raises:
        NotImplementedError: it is packed with a method other than deflate.
        zipfile.BadZipFile, zlib.error, EOFError, RuntimeError: it is damaged, or has a password.
    """
    if entry.compress_type not in _METHODS:
        raise NotImplementedError("That compression method is not supported")
    with archive.open(entry) as stream:
        return stream.read(entry.file_size + 1)
