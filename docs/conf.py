import gc
from importlib.metadata import version as installed_version

# Trees of documents are kept until the end, and looking through them for garbage is a third of the time.
gc.disable()

project = "Kinetoscope"
author = "Kinetoscope developers"
copyright = "2026, Kinetoscope developers"
release = installed_version("kinetoscope")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence"]
# A copied console block is what one types: without the prompt, and without what was printed.
copybutton_prompt_text = "$ "
html_theme = "furo"
html_title = f"Kinetoscope {release}"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
