"""How the site is built: `scripts/docs`."""

import sys
from pathlib import Path

import odradek

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "odradek"
author = "The odradek authors"
copyright = author
version = release = odradek.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "generated",
    "kafka_protocol",
]
exclude_patterns = ["_build", "_ext", "topics/performance-results.md", "howto/_moving.md"]  # other pages include them
myst_enable_extensions = ["deflist", "fieldlist", "colon_fence"]
myst_heading_anchors = 3
nitpicky = False
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# Nothing is fetched while building: a build needs no network.
intersphinx_mapping: dict[str, tuple[str, None]] = {}

html_theme = "furo"
html_title = f"odradek {version}"
