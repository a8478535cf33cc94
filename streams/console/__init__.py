"""The pages of a worker: they show the answers of `streams.control`, and have forms for its operations."""

from streams.errors import missing_extra

try:
    import jinja2 as jinja2
    import markupsafe as markupsafe
except ModuleNotFoundError as error:
    raise missing_extra("console", "pages", error) from error
