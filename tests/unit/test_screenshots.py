"""The pictures of the pages."""

from tests.browser.screenshots import IMAGES, PAGES


def test_each_page_has_its_pictures():
    there = {path.name for path in IMAGES.glob("*.png")}
    assert there == {f"{name}-{kind}.png" for name in PAGES for kind in ("light", "dark", "phone")}
