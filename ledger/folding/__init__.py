"""What each kind of event adds to the state of its run. `ledger.fold` calls these, one an event."""
