//! The cache engine: one shard of the cache as a deterministic state machine.
