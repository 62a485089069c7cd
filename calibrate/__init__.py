"""Optional data-driven settings: better rotations and per-layer bits."""
