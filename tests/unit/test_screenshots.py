"""The pictures of the pages."""

import json

from tests.browser.screenshots import DIGESTS, IMAGES, PAGES, digests


def test_each_page_has_its_pictures():
    there = {path.name for path in IMAGES.glob("*.png")}
    assert there == {f"{name}-{kind}.png" for name in PAGES for kind in ("light", "dark", "phone")}


def test_no_template_has_changed_since_its_picture():
    """Else `make screenshots` is to be run."""
    assert json.loads(DIGESTS.read_text()) == digests()
