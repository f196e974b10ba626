//! Benchmarks: the engine's hit path, and the server beside its peers.
