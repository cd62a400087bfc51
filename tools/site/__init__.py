"""The documentation site: `mkdocs build` with pages that are made from code, and links that leave docs/."""
