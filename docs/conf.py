"""How Sphinx builds the site: `make docs`. Nothing is fetched, neither by the build nor by who reads the pages."""

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]

import balpoe  # noqa: E402

project = "balpoe"
author = "The balpoe authors"
copyright = "2026, the balpoe authors. MIT licence"  # noqa: A001
release = version = balpoe.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "gallery_look",
    "repository_links",
    "reference_pages",
    "number_spacing",
]
exclude_patterns = ["_build", "**/GALLERY_HEADER.rst"]
suppress_warnings = ["config.cache"]  # settings of the gallery are objects

myst_enable_extensions = ["colon_fence", "deflist", "attrs_block", "attrs_inline"]
myst_heading_anchors = 4
highlight_language = "text"  # a block without a language is a command, or a drawing
default_role = "code"  # docstrings write `x` for code
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
toc_object_entries = False  # each name has a heading of its own
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 88
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = "balpoe"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["example-report.html"]
html_copy_source = False
html_show_sourcelink = False
html_sidebars = {"index": [], "which": []}
html_theme_options: dict[str, Any] = {
    "logo": {"text": "balpoe"},
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,  # how long a script took on the machine of the build is no fact
    "write_computation_times": False,
    "abort_on_example_error": True,
    "reset_modules": ("matplotlib", "gallery_look.use_style"),
    "image_scrapers": ("gallery_look.save_figures",),
    "show_api_usage": False,
}
