"""Texts on the command line: long ones shortened, those from elsewhere watched by detectors."""
