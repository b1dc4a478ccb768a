"""The exact position of a loader, kept and taken up again."""
