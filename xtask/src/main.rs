//! Checks and chores of this repository.
fn main() {}
