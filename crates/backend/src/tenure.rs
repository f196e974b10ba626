//! The tenure of a server: its time as the owner of a store that several hosts can reach.
//!
//! What a server has left on its host (the pool of its keeper, a local journal, a vault) is older
//! than the store once another server has owned that. The store remembers the number of the last
//! tenure, and the host remembers the number of its own: if the host's one is neither the present
//! tenure nor one that it follows, somebody else was there in between.

use rustix::rand::GetRandomFlags;
use std::{fmt, io};

/// The present tenure of a store, and those that it follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenure {
    /// The number of the present tenure.
    pub own: u64,
    /// The tenure before this one. Also earlier ones, if the owners since then have ended before
    /// they wrote anything. Empty if the store remembers none.
    pub former: Vec<u64>,
}

/// The former tenures that a store remembers, at most.
const FORMER_MAX: usize = 8;

impl Tenure {
    /// A new tenure of a store that remembers `text`, which is that of its last owner or empty.
    ///
    /// # Errors
    /// The system has no random number.
    pub(crate) fn after(text: &str) -> io::Result<Self> {
        let mut own = [0; 8];
        rustix::rand::getrandom(&mut own, GetRandomFlags::empty())?;
        let last = Self::parse(text);
        let former = last.into_iter().flat_map(|last| std::iter::once(last.own).chain(last.former));
        Ok(Self { own: u64::from_ne_bytes(own), former: former.take(FORMER_MAX).collect() })
    }

    /// Reads what a store remembers: hexadecimal numbers, the present one first. `None` if it
    /// remembers none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_whitespace().map_while(|it| u64::from_str_radix(it, 16).ok());
        Some(Self { own: numbers.next()?, former: numbers.collect() })
    }

    /// The same without those that it follows.
    pub(crate) const fn settled(&self) -> Self {
        Self { own: self.own, former: Vec::new() }
    }

    /// Whether the host, which remembers the tenure `last`, was the last one that may have written
    /// to the store. `None` if it remembers none: then nobody may have been there before.
    pub fn follows(&self, last: Option<u64>) -> bool {
        match last {
            Some(last) => last == self.own || self.former.contains(&last),
            None => self.former.is_empty(),
        }
    }
}

/// As a store remembers it.
impl fmt::Display for Tenure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.own)?;
        self.former.iter().try_for_each(|former| write!(f, " {former:x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_remembers_owners_until_one_of_them_has_what_they_left() {
        let first = Tenure::after("").unwrap();
        let second = Tenure::after(&first.to_string()).unwrap();
        let third = Tenure::after(&second.to_string()).unwrap();
        assert_eq!((&first.former[..], &third.former), (&[][..], &vec![second.own, first.own]));
        assert_eq!(Tenure::parse(&third.to_string()), Some(third.clone()));
        let fourth = Tenure::after(&third.settled().to_string()).unwrap();
        assert_eq!(fourth.former, [third.own]);
        let many = Tenure { own: 0, former: (1..20).collect() };
        assert_eq!(Tenure::after(&many.to_string()).unwrap().former, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(Tenure::parse("?"), None);
    }

    #[test]
    fn a_host_knows_whether_another_one_was_there() {
        let tenure = Tenure { own: 3, former: vec![2, 1] };
        assert!([Some(1), Some(2), Some(3)].into_iter().all(|last| tenure.follows(last)));
        assert!(!tenure.follows(Some(4)) && !tenure.follows(None));
        assert!(Tenure { own: 3, former: Vec::new() }.follows(None));
    }
}
