"""What a figure is, in one wording for every place that explains it; imports nothing, since queries explain their columns too."""

from __future__ import annotations

HELD = (
    "bytes held, each page once: private, shared, swapped and huge pages, and what is held beyond those through files "
    "new since the baseline (to a witness: through any file); rss_file is not added"
)
"""What `tree_sum` is, for people, who see it as held."""
