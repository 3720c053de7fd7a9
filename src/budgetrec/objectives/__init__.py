"""Objectives are functions of hidden states, targets and the item table; modules wrap them for models."""
