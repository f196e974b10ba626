//! A line: its key, its entry in the table, its seal. All other modules use these.

pub(crate) mod bits;
pub(crate) mod key;
pub(crate) mod meta;
pub(crate) mod seal;
