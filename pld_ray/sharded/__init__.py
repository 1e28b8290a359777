"""Training of whole policies through their own losses; nothing here knows runs or simulators."""
