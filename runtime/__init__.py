"""Turn an artifact into tokens: numpy and one engine, nothing heavier."""
