"""Named bad artifacts, one per attack: made by the generators here, judged by one table-driven test each."""
