"""The paper's synthetic study."""
