"""Hook of mkdocs for the gallery: refuse to build pages of examples that have changed since they were run.

The pages in `docs/gallery/` are committed with what the examples printed and drew, because a machine without the data
cannot make them. mkdocs-gallery leaves a page alone if its example has the digest in `<example>.py.md5`. It would run
all others, and stop with a traceback where data or libraries are missing. `make gallery` is for that.
"""

import hashlib
import os
import re
from pathlib import Path

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parent.parent
EXAMPLES, PAGES = ROOT / "examples", ROOT / "docs" / "gallery"
RENDER = "METAPRIOR_GALLERY"  # set by `make gallery`


def changed_examples() -> list[str]:
    """Return the names of examples whose page is missing or older than they are."""
    return [path.name for path in sorted(EXAMPLES.glob("*.py")) if _digest(path) != _recorded(path)]


def on_config(config):
    """Stop the build if an example has changed and is not to be run."""
    if (changed := changed_examples()) and not os.environ.get(RENDER):
        raise PluginError(
            f"The gallery has no current page of {', '.join(changed)}. Run `make gallery`, which runs the examples "
            "that have changed and needs their data (METAPRIOR_DATA), and commit docs/gallery."
        )
    return config


def on_page_markdown(markdown, page, **others):
    """Correct paths, which mkdocs-gallery writes for pages that are folders; ours are files (`use_directory_urls`)."""
    if not page.file.src_uri.startswith("gallery/"):
        return markdown
    markdown = re.sub(r' (?:srcset|tooltip)="[^"]*"', "", markdown)  # tooltips would be cut off within a sentence
    return re.sub(r'(<a class="reference internal" href="\w+)"', r'\1.html"', markdown)


def _digest(path: Path) -> str:
    return hashlib.md5(path.read_text(encoding="utf-8").encode()).hexdigest()


def _recorded(path: Path) -> str:
    record = PAGES / f"{path.name}.md5"
    return record.read_text() if record.exists() else ""
