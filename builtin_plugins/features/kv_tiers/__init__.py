"""KV tiers: blocks move between the device's cache and slower stores."""
