"""What pages quote of modules and records, and the pictures of docs: written anew, and held by tests.

``python -m tools.quotations`` rewrites the marked blocks of the pages and the pictures. A test fails while
one of them is out of date.
"""
