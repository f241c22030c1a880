"""Great Expectations' view with our page. Imports Great Expectations: import it where it is used."""

from __future__ import annotations

import html
from typing import Any

from great_expectations.render.view.view import DefaultJinjaPageView
from jinja2 import ChoiceLoader, PackageLoader, pass_context

__all__ = ["PageView"]


class PageView(DefaultJinjaPageView):
    """Renders pages without scripts, and escapes values of rows, which Great Expectations' view does not."""

    _template = "data_docs_page.j2"

    def __init__(self) -> None:
        super().__init__()
        theirs = self.env.loader
        assert theirs is not None
        # First ours: some of our templates replace theirs.
        self.env.loader = ChoiceLoader([PackageLoader("streamwarden.quality.data_docs"), theirs])

    def page(self, document: Any, other: tuple[str, str] | None = None, *, top: str = "../", note: str = "") -> bytes:
        """Return a page.

        Parameters
        ----------
        document
            What a renderer made.
        other
            Address and name of the page of the same table; None without one.
        top
            The way from the page to the site's folder.
        note
            Shown above the content.
        """
        text = str(self.render(document, other=other, top=top, note=note))  # type: ignore[no-untyped-call]
        # The renderer of results expects its page in a folder for each run, below that of the suite.
        return text.replace('"../../../../expectations/', f'"{top}expectations/').encode()

    @pass_context
    def render_content_block(
        self,
        jinja_context: Any,
        content_block: Any,
        index: Any = None,
        content_block_id: Any = None,
        render_to_markdown: bool = False,
    ) -> Any:
        """Return the HTML of a part of a document; plain text is escaped."""
        if isinstance(content_block, str):
            return html.escape(content_block)
        if isinstance(content_block, list):
            content_block = [html.escape(one) if isinstance(one, str) else one for one in content_block]
        return super().render_content_block(
            jinja_context, content_block, index, content_block_id, render_to_markdown=render_to_markdown
        )
