"""Pages need no files of the machine."""

import subprocess
import sys

#: As CPython 3.11 has it where there is no /etc/mime.types.
BARE = """
import mimetypes
mimetypes.knownfiles.clear()
mimetypes.init()
mimetypes.add_type("application/javascript", ".js")
from streams.console.pages import asset_url, assets
for name in ("htmx.min.js", "live.js", "style.css", "icon.svg"):
    print(asset_url(name).split("?")[0], assets()[name].kind)
"""


def test_files_of_pages_need_no_types_of_the_machine() -> None:
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "/static/htmx.min.js text/javascript",
        "/static/live.js text/javascript",
        "/static/style.css text/css",
        "/static/icon.svg image/svg+xml",
    ], done.stderr
