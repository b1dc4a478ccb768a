#!/usr/bin/env python3
"""Builds docs/ as a site into target/site with mdBook: `site.py MDBOOK`.

A site knows nothing above its folder: so docs/ is copied, what README and docs link to lies beside it there, and links are
rewritten to that.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "target" / "docs"
PAGES = ["README.md", "CHANGELOG.md", "SECURITY.md"]
# What docs link to and is no page.
FILES = ["contrib", "reports/schema"]
EXAMPLES = "# Examples\n\nEach is run by a test under `stallscope run`.\n"


def of_the_site(text):
    """`text` with links as they are in one folder; examples/ is a page there."""
    text = re.sub(r"\]\((?:\.\./|docs/)", "](", text)
    return re.sub(r"\]\(examples\)", "](examples.md)", text)


def examples():
    scripts = sorted((ROOT / "examples").glob("*.py"))
    return EXAMPLES + "".join(f"\n## {path.name}\n\n```python\n{path.read_text()}```\n" for path in scripts)


def main():
    shutil.rmtree(BOOK, ignore_errors=True)
    shutil.copytree(ROOT / "docs", BOOK)
    for name in PAGES:
        shutil.copy(ROOT / name, BOOK)
    for name in FILES:
        shutil.copytree(ROOT / name, BOOK / name)
    for page in BOOK.glob("*.md"):
        page.write_text(of_the_site(page.read_text()))
    (BOOK / "examples.md").write_text(examples())
    summary = BOOK / "SUMMARY.md"
    summary.write_text(summary.read_text().replace("(python.md)\n", "(python.md)\n- [Examples](examples.md)\n"))
    subprocess.run([sys.argv[1], "build", BOOK], check=True)
    print("the site is in target/site: open target/site/index.html")


if __name__ == "__main__":
    main()
