"""Measurements beside predictions: published tables, calibration from runs, validation on real devices."""
