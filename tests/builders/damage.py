"""Damaged documents: any value of a good one, anywhere in it, replaced by something else or taken out."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

JUNK = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
    | st.just([])
    | st.just({})
    | st.just([{}])
)


@st.composite
def damaged(draw: st.DrawFn, document: dict[str, Any], most: int = 3) -> dict[str, Any]:
    """A copy with one to `most` values replaced, taken out, or (in a list) put there twice."""
    result: Any = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        if not result:
            break
        holder = result
        while True:
            key = draw(st.sampled_from(list(holder) if isinstance(holder, dict) else list(range(len(holder)))))
            if not isinstance(holder[key], dict | list) or not holder[key] or draw(st.integers(0, 4)) == 0:
                break
            holder = holder[key]
        how = draw(st.sampled_from(("replace", "remove", "repeat")))
        if how == "replace":
            holder[key] = copy.deepcopy(draw(JUNK))  # a later round may change it, and the strategy shares it
        elif how == "remove" or isinstance(holder, dict):
            del holder[key]
        else:
            holder.append(copy.deepcopy(holder[key]))
    return result
