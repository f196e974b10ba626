//! The share of a resource that background work may use.

use std::fmt;

/// The share of the processors, or of the disks, that background work may use while something else
/// needs them. It is never zero: background work slows down, but does not stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackgroundShare {
    /// A sixteenth of what it uses otherwise.
    Least,
    /// A quarter.
    Reduced,
    /// Not reduced: all that clients leave unused.
    #[default]
    Full,
}

impl BackgroundShare {
    /// All shares, from the smallest to the largest.
    pub const ALL: [Self; 3] = [Self::Least, Self::Reduced, Self::Full];

    /// The denominator of the share: 16 for a sixteenth.
    pub const fn divisor(self) -> u32 {
        match self {
            Self::Full => 1,
            Self::Reduced => 4,
            Self::Least => 16,
        }
    }

    /// Whether this is [`Self::Full`].
    pub const fn is_full(self) -> bool {
        matches!(self, Self::Full)
    }

    /// The next smaller share; the smallest one stays.
    #[must_use]
    pub const fn smaller(self) -> Self {
        match self {
            Self::Full => Self::Reduced,
            Self::Reduced | Self::Least => Self::Least,
        }
    }

    /// The next larger share; the largest one stays.
    #[must_use]
    pub const fn larger(self) -> Self {
        match self {
            Self::Least => Self::Reduced,
            Self::Reduced | Self::Full => Self::Full,
        }
    }

    /// A word for it: `full`, `reduced` or `least`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Reduced => "reduced",
            Self::Least => "least",
        }
    }
}

impl fmt::Display for BackgroundShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_ordered_by_what_they_allow() {
        assert!(BackgroundShare::ALL.is_sorted());
        assert!(BackgroundShare::ALL.map(BackgroundShare::divisor).iter().rev().is_sorted());
        for pair in BackgroundShare::ALL.windows(2) {
            assert_eq!((pair[0].larger(), pair[1].smaller()), (pair[1], pair[0]));
        }
        let (least, full) = (BackgroundShare::Least, BackgroundShare::Full);
        assert_eq!((least.smaller(), full.larger()), (least, full));
        assert_eq!(BackgroundShare::default().to_string(), "full");
    }
}
