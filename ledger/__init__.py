"""What happened and whether it adds up: events, storage, judging, evidence. Never imports torch."""
