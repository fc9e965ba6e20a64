"""The judge's cases, family by family: what is different from the clean run, and what the judge must say."""
