"""Fill the marked blocks of the pages anew, and draw the pictures of docs."""

import argparse

from gemmgen.bench import plot
from tools.quotations.drawings import PICTURE, drawn
from tools.quotations.kernel_records import shown
from tools.quotations.pages import PAGES, refreshed

if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m tools.quotations", description=__doc__).parse_args()
    for page in PAGES:
        page.write_text(refreshed(page.read_text()))
    plot(shown(), PICTURE)
    for picture, text in drawn().items():
        picture.write_text(text, encoding="utf-8")
