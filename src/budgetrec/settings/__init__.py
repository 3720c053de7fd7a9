"""What a person decides: one frozen record per stage, presets, and the builders that unpack them."""
