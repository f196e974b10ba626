//! Eviction policies: pure values behind one trait.
