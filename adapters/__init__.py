"""Adapters for other people's models; found through the entry points `tallystick.adapters`, imported by nobody by name."""
