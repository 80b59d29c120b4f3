"""Trains a draft for acceptance: losses, data, and transformers' own trainer around them."""
