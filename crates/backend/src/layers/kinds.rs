//! Sets of kinds of I/O.

use crate::IoKind;

/// A set of kinds of I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

/// Names of kinds in layer options.
const NAMES: [(&str, Kinds); 6] = [
    ("read", Kinds::READ),
    ("write", Kinds::WRITE),
    ("flush", Kinds::FLUSH),
    ("discard", Kinds::DISCARD),
    ("zero", Kinds::ZERO),
    ("all", Kinds::ALL),
];

impl Kinds {
    pub const NONE: Self = Self(0);
    /// Reads.
    pub const READ: Self = Self(1);
    pub const WRITE: Self = Self(2);
    pub const FLUSH: Self = Self(4);
    /// Discards.
    pub const DISCARD: Self = Self(8);
    /// Requests to zero a range.
    pub const ZERO: Self = Self(16);
    /// All kinds.
    pub const ALL: Self = Self(31);

    /// The kinds in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `kind` is in the set.
    pub const fn contains(self, kind: IoKind) -> bool {
        let one = match kind {
            IoKind::Read => Self::READ,
            IoKind::Write { .. } => Self::WRITE,
            IoKind::Flush => Self::FLUSH,
            IoKind::Discard => Self::DISCARD,
            IoKind::Zero { .. } => Self::ZERO,
        };
        self.0 & one.0 != 0
    }

    /// Parses a set, `read+write` (or `read|write`).
    pub(super) fn parse(text: &str) -> Option<Self> {
        text.split(['+', '|']).try_fold(Self::NONE, |set, word| {
            let (_, kinds) = NAMES.into_iter().find(|&(name, _)| name == word)?;
            Some(set.union(kinds))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_parsed_word_by_word() {
        assert_eq!(Kinds::parse("read+flush"), Some(Kinds::READ.union(Kinds::FLUSH)));
        assert_eq!(Kinds::parse("all"), Some(Kinds::ALL));
        assert_eq!(Kinds::parse("read,write"), None);
        assert_eq!(Kinds::parse(""), None);
        let kinds = Kinds::parse("write|zero").unwrap();
        assert!(kinds.contains(IoKind::Write { fua: true }) && !kinds.contains(IoKind::Read));
        assert!(kinds.contains(IoKind::Zero { unmap: false }) && !kinds.contains(IoKind::Flush));
    }
}
