//! Forebay: an in-line block cache.
fn main() {}
