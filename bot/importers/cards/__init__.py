"""Character cards (V1, V2, V3) in PNG, JSON and CHARX files."""
