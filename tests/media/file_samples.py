"""Files as people send them, made in memory."""

import io

from PIL import Image


def picture(width: int = 40, height: int = 20, kind: str = "PNG", mode: str = "RGB") -> bytes:
    """Return a picture in one color."""
    written = io.BytesIO()
    Image.new(mode, (width, height)).save(written, kind)
    return written.getvalue()


def pdf(text: str) -> bytes:
    """Return a PDF of one page with a line of text."""
    stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        b" /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    written = b"%PDF-1.4\n"
    offsets = []
    for number, each in enumerate(objects, 1):
        offsets.append(len(written))
        written += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    tail = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    return written + head + table + tail % (len(objects) + 1, len(written))
