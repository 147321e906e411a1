"""Links from pages to files of the repository, as they work in a checkout: here they must work on the site, too.

MyST makes a download of a link to a file that is no page. Two kinds want more: a page of its own, such as the example
report, which is opened instead of saved; and a folder, of which a site has nothing to show but the name.
"""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class RepositoryLinks(SphinxTransform):
    """Turns links to HTML files into links, and links to folders into names."""

    default_priority = 5  # before anybody looks for what a link means

    def apply(self, **_: Any) -> None:
        """Change the links of one page."""
        page = Path(self.env.doc2path(self.env.docname))
        up = "../" * self.env.docname.count("/")
        for link in list(self.document.findall(addnodes.download_reference)):
            if link["reftarget"].endswith(".html"):
                opened = nodes.reference("", "", *link.children, refuri=up + Path(link["reftarget"]).name)
                link.replace_self(opened)
        for link in list(self.document.findall(addnodes.pending_xref)):
            target = link.get("reftarget", "")
            if "://" not in target and target and (page.parent / target).is_dir():
                link.replace_self(nodes.literal("", target.removeprefix("../").rstrip("/") + "/"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform."""
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True}
