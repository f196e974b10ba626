//! Lists that usually have one element.

use smallvec::SmallVec;

/// A list that takes no memory of its own while it has at most one element.
///
/// An I/O usually has one line, one segment, one buffer: a vector for each of them would be an
/// allocation, which costs more than what is done with the element.
pub type Few<T> = SmallVec<[T; 1]>;
