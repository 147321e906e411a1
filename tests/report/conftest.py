"""What tests of the page share."""

import pytest

from explorer_pages import Opened


@pytest.fixture
def opened(browser, tmp_path):
    pages = []

    def open_page(html, **context):
        pages.append(Opened(browser, tmp_path, html, **context))
        return pages[-1]

    yield open_page
    for each in pages:
        each.context.close()
        assert each.complaints == []
